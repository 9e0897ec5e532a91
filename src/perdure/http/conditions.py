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


def run_id_of(key: str) -> str:
    """The id of the run that a start with this key gives: the same one each time."""
    return str(uuid.uuid5(_NAMESPACE, hashlib.sha256(key.encode()).hexdigest()))


__all__ = ["IdempotencyKey", "IfMatch", "etag", "expected_version", "run_id_of"]
