"""API tokens: who may use the API, what each token may do, and until when it is valid. Tokens are in the store, so all
servers have the same tokens.

A token is shown once, when it is created. The store has only the SHA-256 of its secret. The secret has 256 random bits,
so it needs no slow hash. Each change of a token adds a version. A new version counts from the next request on. A
rotation gives the token a new secret. Each former secret stays valid for the overlap of its rotation. In this time,
programs can get the new secret. A rotation without an overlap ends all former secrets at once.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import Struct

from perdure.api.credentials import TokenRecord
from perdure.engine import AnyClient
from perdure.errors import InvalidArguments, RecordNotFound
from perdure.http.scopes import Grants, Scope, parse_scopes
from perdure.values.arguments import Duration, checked, span_of
from perdure.views import shown_time

_PREFIX: Final = "perdure"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}")
_SECRET_BYTES: Final = 32
_MICROSECOND: Final = timedelta(microseconds=1)
LASTS_MAX: Final = timedelta(days=36_500)
_FORMER_MAX: Final = 10
# Actors in the audit trail that are not tokens. With one of these names, a token could act in the name of that actor.
RESERVED: Final = frozenset({"api", "cli", "dashboard", "engine", "http", "oidc", "perdure", "startup"})


class TokenView(Struct, frozen=True, kw_only=True):
    """A token without its secret.

    `made_by` is the actor that created, rotated or revoked it last, and `at` is the time of that change. `used_at` is
    the time of its last use, to the minute. Until `overlap_until`, a secret from before a rotation is still valid.
    """

    name: str
    scope: str  # all scopes, with commas between them
    scopes: list[str]
    revoked: bool
    made_by: str
    at: datetime
    expires_at: datetime | None = None
    used_at: datetime | None = None
    overlap_until: datetime | None = None


class ShownToken(Struct, frozen=True, kw_only=True):
    """A token that a caller has sent. Its secret is correct.

    `wrong` says why the token is not valid. It is empty for a valid token.
    """

    name: str
    grants: Grants
    sha256: str  # the SHA-256 of the secret that was sent
    wrong: str = ""


@checked
async def make_token(
    client: AnyClient,
    name: str,
    scope: Scope | str | Iterable[str],
    *,
    expires: Duration | None = None,
    actor: str = "api",
) -> str:
    """Create a token with one scope or several, and return it with its secret.

    The secret cannot be read again. The token is valid for the time `expires`. Without `expires`, it is valid until it
    is revoked. It replaces a token of the same name. Raises InvalidArguments.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidArguments(
            "a token's name has up to 63 lower-case letters, digits, dots and hyphens, and begins with a letter or a"
            f" digit, not {name!r:.80}"
        )
    if name in RESERVED:
        raise InvalidArguments(
            f"{name!r} is an actor of Perdure itself in the audit trail; use another name for the token"
        )
    grants, lasts_us = parse_scopes(scope), _lasts_us(expires)
    kept = client.credentials
    while True:
        found = await kept.token(name)
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        body = _body(grants, _digest(secret), kept.now(), lasts_us, "created" if found is None else "replaced")
        if await kept.put_token(name, body, version=1 if found is None else found.version + 1, actor=actor):
            return f"{_PREFIX}_{name}_{secret}"


