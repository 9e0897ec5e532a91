"""Digests of arguments: they tell whether replayed code calls something with the arguments that it was called with.

A digest is over the arguments as the call gives them, without defaults, in their order: a parameter that is renamed, or
added with a default, changes nothing. Sets and keys are sorted, so that it is the same in every process. It is a
checksum, since it has to notice changes that nobody hides: nobody who can write a journal needs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

import msgspec

from perdure.values.canonical import canonical
from perdure.values.json import Signature, python_form

# What is larger is not looked at byte by byte: a replay would take long for it.
BYTES_MAX: Final = 1024
SURELY_LARGE_CHARS: Final = 2 * BYTES_MAX  # of JSON, in which parameters have names
LARGE: Final = "large"

_encode: Final = msgspec.json.Encoder(enc_hook=python_form, order="deterministic").encode


def digest_of(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The arguments in eight digits; LARGE if they are. Empty, which is equal to all, if they have no JSON form."""
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
    """The same arguments, given by place as far as they can be."""
    found, rest = list(args), dict(kwargs)
    for name in names[len(args) :]:
        if name not in rest:
            break
        found.append(rest.pop(name))
    return tuple(found), rest


def is_other(stored: str | None, now: str | None) -> bool:
    """Whether both are known, and of other arguments."""
    return bool(stored and now) and stored != now
