"""What can be known from outside: the store's journal, read with plain sqlite3, held against what the witness saw."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

from msgspec import Struct
from witness import Sighting, sightings

Key = tuple[str, str]  # run id, position: together a step's idempotency key


class Seen(Struct, frozen=True):
    """The shop at one moment."""

    statuses: dict[str, str]  # run id -> status
    committed: dict[Key, str]  # entries of the journal -> step or timer
    sightings: list[Sighting]

    @property
    def running(self) -> dict[Key, str]:
        """Steps that began and have no entry yet."""
        started = {(one.run_id, one.position): one.step for one in self.sightings}
        return {key: step for key, step in started.items() if key not in self.committed}

    @property
    def completed(self) -> int:
        return sum(status == "succeeded" for status in self.statuses.values())


def look(store: Path, log: Path) -> Seen:
    """The shop now. The witness is read first: what is committed between the two looks must not count as running."""
    noted = sightings(log)
    if not store.exists():
        return Seen({}, {}, noted)
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True, timeout=5)) as connection:
        try:
            entries = connection.execute("select run_id, position, name from journal").fetchall()
            statuses = dict(connection.execute("select id, status from runs"))
        except sqlite3.OperationalError:  # The worker is just making the tables.
            return Seen({}, {}, noted)
    return Seen(statuses, {(run_id, position): name for run_id, position, name in entries}, noted)


class Verdict(Struct, frozen=True):
    """What the kill did, and whether the promise was kept."""

    orders: int
    completed: int
    attempts: int  # times that a step's code began to run
    caught: dict[Key, str]  # steps that the kill caught before their commit
    repeated: dict[Key, str]  # steps that ran in both processes
    broken: dict[Key, str]  # steps that ran although their entry was committed before the kill

    @property
    def kept(self) -> bool:
        return self.completed == self.orders and not self.broken and self.repeated == self.caught


def judge(orders: int, at_kill: Seen, at_end: Seen) -> Verdict:
    first = {(one.run_id, one.position) for one in at_end.sightings if one.process == 1}
    second = {(one.run_id, one.position): one.step for one in at_end.sightings if one.process == 2}
    return Verdict(
        orders=orders,
        completed=at_end.completed,
        attempts=len(at_end.sightings),
        caught=at_kill.running,
        repeated={key: step for key, step in second.items() if key in first},
        broken={key: step for key, step in second.items() if key in at_kill.committed},
    )


def by_name(steps: dict[Key, str]) -> str:
    """For example `3 × charge, 1 × ship`."""
    return ", ".join(f"{count} × {name}" for name, count in sorted(Counter(steps.values()).items())) or "none"