@checked
async def rotate_token(
    client: AnyClient,
    name: str,
    *,
    overlap: Duration = 0,
    expires: Duration | None = None,
    actor: str = "api",
) -> str:
    """Give a token a new secret, and return the token with the new secret. The secret cannot be read again.

    The old secret stays valid for the `overlap`, but not longer than without the rotation. Secrets of earlier rotations
    keep their own overlap. Without an overlap, the old secret and all earlier secrets end at once. The new secret is
    valid for the time `expires`. By default, it is valid for the same time as the old secret was when it was created.

    Raises RecordNotFound. Raises InvalidArguments if the token is revoked, or has ten former secrets that are still
    valid.
    """
    overlap = span_of(overlap, "overlap")
    if overlap > LASTS_MAX:
        raise InvalidArguments(f"overlap must be between 0 and {LASTS_MAX.days} days, not {overlap}")
    lasts_us = _lasts_us(expires)
    kept = client.credentials
    while True:
        found = await _found(client, name)
        was = found.body
        if was["revoked"]:
            raise InvalidArguments(f"the token {name!r} is revoked; create a new one")
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        now = kept.now()
        body = _body(_grants(was), _digest(secret), now, lasts_us or was.get("lasts_us"), "rotated")
        if overlap:
            until = min(now + overlap // _MICROSECOND, was.get("expires_at") or 2**62)
            body["former"] = {"sha256": was["sha256"], "until": until}
            body["earlier"] = _still_valid(name, was, now)
        if await kept.put_token(name, body, version=found.version + 1, actor=actor):
            return f"{_PREFIX}_{name}_{secret}"


@checked
async def revoke_token(client: AnyClient, name: str, *, actor: str = "api") -> TokenView:
    """Revoke a token for good. Raises RecordNotFound."""
    while True:
        found = await _found(client, name)
        if found.body["revoked"]:
            return _view(found)
        body = {**_body(_grants(found.body), "", client.credentials.now(), None, "revoked"), "revoked": True}
        await client.credentials.put_token(name, body, version=found.version + 1, actor=actor)


@checked
async def tokens(client: AnyClient) -> list[TokenView]:
    """Return all tokens, including revoked and expired tokens, by name."""
    return [_view(found) async for found in client.credentials.tokens()]


async def find_token(client: AnyClient, token: str) -> ShownToken | None:
    """Return the token that a caller has sent, even if it is not valid. Return None if no token has this secret."""
    prefix, _, rest = token.partition("_")
    name, _, secret = rest.partition("_")
    if prefix != _PREFIX or _NAME.fullmatch(name) is None or not secret:
        return None
    found = await client.credentials.token(name)
    return None if found is None else token_at(found, _digest(secret), client.credentials.now())


def token_at(found: TokenRecord, sha256: str, now: int) -> ShownToken | None:
    """Return a token by the digest of its secret, in its state at the time `now`.

    Return None if neither the current secret nor a former secret has this digest.
    """
    body: dict[str, Any] = found.body
    is_current = hmac.compare_digest(sha256, str(body["sha256"]))
    untils = [one["until"] for one in _formers(body) if hmac.compare_digest(sha256, str(one["sha256"]))]
    if body["revoked"] or not sha256 or not (is_current or untils):
        return None
    expires_at = body.get("expires_at") if is_current else untils[0]
    wrong = ""
    if expires_at is not None and expires_at <= now:
        when = shown_time(expires_at).isoformat(timespec="seconds")
        wrong = f"the token {found.name!r} expired at {when}: rotate it, or create a new one"
        if not is_current:
            wrong = f"this secret of the token {found.name!r} was replaced and expired at {when}: use the new secret"
    return ShownToken(name=found.name, grants=_grants(body), sha256=sha256, wrong=wrong)


@checked
async def has_tokens(client: AnyClient) -> bool:
    """Return whether a token was ever created.

    If so, every caller needs a token, even if all tokens are revoked or expired.
    """
    return await client.credentials.has_tokens()


async def has_valid_tokens(client: AnyClient) -> bool:
    """Return whether a token is valid now."""
    now = client.credentials.now()
    async for found in client.credentials.tokens():
        expires_at = found.body.get("expires_at")
        if not found.body["revoked"] and (expires_at is None or expires_at > now):
            return True
    return False


async def _found(client: AnyClient, name: str) -> TokenRecord:
    found = await client.credentials.token(name)
    if found is None:
        raise RecordNotFound(f"there is no token {name!r:.80}", kind="token", name=name)
    return found


def _formers(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the secrets from before rotations, newest first. Each has the form {"sha256", "until"}. Earlier versions
    of Perdure wrote no `earlier`, and read only `former`.
    """
    former = body.get("former")
    return [] if former is None else [former, *body.get("earlier", ())]


def _still_valid(name: str, body: dict[str, Any], now: int) -> list[dict[str, Any]]:
    """Return the former secrets that a rotation keeps. Raises InvalidArguments if there are too many."""
    found = [one for one in _formers(body) if one["until"] > now]
    if len(found) >= _FORMER_MAX:
        raise InvalidArguments(
            f"the token {name!r} has {len(found) + 1} valid secrets; rotate it later, or without an overlap, which ends"
            " all secrets but the new one"
        )
    return found


def _lasts_us(expires: Duration | None) -> int | None:
    if expires is None:
        return None
    lasts = span_of(expires, "expires")
    if not timedelta(0) < lasts <= LASTS_MAX:
        raise InvalidArguments(f"expires must be more than 0 and at most {LASTS_MAX.days} days, not {expires}")
    return lasts // _MICROSECOND


def _body(grants: Grants, sha256: str, now: int, lasts_us: int | None, change: str) -> dict[str, Any]:
    expires_at = None if lasts_us is None else now + lasts_us
    return {
        "change": change,
        "scopes": [str(one) for one in grants.granted],
        "sha256": sha256,
        "revoked": False,
        "expires_at": expires_at,
        "lasts_us": lasts_us,
    }


def _grants(body: dict[str, Any]) -> Grants:
    """Return the scopes of a token. Earlier versions of Perdure stored a single scope."""
    return parse_scopes(body["scopes"] if "scopes" in body else body["scope"])


def _view(found: TokenRecord) -> TokenView:
    body: dict[str, Any] = found.body
    grants = _grants(body)
    expires_at = body.get("expires_at")
    untils = [one["until"] for one in _formers(body)]
    return TokenView(
        name=found.name,
        scope=str(grants),
        scopes=[str(one) for one in grants.granted],
        revoked=body["revoked"],
        made_by=found.actor,
        at=found.at,
        expires_at=None if expires_at is None else shown_time(expires_at),
        used_at=found.used_at,
        overlap_until=shown_time(max(untils)) if untils else None,
    )


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()


__all__ = [
    "Scope",
    "ShownToken",
    "TokenView",
    "find_token",
    "has_tokens",
    "has_valid_tokens",
    "make_token",
    "revoke_token",
    "rotate_token",
    "token_at",
    "tokens",
]
