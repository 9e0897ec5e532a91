"""What the store in memory does grows with what it is given, and not with the square of it: comparisons are counted."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from perdure.kernel.artifacts import Artifact, ArtifactWrites
from perdure.kernel.batch import Batch
from perdure.kernel.events import Event
from perdure.kernel.rows import Wait
from perdure.kernel.rules.broadcasts import Freed, Pending, Queue, Settlement
from perdure.storage.memory.tables.artifacts import ArtifactTables
from perdure.storage.memory.tables.events import Answers, EventTables

MANY = 300


class Counted(str):
    """A text that counts how often it is compared with another one."""

    comparisons: ClassVar[int] = 0
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


batch = partial(Batch, engine_id="e", epoch=1, number=1)


def test_dropping_waits_one_by_one_looks_at_each_once() -> None:
    tables = EventTables()
    positions = [Counted(number) for number in range(MANY)]
    waits = [Wait(run_id="r", position=one, kind="timer", name="timer", due_at=1, since=0) for one in positions]
    tables.begin(batch(waits={(wait.run_id, wait.position, wait.option): wait for wait in waits}), 0)
    assert len(tables.waits_of("r")) == MANY
    Counted.comparisons = 0
    for position in positions:
        tables.drop("r", Counted(position))
    assert tables.waits_of("r") == ()
    assert Counted.comparisons <= 2 * MANY


class Watched(dict[str, Event]):
    """A table of events that counts how many of them are looked at one after the other."""

    looked_at: ClassVar[int] = 0

    def values(self) -> Any:
        Watched.looked_at += len(self)
        return super().values()


@pytest.mark.parametrize("whose", ["r", None])
def test_one_of_many_events_is_found_without_looking_at_the_others(whose: str | None) -> None:
    tables = EventTables()
    tables.events[whose or ""] = Watched()
    events = [Event(id=f"e-{n}", name="a", run_id=whose, number=n + 1, at=0, expires_at=9) for n in range(MANY)]
    tables.finish(batch(), Settlement(queued=[*events]))
    assert len(tables.events[whose or ""]) == MANY
    Watched.looked_at = 0
    answers = Answers(tables, batch(), {})
    for number in range(MANY):
        if whose is None:
            (found,) = answers.answer(Queue("a", 0, 1))
            assert found.id == f"e-{number}"
            assert answers.answer(Pending("a", 10 * MANY)) == MANY - number
            tables.finish(batch(), Settlement(moved=[replace(found, run_id="r", position="1", shared=True)]))
        else:
            tables.finish(batch(events_given=[("r", f"e-{number}", "1", 0)]), Settlement())
            (found,) = answers.answer(Freed([("r", "1")], [], ["r"]))[:1]
            assert found.id == f"e-{number}"
        tables.begin(batch(events_read=[("r", f"e-{number}")]), 0)
    assert not tables.events[whose or ""]
    assert Watched.looked_at == 0


def test_staging_and_publishing_many_artifacts_looks_at_each_a_few_times() -> None:
    tables = ArtifactTables()
    found = [
        Artifact(
            id=str(number),
            run_id=Counted("r"),
            name=Counted(f"part-{number % 7}"),
            type="",
            form="text",
            media_type="text/plain",
            size=0,
            digest="",
            workflow="w",
            seq=1,
            number=number,
            staged_at=0,
        )
        for number in range(MANY)
    ]
    Counted.comparisons = 0
    tables.apply(batch(artifacts=ArtifactWrites(artifacts=[*found])))
    tables.apply(batch(artifacts=ArtifactWrites(artifacts=[*found])))  # again, as after a crash
    tables.apply(batch(artifacts=ArtifactWrites(fates={"r": "published"})))
    assert Counted.comparisons <= 20 * MANY
    versions = sorted((str(one.name), one.version) for one in tables.artifacts.values())
    assert versions[:3] == [("part-0", 1), ("part-0", 2), ("part-0", 3)]
    assert len(set(versions)) == MANY
