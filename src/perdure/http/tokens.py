"""API tokens: who may ask, and for what. They are records of the store, so every server and every process has the same.

A token is shown once, when it is made; the store has only the SHA-256 of its secret, which has 256 bits of chance and
needs no slow hash. Whoever revokes one adds a version to its record, which counts from the next request on.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import AsyncIterator
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from perdure.client import Client
from perdure.errors import InvalidArguments, RecordNotFound
from perdure.keeping import RecordView

KIND: Final = "perdure.api-token"
_PREFIX: Final = "perdure"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}")
_SECRET_BYTES: Final = 32
_PAGE: Final = 200


class Scope(StrEnum):
    """What a token is good for. Each includes those before it."""

    READ = "read"  # look at everything
    OPERATE = "operate"  # start, send, cancel, retry, answer, work
    ADMIN = "admin"  # make and revoke tokens

    def includes(self, other: Scope) -> bool:
        order = list(Scope)
        return order.index(self) >= order.index(other)


class TokenView(Struct, frozen=True, kw_only=True):
    """A token without its secret. `made_by` is who made it, or revoked it, at `at`."""

    name: str
    scope: str
    revoked: bool
    made_by: str
    at: datetime


async def make_token(client: Client, name: str, scope: Scope | str, *, actor: str = "api") -> str:
    """Make a token; it is not to be had again. One of the same name is replaced, and no longer valid. Raises
    InvalidArguments."""
    if _NAME.fullmatch(name) is None:
        raise InvalidArguments(
            "a token's name has up to 63 small letters, digits, dots and hyphens, and begins with a letter or a digit, "
            f"not {name!r:.80}"
        )
    if scope not in list(Scope):
        raise InvalidArguments(f"a token's scope is {', '.join(Scope)}, not {scope!r:.40}")
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    body = {"scope": str(scope), "sha256": _digest(secret), "revoked": False}
    await client.put_record(KIND, name, body, actor=actor)
    return f"{_PREFIX}_{name}_{secret}"


async def revoke_token(client: Client, name: str, *, actor: str = "api") -> TokenView:
    """Make a token invalid, for good. Raises RecordNotFound."""
    found = await client.record(KIND, name)
    if not found.body["revoked"]:
        body = {"scope": found.body["scope"], "sha256": "", "revoked": True}
        await client.put_record(KIND, name, body, actor=actor)
        found = await client.record(KIND, name)
    return _view(found)


async def tokens(client: Client) -> list[TokenView]:
    """All tokens there ever were, by name."""
    return [_view(found) async for found in _records(client)]


async def find_token(client: Client, token: str) -> TokenView | None:
    """The token that somebody shows, if it is valid."""
    found = await valid_record(client, token)
    return None if found is None else _view(found)


async def valid_record(client: Client, token: str) -> RecordView | None:
    """The version of a token's record that what somebody shows is valid by; None if it is not valid."""
    prefix, _, rest = token.partition("_")
    name, _, secret = rest.partition("_")
    if prefix != _PREFIX or _NAME.fullmatch(name) is None or not secret:
        return None
    try:
        found = await client.record(KIND, name)
    except RecordNotFound:
        return None
    is_same = hmac.compare_digest(_digest(secret), str(found.body["sha256"]))
    return found if is_same and not found.body["revoked"] else None


async def has_tokens(client: Client) -> bool:
    """Whether a token was ever made: from then on nobody gets in without one, also if it was revoked."""
    return bool(await client.records(KIND, limit=1))


async def has_valid_tokens(client: Client) -> bool:
    async for found in _records(client):
        if not found.body["revoked"]:
            return True
    return False


async def _records(client: Client) -> AsyncIterator[RecordView]:
    after: str | None = None
    while page := await client.records(KIND, after=after, limit=_PAGE):
        for found in page:
            yield found
        after = page[-1].name


def _view(found: RecordView) -> TokenView:
    body: dict[str, Any] = found.body
    return TokenView(
        name=found.name, scope=body["scope"], revoked=body["revoked"], made_by=found.actor, at=found.at
    )  # fmt: skip


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()


__all__ = [
    "Scope",
    "TokenView",
    "find_token",
    "has_tokens",
    "has_valid_tokens",
    "make_token",
    "revoke_token",
    "tokens",
    "valid_record",
]
