"""Checks of request bodies before they are decoded. They accept only JSON that all parsers read in the same way."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from litestar.types import Receive

from perdure.http.problems import Refused

_AT_ONCE_BYTES: Final = 64 * 1024  # A larger body is checked in a thread.
GONE: Final = "the connection was closed before all of the body had arrived"


async def checked(receive: Receive, bytes_max: int) -> Receive:
    """Read and check a JSON body. Return a `receive` that returns the same body again.

    Raises Refused if the body is too large, is not UTF-8, or has a key twice in one object. Parsers disagree about
    which of two equal keys counts. So a proxy may have checked the value that is not used here. Also raises Refused if
    the client disconnects before the whole body has arrived. Anybody can cause that, so it is not logged as an error.
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
        _check(body)
    else:
        await asyncio.to_thread(_check, body)
    left = iter(parts)

    async def again() -> Any:
        return next(left, None) or await receive()

    return again


def _check(body: bytes) -> None:
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


__all__ = ["GONE", "checked"]
