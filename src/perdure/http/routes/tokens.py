"""Tokens: create, list, rotate and revoke them."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from litestar import Router, delete, get, post
from litestar.params import JSONBody
from msgspec import Meta, Struct

from perdure.errors import InvalidArguments, RecordNotFound
from perdure.http.access import administers, caller_of
from perdure.http.dependencies import Asked, TheClient
from perdure.http.params import Body, Id
from perdure.http.problems import no
from perdure.http.scopes import parse_scopes
from perdure.http.tokens import LASTS_MAX, TokenView, make_token, revoke_token, rotate_token, tokens

ScopeText = Annotated[str, Meta(max_length=1_100, pattern=r"^(read|operate|admin)(:.+)?$")]
_SECONDS_MAX = int(LASTS_MAX.total_seconds())
Lasting = Annotated[int, Meta(ge=1, le=_SECONDS_MAX)]


class NewToken(Body, frozen=True, kw_only=True):
    """A token to create. Its name may have lower-case letters, digits, dots and hyphens. The audit trail shows the name
    as the actor. `scope` is one scope or several: read, operate or admin. A scope may be only for some runs:
    operate:workflow=checkout or read:tag=tenant=acme. Without `expires_s` the token is valid until it is revoked.
    """

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
    scope: ScopeText | Annotated[list[ScopeText], Meta(min_length=1, max_length=50)]
    expires_s: Lasting | None = None


class Rotation(Body, frozen=True, kw_only=True):
    """How long the old secret stays valid, and how long the new secret is valid. By default, the new secret is valid
    for the same time as the old secret was when it was created.
    """

    overlap_s: Annotated[int, Meta(ge=0, le=_SECONDS_MAX)] = 0
    expires_s: Lasting | None = None


class MadeToken(Struct, frozen=True, kw_only=True):
    """A token with its secret. No other response has the secret."""

    name: str
    scope: str
    token: str


@get("/", guards=[administers], responses=no())
async def list_tokens(client: TheClient) -> list[TokenView]:
    """List all tokens, including revoked and expired tokens, without their secrets."""
    return await tokens(client)


@post("/", guards=[administers], responses=no(InvalidArguments, changes=True))
async def new_token(request: Asked, client: TheClient, data: JSONBody[NewToken]) -> MadeToken:
    """Create a token. It replaces a token of the same name. After the first token is created, every caller needs a
    token."""
    actor = caller_of(request).name
    made = await make_token(client, data.name, data.scope, expires=_seconds(data.expires_s), actor=actor)
    return MadeToken(name=data.name, scope=str(parse_scopes(data.scope)), token=made)


@post(
    "/{name:str}/rotate",
    guards=[administers],
    status_code=200,
    responses=no(RecordNotFound, InvalidArguments, changes=True),
)
async def change_secret(request: Asked, client: TheClient, name: Id, data: JSONBody[Rotation]) -> MadeToken:
    """Give a token a new secret. Its scopes stay the same. The old secret stays valid during the overlap."""
    made = await rotate_token(
        client,
        name,
        overlap=timedelta(seconds=data.overlap_s),
        expires=_seconds(data.expires_s),
        actor=caller_of(request).name,
    )
    scope = next((one.scope for one in await tokens(client) if one.name == name), "")
    return MadeToken(name=name, scope=scope, token=made)


@delete("/{name:str}", guards=[administers], status_code=200, responses=no(RecordNotFound, changes=True))
async def end_token(request: Asked, client: TheClient, name: Id) -> TokenView:
    """Revoke a token for good."""
    return await revoke_token(client, name, actor=caller_of(request).name)


def _seconds(seconds: int | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


router = Router("/tokens", route_handlers=[list_tokens, new_token, change_secret, end_token], tags=["tokens"])

__all__ = ["router"]
