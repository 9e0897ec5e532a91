"""API tokens: who may ask, for what, and until when. They are in the store, so every server and every process has the
same.

A token is shown once, when it is made; the store has only the SHA-256 of its secret, which has 256 bits of chance and
needs no slow hash. Whoever changes one adds a version, which counts from the next request on. A token that is rotated
has a new secret. Each former secret stays valid for the overlap that its rotation gave it, so that programs can be
given the new one in peace; a rotation without an overlap ends all former secrets at once.
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
# Actors in audit trails that are no token. A token of this name would do things in their name.
RESERVED: Final = frozenset({"api", "cli", "dashboard", "engine", "http", "oidc", "perdure", "startup"})


class TokenView(Struct, frozen=True, kw_only=True):
    """A token without its secret. `made_by` is who made, rotated or revoked it last, at `at`. `used_at` is when it was
    last shown, to the minute. Until `overlap_until` at least one secret from before a rotation is valid too."""

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
    """A token that somebody shows, and that fits. `wrong` says why it is not valid all the same; empty if it is."""

    name: str
    grants: Grants
    sha256: str  # of the secret that was shown
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
    """Make a token, good for one scope or several; it is not to be had again. It is valid for as long as `expires`
    says, or until it is revoked. One of the same name is replaced, and no longer valid. Raises InvalidArguments."""
    if _NAME.fullmatch(name) is None:
        raise InvalidArguments(
            "a token's name has up to 63 small letters, digits, dots and hyphens, and begins with a letter or a digit, "
            f"not {name!r:.80}"
        )
    if name in RESERVED:
        raise InvalidArguments(f"{name!r} is a name of Perdure's own in the audit trail; choose another for the token")
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
    """Give a token a new secret; it is not to be had again. The old one stays valid for the `overlap`, but not for
    longer than it would have been; secrets of earlier rotations keep the overlap that they were given. Without an
    overlap the old secret and all earlier ones end at once. The new one is valid for as long as `expires` says, or as
    long as the old one was made for. Raises RecordNotFound, and InvalidArguments if the token is revoked, or has more
    than ten former secrets that are still valid."""
    overlap = span_of(overlap, "overlap")
    if overlap > LASTS_MAX:
        raise InvalidArguments(f"an overlap is between 0 and {LASTS_MAX.days} days, not {overlap}")
    lasts_us = _lasts_us(expires)
    kept = client.credentials
    while True:
        found = await _found(client, name)
        was = found.body
        if was["revoked"]:
            raise InvalidArguments(f"the token {name!r} is revoked; make a new one")
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
    """Make a token invalid, for good. Raises RecordNotFound."""
    while True:
        found = await _found(client, name)
        if found.body["revoked"]:
            return _view(found)
        body = {**_body(_grants(found.body), "", client.credentials.now(), None, "revoked"), "revoked": True}
        await client.credentials.put_token(name, body, version=found.version + 1, actor=actor)


@checked
async def tokens(client: AnyClient) -> list[TokenView]:
    """All tokens there ever were, by name."""
    return [_view(found) async for found in client.credentials.tokens()]


async def find_token(client: AnyClient, token: str) -> ShownToken | None:
    """The token that somebody shows, valid or not; None if there is none with this secret."""
    prefix, _, rest = token.partition("_")
    name, _, secret = rest.partition("_")
    if prefix != _PREFIX or _NAME.fullmatch(name) is None or not secret:
        return None
    found = await client.credentials.token(name)
    return None if found is None else token_at(found, _digest(secret), client.credentials.now())


def token_at(found: TokenRecord, sha256: str, now: int) -> ShownToken | None:
    """A token by the digest of a secret, at a time; None if it has, and had a moment ago, another secret."""
    body: dict[str, Any] = found.body
    is_current = hmac.compare_digest(sha256, str(body["sha256"]))
    untils = [one["until"] for one in _formers(body) if hmac.compare_digest(sha256, str(one["sha256"]))]
    if body["revoked"] or not sha256 or not (is_current or untils):
        return None
    expires_at = body.get("expires_at") if is_current else untils[0]
    wrong = ""
    if expires_at is not None and expires_at <= now:
        when = shown_time(expires_at).isoformat(timespec="seconds")
        wrong = f"the token {found.name!r} expired at {when}: have it rotated, or make a new one"
        if not is_current:
            wrong = f"this secret of the token {found.name!r} was replaced, and was valid until {when}: use the new one"
    return ShownToken(name=found.name, grants=_grants(body), sha256=sha256, wrong=wrong)


@checked
async def has_tokens(client: AnyClient) -> bool:
    """Whether a token was ever made: from then on nobody gets in without one, also if it was revoked or has expired."""
    return await client.credentials.has_tokens()


async def has_valid_tokens(client: AnyClient) -> bool:
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
    """Secrets from before rotations, the newest first: {"sha256", "until"}. `earlier` is not there in what earlier
    versions have written, and they read `former` alone."""
    former = body.get("former")
    return [] if former is None else [former, *body.get("earlier", ())]


def _still_valid(name: str, body: dict[str, Any], now: int) -> list[dict[str, Any]]:
    """The former secrets that a rotation keeps. Raises InvalidArguments if they are too many."""
    found = [one for one in _formers(body) if one["until"] > now]
    if len(found) >= _FORMER_MAX:
        raise InvalidArguments(
            f"the token {name!r} has {len(found) + 1} secrets that are valid; rotate it without an overlap, which ends "
            "all but the new one, or later"
        )
    return found


def _lasts_us(expires: Duration | None) -> int | None:
    if expires is None:
        return None
    lasts = span_of(expires, "expires")
    if not timedelta(0) < lasts <= LASTS_MAX:
        raise InvalidArguments(f"a token lasts for more than nothing, and up to {LASTS_MAX.days} days, not {expires}")
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
    """Tokens of earlier versions have one scope."""
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
