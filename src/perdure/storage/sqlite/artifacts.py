"""Artifacts: writes inside a commit, and reads."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path
from typing import Final

from msgspec.structs import asdict

from perdure.kernel.artifacts import LAP, Artifact, ArtifactWrites
from perdure.kernel.batch import Batch
from perdure.ports import ArtifactFilter
from perdure.storage.damage import shown_artifact
from perdure.storage.sqlite.database import SqliteSlice
from perdure.storage.sqlite.lists import within_variables
from perdure.storage.sqlite.queries import load_queries
from perdure.storage.sqlite.rows import Row, json_text

QUERIES: Final = load_queries(Path(__file__).with_name("artifacts.sql").read_text("utf-8"))


def write(connection: sqlite3.Connection, batch: Batch) -> None:
    """Write the batch's changes to artifacts."""
    added = batch.artifacts
    if added is not None:
        _bring(connection, added)
    for run_id, first, _ in batch.archive:
        _drop(connection, run_id, first)
    for run_id in batch.continued:
        connection.execute(QUERIES["outdate_artifacts"], {"run_id": run_id, "lap": LAP})
    if added is not None:
        for run_id, fate in _having_artifacts(connection, added.fates).items():
            _end(connection, run_id, fate, batch.at)


def _bring(connection: sqlite3.Connection, added: ArtifactWrites) -> None:
    for chunk in added.chunks:
        connection.execute(QUERIES["insert_chunk"], asdict(chunk))
    for artifact_id in added.chunks_gone:
        connection.execute(QUERIES["drop_chunks"], {"id": artifact_id})
    for artifact in added.artifacts:
        if connection.execute(QUERIES["insert_artifact"], asdict(artifact)).rowcount == 0 and artifact.chunks:
            connection.execute(QUERIES["drop_chunks"], {"id": artifact.id})


def _drop(connection: sqlite3.Connection, run_id: str, first: int) -> None:
    if connection.execute(QUERIES["drop_artifacts"], {"run_id": run_id, "first": first}).rowcount:
        connection.execute(QUERIES["drop_stray_chunks"], {"run_id": run_id})


def _having_artifacts(connection: sqlite3.Connection, fates: dict[str, str]) -> dict[str, str]:
    """Return the fates of those runs that have artifacts, in the order of the batch. Most runs have no artifacts."""
    if not fates:
        return fates
    found = connection.execute(QUERIES["having_artifacts"], {"ids": json_text(list(fates))}).fetchall()
    having = {run_id for (run_id,) in found}
    return {run_id: fate for run_id, fate in fates.items() if run_id in having}


def _end(connection: sqlite3.Connection, run_id: str, fate: str, at: int) -> None:
    if fate == "gone":
        connection.execute(QUERIES["drop_artifacts"], {"run_id": run_id, "first": -(2**63)})
    elif fate == "published":
        for artifact_id, name in connection.execute(QUERIES["staged"], {"run_id": run_id}).fetchall():
            connection.execute(QUERIES["publish"], {"id": artifact_id, "name": name, "at": at})
    else:
        connection.execute(QUERIES["move_artifacts"], {"run_id": run_id, "state": fate})
    if fate != "staged":
        connection.execute(QUERIES["drop_stray_chunks"], {"run_id": run_id})


# ---------------------------------------------------------------------------------------------------------------------
# Reading


def artifacts(connection: sqlite3.Connection, *, wanted: ArtifactFilter) -> list[Artifact]:
    if wanted.run_id is not None:
        query = "artifacts_of_run"
    elif wanted.name is not None:
        query = "artifacts_of_name"
    else:
        query = "artifacts_all" if wanted.type is None else "artifacts_of_type"
    variables = within_variables(wanted)
    return [artifact_of(row) for row in connection.execute(QUERIES[query], variables)]


def artifact(connection: sqlite3.Connection, *, id: str | None, name: str, version: int | None) -> Artifact | None:
    if id is not None:
        query = "artifact"
    else:
        query = "newest_artifact" if version is None else "artifact_version"
    row = connection.execute(QUERIES[query], {"id": id, "name": name, "version": version}).fetchone()
    return None if row is None else artifact_of(row)


def chunk(connection: sqlite3.Connection, *, artifact_id: str, number: int) -> bytes | None:
    row = connection.execute(QUERIES["chunk"], {"artifact_id": artifact_id, "number": number}).fetchone()
    return None if row is None else row[0]


def artifact_of(row: Row) -> Artifact:
    return shown_artifact(dict(zip(Artifact.__struct_fields__, row, strict=False)), row)


class SqliteArtifacts(SqliteSlice):
    """Artifacts."""

    async def artifacts(self, wanted: ArtifactFilter) -> list[Artifact]:
        return await self._db.read(partial(artifacts, wanted=wanted))

    async def artifact(self, *, id: str | None = None, name: str = "", version: int | None = None) -> Artifact | None:
        return await self._db.read(partial(artifact, id=id, name=name, version=version))

    async def chunk(self, artifact_id: str, number: int) -> bytes | None:
        return await self._db.read(partial(chunk, artifact_id=artifact_id, number=number))
