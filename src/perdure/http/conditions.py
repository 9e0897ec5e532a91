"""Headers that say what a request is meant for: the version that was seen, the key of a request that may come twice."""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import Annotated, Final

from litestar.params import HeaderParameter

from perdure.http.problems import Refused

IfMatch = Annotated[
    str | None,
    HeaderParameter(
        name="If-Match",
        max_length=100,
        description='The ETag of the run as it was seen, as in "3"; * for whatever version it has. Required: 428.',
    ),
]
IdempotencyKey = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="Requests with the same key have an effect once, however often they are sent.",
    ),
]
_ETAG: Final = re.compile(r'"(0|[1-9][0-9]{0,17})"')
_NAMESPACE: Final = uuid.UUID("5e0c6e04-6d0e-5f2c-9a0a-3f6a8b8a6f10")
_SCOPED: Final = uuid.UUID("b1f5a1d0-7c43-5b0e-8f63-2f6e1d2f9c55")


def etag(version: int) -> str:
    return f'"{version}"'


def expected_version(if_match: str | None) -> int | None:
    """The version that a request is for; None for any. Raises Refused: a change needs to say which is meant."""
    if if_match is None:
        raise Refused("precondition_required", 'say which version is meant: If-Match: "<version>", or * for any')
    text = if_match.strip()
    if text == "*":
        return None
    if (found := _ETAG.fullmatch(text)) is None:
        raise Refused("invalid_request", f'If-Match is one ETag, as in "3", or *, not {text!r:.80}')
    return int(found[1])


def run_id_of(key: str, scope: str | None = None) -> str:
    """The id of the run that a start with this key gives: the same one each time. Keys of a scope for some runs are
    apart from those of all others."""
    if scope is None:
        return str(uuid.uuid5(_NAMESPACE, hashlib.sha256(key.encode()).hexdigest()))
    return str(uuid.uuid5(_SCOPED, _digest(scope, key)))


def event_key_of(key: str | None, scope: str | None) -> str | None:
    """The key that an event is sent with: a scope for some runs has keys of its own."""
    return key if key is None or scope is None else f"perdure.scope:{_digest(scope, key)}"


def _digest(scope: str, key: str) -> str:
    return hashlib.sha256(f"{len(scope)}:{scope}:{key}".encode()).hexdigest()


__all__ = ["IdempotencyKey", "IfMatch", "etag", "event_key_of", "expected_version", "run_id_of"]
