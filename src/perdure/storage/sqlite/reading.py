"""Runs read from the file: in the reader's thread, or inside a transaction of the writer's."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from perdure.errors import InvariantViolated
from perdure.kernel.records import Entry, Event, Staged, Wait
from perdure.ports import Journal, LoadedRun
from perdure.storage.sqlite.queries import EVENTS, INPUTS, JOURNALS, QUERIES, RUNS, STAGED, WAITS
from perdure.storage.sqlite.rows import entry_of, event_of, json_text, run_of, staged_of, wait_of
from perdure.storage.sqlite.transaction import snapshot


def ripe_waits(connection: sqlite3.Connection, *, wanted: dict[str, Any], limit: int) -> list[tuple[int, str, bool]]:
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
    given = {"ids": json_text(ids)}
    waits = _waits(connection, given)
    events: dict[str, list[Event]] = {}
    for row in EVENTS.fetch(connection, given):
        event = event_of(row)
        events.setdefault(event.run_id or "", []).append(event)
    runs = [run_of(row) for row in RUNS.fetch(connection, given)]
    return [
        LoadedRun(run=run, waits=tuple(waits.get(run.id, ())), events=tuple(events.get(run.id, ()))) for run in runs
    ]


def children(connection: sqlite3.Connection, *, ids: list[str]) -> list[LoadedRun]:
    with snapshot(connection):
        rows = connection.execute(QUERIES["children"], {"ids": json_text(ids)}).fetchall()
        return load_now(connection, [row[0] for row in rows])


def journals(connection: sqlite3.Connection, *, ids: list[str]) -> dict[str, Journal]:
    given = {"ids": json_text(ids)}
    with snapshot(connection):
        inputs = INPUTS.fetch(connection, given)
        entry_rows = JOURNALS.fetch(connection, given)
        waits = _waits(connection, given)
        staged_rows = STAGED.fetch(connection, given)
    entries: dict[str, list[Entry]] = {}
    for row in entry_rows:
        entries.setdefault(row[0], []).append(entry_of(row))
    for run_id, text in inputs:
        if text is None:
            raise InvariantViolated(f"the input of run {run_id!r} is gone from the table payloads", run_id=run_id)
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
