"""Reads of runs, in the reader's thread or inside a transaction of the writer."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Final

from perdure.errors import RowDamaged, RunNotFound
from perdure.kernel.events import Event
from perdure.kernel.rows import Entry, Staged, Wait
from perdure.kernel.runs import Hold
from perdure.ports import Journal, LoadedRun
from perdure.storage.damage import Readings, loaded
from perdure.storage.sqlite.queries import EVENTS, INPUTS, JOURNALS, QUERIES, RUNS, STAGED, WAITS
from perdure.storage.sqlite.rows import entry_of, event_of, json_text, run_of, shown_entry_of, staged_of, wait_of
from perdure.storage.sqlite.transaction import snapshot, transaction

_EVENT_RUN_AT: Final = Event.__struct_fields__.index("run_id")


def due_waits(connection: sqlite3.Connection, *, wanted: dict[str, Any], limit: int) -> list[tuple[int, str, bool]]:
    found: dict[str, int] = {}
    with closing(connection.execute(QUERIES["ripe_waits"], wanted)) as rows:
        for run_id, due_at in rows:
            if run_id not in found:
                if len(found) >= limit:
                    break
                found[run_id] = due_at
    return [(due_at, run_id, False) for run_id, due_at in found.items()]


def load(connection: sqlite3.Connection, *, ids: list[str]) -> list[LoadedRun]:
    with snapshot(connection):
        return load_now(connection, ids)


def load_now(connection: sqlite3.Connection, ids: list[str]) -> list[LoadedRun]:
    waits, events = _mailboxes(connection, ids)
    rows = RUNS.fetch(connection, {"ids": json_text(ids)})
    return [loaded(run_of(row), waits, events, forsaken=bool(row[-1])) for row in rows]


def mailboxes_now(
    connection: sqlite3.Connection, ids: list[str]
) -> list[tuple[str, tuple[Wait, ...], tuple[Event, ...]]]:
    """Return the waits of runs, and the events that were sent or given to these runs."""
    waits, events = _mailboxes(connection, ids)
    return [(run_id, waits.of(run_id), events.of(run_id)) for run_id in ids]


def _mailboxes(connection: sqlite3.Connection, ids: list[str]) -> tuple[Readings[Wait], Readings[Event]]:
    given = {"ids": json_text(ids)}
    waits, events = Readings(wait_of), Readings(event_of)
    for row in WAITS.fetch(connection, given):
        waits.add(row[0], row)
    for row in EVENTS.fetch(connection, given):
        events.add(row[_EVENT_RUN_AT], row)
    return waits, events


def children(connection: sqlite3.Connection, *, ids: list[str], stopped: bool) -> list[LoadedRun]:
    with snapshot(connection):
        rows = connection.execute(
            QUERIES["stopped_children" if stopped else "children"], {"ids": json_text(ids)}
        ).fetchall()
        return load_now(connection, [row[0] for row in rows])


def journal(connection: sqlite3.Connection, *, run_id: str) -> tuple[str, list[Entry]]:
    """Return a run's input and journal, for display. Raises RunNotFound."""
    given = {"ids": json_text([run_id])}
    with snapshot(connection):
        inputs = INPUTS.fetch(connection, given)
        entries = [shown_entry_of(row) for row in JOURNALS.fetch(connection, given)]
    if not inputs:
        raise RunNotFound(run_id)
    text = inputs[0][1]
    return (text if isinstance(text, str) else "null"), entries


def journals(connection: sqlite3.Connection, *, ids: list[str]) -> dict[str, Journal]:
    with snapshot(connection):
        return _journals(connection, ids, _waits(connection, {"ids": json_text(ids)}))


def load_whole(connection: sqlite3.Connection, *, ids: list[str]) -> dict[str, tuple[LoadedRun, Journal]]:
    with snapshot(connection):
        found = {one.run.id: one for one in load_now(connection, ids)}
        whole = _journals(connection, ids, {run_id: one.waits for run_id, one in found.items()})
    return {run_id: (found[run_id], journal) for run_id, journal in whole.items()}


def _journals(
    connection: sqlite3.Connection, ids: list[str], waits: Mapping[str, Sequence[Wait]]
) -> dict[str, Journal]:
    given = {"ids": json_text(ids)}
    inputs = INPUTS.fetch(connection, given)
    entry_rows = JOURNALS.fetch(connection, given)
    staged_rows = STAGED.fetch(connection, given)
    entries: dict[str, list[Entry]] = {}
    for row in entry_rows:
        entries.setdefault(row[0], []).append(entry_of(row))
    for run_id, text in inputs:
        if text is None:
            raise RowDamaged.at("payloads", run_id, "data", None, "the input of the run is gone")
    staged: dict[str, list[Staged]] = {}
    for row in staged_rows:
        staged.setdefault(row[0], []).append(staged_of(row))
    return {
        id: Journal(text, entries.get(id, []), tuple(waits.get(id, ())), staged=tuple(staged.get(id, ())))
        for id, text in inputs
    }


def _waits(connection: sqlite3.Connection, given: Mapping[str, str]) -> dict[str, list[Wait]]:
    waits: dict[str, list[Wait]] = {}
    for row in WAITS.fetch(connection, given):
        waits.setdefault(row[0], []).append(wait_of(row))
    return waits


def set_aside(connection: sqlite3.Connection, *, run_id: str, hold: Hold, engine_id: str, at: int) -> bool:
    """Put a hold on a damaged run, unless another living engine owns it. This runs in the writer's thread."""
    given = {"run_id": run_id, "kind": hold.kind, "hold": json_text(hold), "engine_id": engine_id}
    with transaction(connection):
        if connection.execute(QUERIES["set_aside"], given).rowcount == 0:
            return False
        audit = {"run_id": run_id, "kind": hold.kind, "reason": hold.reason, "at": at}
        connection.execute(QUERIES["audit_set_aside"], audit)
        return True
