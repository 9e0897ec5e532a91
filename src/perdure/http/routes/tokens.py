"""Tokens: make them, list them, revoke them."""

from __future__ import annotations

from typing import Annotated

from litestar import Router, delete, get, post
from litestar.params import JSONBody
from msgspec import Meta, Struct

from perdure.errors import InvalidArguments, RecordNotFound
from perdure.http.access import administers, caller_of
from perdure.http.given import Asked, TheClient
from perdure.http.problems import no
from perdure.http.tokens import Scope, TokenView, make_token, revoke_token, tokens
from perdure.http.wanted import Body, Id


class NewToken(Body, frozen=True, kw_only=True):
    """Small letters, digits, dots and hyphens; the name is the actor in the audit trail."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
    scope: Scope


class MadeToken(Struct, frozen=True, kw_only=True):
    """The token, which is shown this once."""

    name: str
    scope: str
    token: str


@get("/", guards=[administers], responses=no())
async def list_tokens(client: TheClient) -> list[TokenView]:
    """All tokens there ever were, without their secrets."""
    return await tokens(client)


@post("/", guards=[administers], responses=no(InvalidArguments, changes=True))
async def new_token(request: Asked, client: TheClient, data: JSONBody[NewToken]) -> MadeToken:
    """Make a token. One of the same name is no longer valid. After the first one everybody needs one."""
    made = await make_token(client, data.name, data.scope, actor=caller_of(request).name)
    return MadeToken(name=data.name, scope=str(data.scope), token=made)


@delete("/{name:str}", guards=[administers], status_code=200, responses=no(RecordNotFound, changes=True))
async def end_token(request: Asked, client: TheClient, name: Id) -> TokenView:
    """Revoke a token, for good."""
    return await revoke_token(client, name, actor=caller_of(request).name)


router = Router("/tokens", route_handlers=[list_tokens, new_token, end_token], tags=["tokens"])

__all__ = ["router"]
