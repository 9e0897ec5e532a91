"""Runs read from the tables, under the database's lock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from perdure.kernel.cooperation import OperationRow
from perdure.kernel.runs import Run
from perdure.ports import Journal, LoadedRun
from perdure.storage.memory.database import MemoryDatabase

T = TypeVar("T")


def loaded(database: MemoryDatabase, run: Run) -> LoadedRun:
    return LoadedRun(
        run=run,
        waits=database.tables.waits_of(run.id),
        events=database.tables.of(run.id),
        forsaken=run.owner is not None and not database.is_alive(run.owner),
    )


def in_order(rows: Mapping[int, T]) -> list[T]:
    return [rows[seq] for seq in sorted(rows)]


def operation(database: MemoryDatabase, run_id: str) -> OperationRow | None:
    stored = database.runs.get(run_id)
    if stored is None:
        return None
    run, is_call = stored.run, stored.run.bond == "called"
    if run.model != "operation" and not is_call:
        return None
    return OperationRow(
        id=run.id,
        parent_id=run.parent_id,
        handler=run.workflow,
        status=run.status,
        origin=run.origin,
        bond=run.bond,
        output=stored.outcome.output if is_call else None,
        failure=stored.outcome.failure if is_call else None,
    )


def journals(database: MemoryDatabase, ids: Iterable[str]) -> dict[str, Journal]:
    """Return the journals from which runs are resumed. Unknown ids are left out."""
    return {
        one: Journal(
            database.runs[one].input,
            in_order(database.journal.get(one, {})),
            loaded(database, database.runs[one].run).waits,
        )
        for one in ids
        if one in database.runs
    }
