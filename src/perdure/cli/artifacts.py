"""`perdure artifacts`: named results of runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.desk import Desk
from perdure.cli.failures import Code, Refusal
from perdure.cli.texts import ago, size
from perdure.cli.verbs import group, verb

if TYPE_CHECKING:
    from perdure.api.artifacts import ArtifactView
    from perdure.engine import AnyClient

Name = Annotated[str | None, typer.Argument(metavar="NAME", help="The artifact's name.")]
Version = Annotated[int | None, typer.Option("--version", min=1, help="One of its versions; else the newest.")]
Id = Annotated[str | None, typer.Option("--id", help="One artifact by its id, instead of a name.")]


def add_to(app: typer.Typer) -> None:
    artifacts = group(app, "artifacts", "Named results of runs.")

    @verb(artifacts, "list")
    async def list_artifacts(
        desk: Desk,
        name: Annotated[str | None, typer.Option("--name", help="Only of this name.")] = None,
        run: Annotated[str | None, typer.Option("--run", metavar="ID", help="Only of this run.")] = None,
        type: Annotated[str | None, typer.Option("--type", help="Only of this type.")] = None,
        staged: Annotated[bool, typer.Option("--staged", help="Those of runs under way too.")] = False,
        after: Annotated[str | None, typer.Option("--after", metavar="ID", help="Go on after this one.")] = None,
        limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many at most.")] = 100,
    ) -> None:
        """List artifacts, the newest first, without their content."""
        async with desk.client() as client:
            found = await client.artifacts.list(name=name, run=run, type=type, staged=staged, after=after, limit=limit)
        if desk.as_json:
            desk.document({"artifacts": found})
            return
        rows = [
            (
                one.id,
                one.name,
                one.version or "staged",
                one.type,
                one.media_type,
                size(one.size) if desk.is_terminal else one.size,
                ago(one.staged_at) if desk.is_terminal else one.staged_at,
                one.run_id,
            )
            for one in found
        ]
        columns = ("id", "name", "version", "type", "media type", "size", "staged", "run")
        desk.table(columns, rows, empty="no artifact is like that")

    @verb(artifacts, "show")
    async def show(desk: Desk, name: Name = None, version: Version = None, id: Id = None) -> None:
        """Show what an artifact is and where it is from. Its content: save."""
        async with desk.client() as client:
            found = await _found(client, name, version, id)
        if desk.as_json:
            desk.document({"artifact": found})
            return
        desk.fields((field, getattr(found, field)) for field in found.__struct_fields__)

    @verb(artifacts, "save")
    async def save(
        desk: Desk,
        name: Name = None,
        version: Version = None,
        id: Id = None,
        output: Annotated[str | None, typer.Option("--output", "-o", help="The file; - for standard output.")] = None,
        force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    ) -> None:
        """Save an artifact's content: to a file of its name, or of the one given. A broken one leaves no file."""
        async with desk.client() as client:
            found = await _found(client, name, version, id)
            if output == "-":
                async for part in client.artifacts.open(found.id):
                    sys.stdout.buffer.write(part)
                sys.stdout.buffer.flush()
                return
            path = Path(output) if output is not None else Path(_file_name(found.name))
            await _save(client, found.id, path, force=force)
        if desk.as_json:
            desk.document({"artifact": found, "path": str(path)})
        else:
            desk.line(str(path), found.size)


async def _found(client: AnyClient, name: str | None, version: int | None, id: str | None) -> ArtifactView:
    if (name is None) == (id is None):
        raise Refusal("nothing says which artifact", "give its name, or --id ID")
    return await (client.artifacts.get(name, version) if id is None else client.artifacts.get(id=id))


async def _save(client: AnyClient, id: str, path: Path, *, force: bool) -> None:
    if path.exists() and not force:  # noqa: ASYNC240 - nobody else waits for this loop
        raise Refusal(
            f"{path} is there already",
            "choose another with --output, or --force",
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
        raise Refusal(f"{path} cannot be written: {error}", code=Code.FAILED, kind="cannot_write") from error
    finally:
        part_path.unlink(missing_ok=True)


def _file_name(name: str) -> str:
    """An artifact's name as that of a file here, and nowhere else."""
    plain = "".join(letter if letter.isalnum() or letter in "-_. " else "_" for letter in name).strip(". ")
    return plain or "artifact"


__all__ = ["add_to"]
