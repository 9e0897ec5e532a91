"""`perdure tokens`: who may use the HTTP API, and for what."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.desk import Desk
from perdure.cli.failures import Code, Refusal
from perdure.cli.params import length
from perdure.cli.serve import http_extra
from perdure.cli.settings import actor
from perdure.cli.texts import ago
from perdure.cli.verbs import group, verb

if TYPE_CHECKING:
    from perdure.http import TokenView

Name = Annotated[str, typer.Argument(metavar="NAME", help="The token's name, which is the actor in the audit trail.")]
Expires = Annotated[
    str | None,
    typer.Option("--expires", metavar="SPAN", help="How long it is valid: 12h, 30d. Until it is revoked, else."),
]
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

        def when(at: datetime | None) -> str | datetime:
            if at is None:
                return "-"
            return ago(at) if desk.is_terminal else at

        rows = [
            (one.name, one.scope, _state(one), one.made_by, when(one.at), when(one.expires_at), when(one.used_at))
            for one in found
        ]
        heads = ("name", "scope", "state", "by", "since", "expires", "used")
        desk.table(heads, rows, empty="there are no tokens")

    @verb(tokens, "create")
    async def create(
        desk: Desk,
        name: Name,
        scope: Annotated[
            list[str],
            typer.Option(
                "--scope",
                help="read: look; operate: and start, send, change; admin: and make tokens. For some runs only: "
                "operate:workflow=NAME, read:tag=KEY=VALUE. May be given several times.",
                autocompletion=lambda: list(_SCOPES),
            ),
        ] = ["read"],  # noqa: B006 - typer copies it
        expires: Expires = None,
        replace: Annotated[bool, typer.Option("--replace", help="Also if there is one: it is valid no more.")] = False,
    ) -> None:
        """Make a token, and show it this once. After the first one everybody needs one."""
        http = http_extra()
        lasts = None if expires is None else length(expires, "--expires")
        async with desk.client() as client:
            if not replace and any(one.name == name and not one.revoked for one in await http.tokens(client)):
                raise Refusal(
                    f"there is a token {name!r}, which would be valid no more",
                    "choose another name, or say --replace; `perdure tokens rotate` gives it a new secret",
                    code=Code.CONFLICT,
                    kind="token_exists",
                )
            made = await http.make_token(client, name, scope, expires=lasts, actor=actor())
        if desk.as_json:
            desk.document({"name": name, "scope": ", ".join(scope), "token": made})
            return
        desk.say(made)
        desk.aside("it is not shown again; send it as Authorization: Bearer …")

    @verb(tokens, "rotate")
    async def rotate(
        desk: Desk,
        name: Name,
        overlap: Annotated[
            str, typer.Option("--overlap", metavar="SPAN", help="How long the old secret stays valid: 1h, 2d.")
        ] = "0s",
        expires: Expires = None,
    ) -> None:
        """Give a token a new secret, and show it this once. It lasts as long as the old one was made for, or as
        --expires says."""
        http = http_extra()
        lasts = None if expires is None else length(expires, "--expires")
        both = length(overlap, "--overlap")
        async with desk.client() as client:
            made = await http.rotate_token(client, name, overlap=both, expires=lasts, actor=actor())
        if desk.as_json:
            desk.document({"name": name, "token": made})
            return
        desk.say(made)
        desk.aside(
            "it is not shown again; " + (f"the old one is valid for {overlap}" if both else "the old one is gone")
        )

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


def _state(token: TokenView) -> str:
    if token.revoked:
        return "revoked"
    is_over = token.expires_at is not None and token.expires_at <= datetime.now(UTC)
    return "expired" if is_over else "valid"


__all__ = ["add_to"]
