"""Headers that make requests safe. If-Match names the version that the caller has seen. Idempotency-Key marks requests
that may be repeated.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import Annotated, Final

from litestar.datastructures import ResponseHeader
from litestar.params import HeaderParameter

from perdure.http.problems import Refused

IfMatch = Annotated[
    str | None,
    HeaderParameter(
        name="If-Match",
        max_length=100,
        description='The ETag of the run that you have seen, such as "3", or * for any version. Without it: 428.',
    ),
]
IdempotencyKey = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="Requests with the same key take effect once.",
    ),
]
ETAG: Final = [ResponseHeader(name="ETag", description="The run's version.", documentation_only=True)]
_ETAG: Final = re.compile(r'"(0|[1-9][0-9]{0,17})"')
_NAMESPACE: Final = uuid.UUID("5e0c6e04-6d0e-5f2c-9a0a-3f6a8b8a6f10")
_SCOPED: Final = uuid.UUID("b1f5a1d0-7c43-5b0e-8f63-2f6e1d2f9c55")


def etag(version: int) -> str:
    """Return the ETag of a run's version."""
    return f'"{version}"'


def expected_version(if_match: str | None) -> int | None:
    """Return the version that a change is meant for, or None for any version. Raises Refused if the header is
    missing."""
    if if_match is None:
        raise Refused("precondition_required", 'name the version to change: If-Match: "<version>", or * for any')
    text = if_match.strip()
    if text == "*":
        return None
    if (found := _ETAG.fullmatch(text)) is None:
        raise Refused("invalid_request", f'If-Match must be one ETag, such as "3", or *, not {text!r:.80}')
    return int(found[1])


def run_id_of(key: str, scope: str | None = None) -> str:
    """Return the id for a run that is started with this key. The same key always gives the same id. If the caller's
    scope is only for some runs, its keys are separate from all other keys.
    """
    if scope is None:
        return str(uuid.uuid5(_NAMESPACE, hashlib.sha256(key.encode()).hexdigest()))
    return str(uuid.uuid5(_SCOPED, _digest(scope, key)))


def event_key_of(key: str | None, scope: str | None) -> str | None:
    """Return the key with which an event is sent. If the caller's scope is only for some runs, its keys are separate
    from all other keys.
    """
    return key if key is None or scope is None else f"perdure.scope:{_digest(scope, key)}"


def _digest(scope: str, key: str) -> str:
    return hashlib.sha256(f"{len(scope)}:{scope}:{key}".encode()).hexdigest()


__all__ = ["ETAG", "IdempotencyKey", "IfMatch", "etag", "event_key_of", "expected_version", "run_id_of"]
