"""How failures are stored: as JSON, which a codec encodes."""

from __future__ import annotations

from typing import Final

import msgspec

from perdure.kernel.failures import Failure
from perdure.ports import Codec, PlainCodec

_decode_failure: Final = msgspec.json.Decoder(Failure).decode


def write_failure(failure: Failure, codec: Codec) -> str:
    """Return a failure in the form in which it is stored. A codec encodes everything but the exception's class, because
    messages and arguments of exceptions contain parts of payloads."""
    text = msgspec.json.encode(failure).decode()
    if isinstance(codec, PlainCodec):
        return text
    sealed = Failure(type=failure.type, message="", entry=failure.entry, sealed=codec.encode(text))
    return msgspec.json.encode(sealed).decode()


def read_failure(text: str, codec: Codec) -> Failure:
    """Return a stored failure. Failures that Perdure itself reports are stored without the codec, and so were all
    failures in earlier versions."""
    failure = _decode_failure(text)
    return _decode_failure(codec.decode(failure.sealed)) if failure.sealed else failure
