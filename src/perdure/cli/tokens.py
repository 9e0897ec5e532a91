"""`perdure tokens`: the tokens of the HTTP API and the dashboard."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.commands import command, group
from perdure.cli.errors import Code, Refusal
from perdure.cli.formats import ago
from perdure.cli.params import length
from perdure.cli.server import http_extra
from perdure.cli.settings import actor
from perdure.cli.terminal import Terminal

if TYPE_CHECKING:
    from perdure.http import TokenView

Name = Annotated[str, typer.Argument(metavar="NAME", help="The token's name. It is the actor in the audit trail.")]
Expires = Annotated[
    str | None,
    typer.Option(
        "--expires", metavar="SPAN", help="How long the token is valid: 12h, 30d. Default: until it is revoked."
    ),
]
_SCOPES = ("read", "operate", "admin")


def add_to(app: typer.Typer) -> None:
    tokens = group(app, "tokens", "Tokens for the HTTP API and the dashboard.")
    _add_list(tokens)
    _add_create(tokens)
    _add_rotate(tokens)
    _add_revoke(tokens)


def _add_list(tokens: typer.Typer) -> None:
    @command(tokens, "list")
    async def list_tokens(terminal: Terminal) -> None:
        """List all tokens, without their secrets.

        Revoked and expired ones are listed too."""
        http = http_extra()
        async with terminal.client() as client:
            found = await http.tokens(client)
        if terminal.as_json:
            terminal.document({"tokens": found})
            return

        def when(at: datetime | None) -> str | datetime:
            if at is None:
                return "-"
            return ago(at) if terminal.is_tty else at

        rows = [
            (one.name, one.scope, _state(one), one.made_by, when(one.at), when(one.expires_at), when(one.used_at))
            for one in found
        ]
        heads = ("name", "scope", "state", "by", "since", "expires", "used")
        terminal.table(heads, rows, empty="there are no tokens")


def _add_create(tokens: typer.Typer) -> None:
    @command(tokens, "create")
    async def create(
        terminal: Terminal,
        name: Name,
        scope: Annotated[
            list[str],
            typer.Option(
                "--scope",
                help="read: look at everything. operate: also start, send and change. admin: also make tokens. For "
                "some runs only: operate:workflow=NAME, read:tag=KEY=VALUE. Repeatable.",
                autocompletion=lambda: list(_SCOPES),
            ),
        ] = ["read"],  # noqa: B006 - typer copies it
        expires: Expires = None,
        replace: Annotated[bool, typer.Option("--replace", help="Replace a valid token of this name.")] = False,
    ) -> None:
        """Create a token, and show it once.

        After the first token is created, every caller needs a token."""
        http = http_extra()
        lasts = None if expires is None else length(expires, "--expires")
        async with terminal.client() as client:
            if not replace and any(one.name == name and not one.revoked for one in await http.tokens(client)):
                raise Refusal(
                    f"there is a valid token {name!r}, and creating another one of this name would end it",
                    "use another name, or --replace; to give it a new secret: perdure tokens rotate",
                    code=Code.CONFLICT,
                    kind="token_exists",
                )
            made = await http.make_token(client, name, scope, expires=lasts, actor=actor())
        if terminal.as_json:
            terminal.document({"name": name, "scope": ", ".join(scope), "token": made})
            return
        terminal.print_text(made)
        terminal.note("the token is not shown again; send it as Authorization: Bearer …")


def _add_rotate(tokens: typer.Typer) -> None:
    @command(tokens, "rotate")
    async def rotate(
        terminal: Terminal,
        name: Name,
        overlap: Annotated[
            str, typer.Option("--overlap", metavar="SPAN", help="How long the old secret stays valid: 1h, 2d.")
        ] = "0s",
        expires: Expires = None,
    ) -> None:
        """Give a token a new secret, and show it once.

        The new secret is valid for as long as --expires says. By default, it is valid for as long as the old secret was
        when it was created."""
        http = http_extra()
        lasts = None if expires is None else length(expires, "--expires")
        both = length(overlap, "--overlap")
        async with terminal.client() as client:
            made = await http.rotate_token(client, name, overlap=both, expires=lasts, actor=actor())
        if terminal.as_json:
            terminal.document({"name": name, "token": made})
            return
        terminal.print_text(made)
        terminal.note(
            "the token is not shown again; "
            + (f"the old secret stays valid for {overlap}" if both else "the old secret is no longer valid")
        )


def _add_revoke(tokens: typer.Typer) -> None:
    @command(tokens, "revoke")
    async def revoke(terminal: Terminal, name: Name) -> None:
        """Revoke a token for good. The token is invalid from the next request on."""
        http = http_extra()
        async with terminal.client() as client:
            revoked = await http.revoke_token(client, name, actor=actor())
        if terminal.as_json:
            terminal.document({"token": revoked})
            return
        terminal.print_text(f"revoked {name}")


def _state(token: TokenView) -> str:
    if token.revoked:
        return "revoked"
    is_over = token.expires_at is not None and token.expires_at <= datetime.now(UTC)
    return "expired" if is_over else "valid"


__all__ = ["add_to"]
