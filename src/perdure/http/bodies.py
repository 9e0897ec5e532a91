"""Checks of request bodies before they are decoded. They accept only JSON that all parsers read in the same way."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from litestar.types import Receive

from perdure.http.problems import Refused

VALUES_MAX: Final = 100_000
_VALUES_PER_CONTAINER: Final = 5  # An empty list costs about as much time as five numbers.
_VALUES_PER_KEY: Final = 2
_AT_ONCE_BYTES: Final = 64 * 1024  # A larger body is checked in a thread.
GONE: Final = "the connection was closed before all of the body had arrived"


async def checked(receive: Receive, bytes_max: int, values_max: int) -> Receive:
    """Read and check a JSON body, and return a `receive` that returns the body again.

    Raises Refused for a body that is too large, has too many values, is not UTF-8, or has a key twice in one object.
    Readers disagree about which of two equal keys counts, so a proxy may have checked the value that is not used here.
    Raises Refused also if the client disconnects before the whole body has arrived. Anybody can cause that, so it is
    not logged as an error.
    """
    parts: list[Any] = []
    size = 0
    while True:
        message: Any = await receive()
        if message["type"] != "http.request":
            raise Refused("invalid_request", GONE)
        parts.append(message)
        size += len(message.get("body", b""))
        if size > bytes_max:
            raise Refused("body_too_large", f"the body has more than {bytes_max} bytes")
        if not message.get("more_body"):
            break
    body = b"".join(part.get("body", b"") for part in parts)
    if len(body) <= _AT_ONCE_BYTES:
        _check(body, values_max)
    else:
        await asyncio.to_thread(_check, body, values_max)
    left = iter(parts)

    async def again() -> Any:
        return next(left, None) or await receive()

    return again


def has_too_many_values(body: bytes, values_max: int = VALUES_MAX) -> bool:
    """Whether a JSON text has more values than are accepted. A list or an object counts as five values, and a key
    as two.

    A decoder runs to its end without letting the event loop run, also in a thread. So the values are counted before
    the text is decoded. Counting takes some milliseconds for a text of 4 MiB. Of a text that is not JSON, the values
    before the mistake are counted, and a decoder reads no more than these.
    """
    text = body.replace(rb"\\", b"").replace(rb"\"", b"")  # Now each quote begins or ends a text.
    if text.count(b'"') > 4 * values_max:  # A value has at most one key, and both have two quotes.
        return True
    outside = b"".join(text.split(b'"')[::2])
    containers = outside.count(b"[") + outside.count(b"{")
    keys = outside.count(b":")
    return outside.count(b",") + containers * _VALUES_PER_CONTAINER + keys * _VALUES_PER_KEY > values_max


def _check(body: bytes, values_max: int) -> None:
    if has_too_many_values(body, values_max):
        raise Refused(
            "body_too_large",
            f"the body has more than {values_max:,} values; a list or an object counts as {_VALUES_PER_CONTAINER}, and "
            f"a key as {_VALUES_PER_KEY}",
        )
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise Refused("invalid_request", "the body is not UTF-8") from None
    try:
        json.loads(text, object_pairs_hook=_keys, parse_int=_leave, parse_float=_leave)
    except (ValueError, RecursionError):
        return  # The decoder reports what is wrong with the body.


def _leave(text: str) -> str:
    return text


def _keys(pairs: list[tuple[str, Any]]) -> None:
    """Raise Refused if an object has a key twice."""
    if len(pairs) > 1:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise Refused("invalid_request", f"the body has the key {key!r:.80} twice in one object")
            seen.add(key)


__all__ = ["GONE", "VALUES_MAX", "checked", "has_too_many_values"]
