"""`perdure tokens`: who may use the HTTP API, and for what."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.desk import Desk
from perdure.cli.failures import Code, Refusal
from perdure.cli.serving import http_extra
from perdure.cli.settings import actor
from perdure.cli.texts import ago
from perdure.cli.verbs import group, verb

Name = Annotated[str, typer.Argument(metavar="NAME", help="The token's name, which is the actor in the audit trail.")]
_SCOPES = ("read", "operate", "admin")


def add_to(app: typer.Typer) -> None:
    tokens = group(app, "tokens", "Who may use the HTTP API, and for what.")

    @verb(tokens, "list")
    async def list_tokens(desk: Desk) -> None:
        """List all tokens that were made, without their secrets."""
        http = http_extra()
        async with desk.client() as client:
            found = await http.tokens(client)
        if desk.as_json:
            desk.document({"tokens": found})
            return
        rows = [
            (
                one.name,
                one.scope,
                "revoked" if one.revoked else "valid",
                one.made_by,
                ago(one.at) if desk.is_terminal else one.at,
            )
            for one in found
        ]
        desk.table(("name", "scope", "state", "by", "since"), rows, empty="there are no tokens")

    @verb(tokens, "create")
    async def create(
        desk: Desk,
        name: Name,
        scope: Annotated[
            str,
            typer.Option(
                "--scope",
                help="read: look; operate: and start, send, change; admin: and make tokens.",
                autocompletion=lambda: list(_SCOPES),
            ),
        ] = "read",
        replace: Annotated[bool, typer.Option("--replace", help="Also if there is one: it is valid no more.")] = False,
    ) -> None:
        """Make a token, and show it this once. After the first one everybody needs one."""
        http = http_extra()
        async with desk.client() as client:
            if not replace and any(one.name == name and not one.revoked for one in await http.tokens(client)):
                raise Refusal(
                    f"there is a token {name!r}, which would be valid no more",
                    "choose another name, or say --replace",
                    code=Code.CONFLICT,
                    kind="token_exists",
                )
            made = await http.make_token(client, name, scope, actor=actor())
        if desk.as_json:
            desk.document({"name": name, "scope": scope, "token": made})
            return
        desk.say(made)
        desk.aside("it is not shown again; send it as Authorization: Bearer …")

    @verb(tokens, "revoke")
    async def revoke(desk: Desk, name: Name) -> None:
        """Make a token invalid, for good, from the next request on."""
        http = http_extra()
        async with desk.client() as client:
            revoked = await http.revoke_token(client, name, actor=actor())
        if desk.as_json:
            desk.document({"token": revoked})
            return
        desk.say(f"revoked {name}")


__all__ = ["add_to"]
