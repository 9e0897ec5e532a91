"""Digests of arguments. A replay compares digests to notice changed code that calls a step or a child with other
arguments.

A digest covers the arguments of the call in their order, without defaults. So you may rename a parameter, or add a
parameter with a default. Sets and keys are sorted, so a digest is the same in every process. A checksum is enough. An
attacker who can write to a journal can also write results, and does not need to forge a digest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

import msgspec

from perdure.values.canonical import canonical
from perdure.values.json import Signature, python_form

# The digest of larger arguments is LARGE, because encoding them would make replays slow.
BYTES_MAX: Final = 1024
SURELY_LARGE_CHARS: Final = 2 * BYTES_MAX  # characters of JSON, which includes the names of the parameters
LARGE: Final = "large"

_encode: Final = msgspec.json.Encoder(enc_hook=python_form, order="deterministic").encode


def digest_of(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the digest of the arguments: eight digits, or LARGE if the arguments are large. It is empty if they have
    no JSON form. An empty digest counts as equal to every other digest.
    """
    for value in args:
        if type(value) is str and len(value) > BYTES_MAX:
            return LARGE
    if kwargs:
        args, kwargs = _by_place(signature.places, args, kwargs)
    try:
        data = _encode(args)
        if kwargs:
            data += _encode(kwargs)
    except Exception:  # noqa: BLE001 - a set of things that cannot be sorted, or whatever users' classes raise
        try:
            data = canonical(args, numbers=False) + (canonical(kwargs, numbers=False) if kwargs else b"")
        except Exception:  # noqa: BLE001 - as above
            return ""
    return f"{crc32(data):08x}" if len(data) <= BYTES_MAX else LARGE


def _by_place(
    names: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the same arguments, with as many as possible passed by position instead of by name."""
    found, rest = list(args), dict(kwargs)
    for name in names[len(args) :]:
        if name not in rest:
            break
        found.append(rest.pop(name))
    return tuple(found), rest


def is_other(stored: str | None, now: str | None) -> bool:
    """Whether both digests are known and differ."""
    return bool(stored and now) and stored != now
