"""What SQLite does for one of many events that a run has yet to read, counted in steps of its machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from perdure.storage.sqlite.connection import connect_writer
from perdure.storage.sqlite.queries import QUERIES, READ_EVENTS

INSERT = """
    insert into events (
        number, id, run_id, position, option, shared, consumed, name, expires_at, fallback, actor, at, fields, value
    )
    values (?, ?, 'r-1', ?, 0, 0, 1, 'a', 9, 'discard', '', 0, '{}', '')
"""
SIZES = (100, 1_000)


Statement = tuple[str, Mapping[str, object] | Sequence[object]]


def steps_with(size: int, folder: Path, statements: Sequence[Statement]) -> int:
    """How many steps SQLite takes for these statements, where a run has so many events; the first one has won."""
    folder.mkdir(exist_ok=True)
    connection = connect_writer(folder / f"{size}.db")
    connection.execute("pragma foreign_keys = off")
    rows = [(number + 1, f"e-{number}", None if number else "1") for number in range(size)]
    connection.executemany(INSERT, rows)
    done: list[None] = []
    connection.set_progress_handler(partial(done.append, None), 1)
    for sql, variables in statements:
        connection.execute(sql, variables).fetchall()
    connection.set_progress_handler(None, 1)
    connection.close()
    return len(done)


@pytest.mark.parametrize("name", ["give_event", "read_events", "note_reads", "free_event", "delete_event", "freed"])
@pytest.mark.parametrize("place", ["first", "last"])
def test_one_event_of_a_run_is_found_without_looking_at_the_others(name: str, place: str, tmp_path: Path) -> None:
    steps: list[int] = []
    for size in SIZES:
        event_id = "e-0" if place == "first" else f"e-{size - 1}"
        named = {"position": "2", "option": 0, "run_id": "r-1", "id": event_id, "ids": "[]", "cleared": "[]"}
        named["positions"] = '[["r-1", "1"]]'
        variables = ("r-1", event_id) if "?" in QUERIES[name] else named
        steps.append(steps_with(size, tmp_path, [(QUERIES[name], variables)]))
    assert steps[1] <= steps[0] + 20


def test_many_events_that_are_read_together_take_no_more_steps_each_than_one(tmp_path: Path) -> None:
    one = steps_with(1_000, tmp_path / "one", READ_EVENTS.executions([("r-1", "e-0")]))
    many = steps_with(1_000, tmp_path / "many", READ_EVENTS.executions([("r-1", f"e-{n}") for n in range(128)]))
    assert many <= 128 * one
