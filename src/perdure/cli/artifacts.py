"""`perdure artifacts`: named results of runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.commands import command, group
from perdure.cli.errors import Code, Refusal
from perdure.cli.formats import ago, size
from perdure.cli.terminal import Terminal

if TYPE_CHECKING:
    from perdure.api.artifacts import ArtifactView
    from perdure.engine import AnyClient

Name = Annotated[str | None, typer.Argument(metavar="NAME", help="The artifact's name.")]
Version = Annotated[int | None, typer.Option("--version", min=1, help="A version. Default: the newest.")]
Id = Annotated[str | None, typer.Option("--id", help="The artifact's id, instead of a name.")]


def add_to(app: typer.Typer) -> None:
    artifacts = group(app, "artifacts", "Named results of runs.")
    _add_list(artifacts)
    _add_show(artifacts)
    _add_save(artifacts)


def _add_list(artifacts: typer.Typer) -> None:
    @command(artifacts, "list")
    async def list_artifacts(
        terminal: Terminal,
        name: Annotated[str | None, typer.Option("--name", help="Only artifacts of this name.")] = None,
        run: Annotated[str | None, typer.Option("--run", metavar="ID", help="Only artifacts of this run.")] = None,
        type: Annotated[str | None, typer.Option("--type", help="Only artifacts of this type.")] = None,
        staged: Annotated[bool, typer.Option("--staged", help="Also artifacts of runs that have not ended.")] = False,
        after: Annotated[str | None, typer.Option("--after", metavar="ID", help="List those after this one.")] = None,
        limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="List at most this many.")] = 100,
    ) -> None:
        """List artifacts, newest first, without their content."""
        async with terminal.client() as client:
            found = await client.artifacts.list(name=name, run=run, type=type, staged=staged, after=after, limit=limit)
        if terminal.as_json:
            terminal.document({"artifacts": found})
            return
        rows = [
            (
                one.id,
                one.name,
                one.version or "staged",
                one.type,
                one.media_type,
                size(one.size) if terminal.is_tty else one.size,
                ago(one.staged_at) if terminal.is_tty else one.staged_at,
                one.run_id,
            )
            for one in found
        ]
        columns = ("id", "name", "version", "type", "media type", "size", "staged", "run")
        terminal.table(columns, rows, empty="no artifact matches")


def _add_show(artifacts: typer.Typer) -> None:
    @command(artifacts, "show")
    async def show(terminal: Terminal, name: Name = None, version: Version = None, id: Id = None) -> None:
        """Show an artifact, without its content.

        The output has the artifact's type and size, and the run and step that made it."""
        async with terminal.client() as client:
            found = await _found(client, name, version, id)
        if terminal.as_json:
            terminal.document({"artifact": found})
            return
        terminal.fields((field, getattr(found, field)) for field in found.__struct_fields__)


def _add_save(artifacts: typer.Typer) -> None:
    @command(artifacts, "save")
    async def save(
        terminal: Terminal,
        name: Name = None,
        version: Version = None,
        id: Id = None,
        output: Annotated[
            str | None, typer.Option("--output", "-o", help="The file, or - for standard output.")
        ] = None,
        force: Annotated[bool, typer.Option("--force", help="Overwrite a file that exists.")] = False,
    ) -> None:
        """Save an artifact's content to a file.

        --output names the file; by default it has the artifact's name. If the command fails, it leaves no file."""
        async with terminal.client() as client:
            found = await _found(client, name, version, id)
            if output == "-":
                async for part in client.artifacts.open(found.id):
                    sys.stdout.buffer.write(part)
                sys.stdout.buffer.flush()
                return
            path = Path(output) if output is not None else Path(_file_name(found.name))
            await _save(client, found.id, path, force=force)
        if terminal.as_json:
            terminal.document({"artifact": found, "path": str(path)})
        else:
            terminal.line(str(path), found.size)


async def _found(client: AnyClient, name: str | None, version: int | None, id: str | None) -> ArtifactView:
    if (name is None) == (id is None):
        raise Refusal("name one artifact", "give its name, or --id ID")
    return await (client.artifacts.get(name, version) if id is None else client.artifacts.get(id=id))


async def _save(client: AnyClient, id: str, path: Path, *, force: bool) -> None:
    if path.exists() and not force:  # noqa: ASYNC240 - nothing else runs on the event loop
        raise Refusal(
            f"{path} exists already",
            "name another file with --output, or overwrite this one with --force",
            code=Code.CONFLICT,
            kind="file_exists",
        )
    part_path = path.with_name(f".{path.name}.part")
    try:
        with part_path.open("wb") as file:
            async for part in client.artifacts.open(id):
                file.write(part)
        part_path.replace(path)
    except OSError as error:
        raise Refusal(f"cannot write {path}: {error}", code=Code.FAILED, kind="cannot_write") from error
    finally:
        part_path.unlink(missing_ok=True)


def _file_name(name: str) -> str:
    """Return a file name that is made from an artifact's name. The file name never leads to another folder."""
    plain = "".join(letter if letter.isalnum() or letter in "-_. " else "_" for letter in name).strip(". ")
    return plain or "artifact"


__all__ = ["add_to"]
