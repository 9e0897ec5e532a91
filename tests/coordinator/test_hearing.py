"""A run of an operation that gets word while what it decided is on its way neither rests nor ends as if it had not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from perdure.coordinator.batch_context import BatchContext
from perdure.coordinator.decisions import Deaf, Hearing, decide_batch
from perdure.coordinator.inbox import Item
from perdure.coordinator.memory import Memory
from perdure.errors import HandlersChanged
from perdure.kernel.cooperation import Cooperation
from perdure.kernel.ops import Cooperate, Op, Tell
from perdure.kernel.records import Engine, Run
from perdure.kernel.status import Status

ENGINE = Engine(id="e-1", epoch=1, alive=True, batch=0, host="h", pid=1, workflows=[], started_at=1)
RUN = Run(
    id="a",
    workflow="root",
    model="operation",
    status=Status.RUNNING,
    version=1,
    revision=1,
    owner="e-1",
    claim=1,
    created_at=1,
    updated_at=1,
)


class Knowing(Hearing):
    """A host in which the run has heard so much."""

    def __init__(self, *, heard: int = 0, is_undone: bool = False) -> None:
        self._heard = heard
        self._is_undone = is_undone

    def heard(self, run_id: str) -> int:
        return self._heard

    def is_undone(self, run_id: str) -> bool:
        return self._is_undone


def wants(status: Status, **fields: Any) -> Cooperate:
    return Cooperate(run_id="a", at=5, claim=1, cause="step", status=status, added=Cooperation(), **fields)


def told(kind: str = "news") -> Tell:
    return Tell(run_id="a", at=5, kind=kind)


def became(items: Sequence[Op], hearing: Hearing | None = None, **options: Any) -> Status:
    memory = Memory()
    memory.runs["a"] = RUN
    decided_batch = decide_batch(
        [Item(op, None, False) for op in items],
        BatchContext(),
        memory=memory,
        workflows={("operation", "root", "")},
        engine=ENGINE,
        number=1,
        now=5,
        hearing=hearing or Deaf(),
        **options,
    )
    return decided_batch.builder.runs["a"].status


def test_a_run_that_knows_all_rests() -> None:
    assert became([wants(Status.SUSPENDED)]) is Status.SUSPENDED
    assert became([wants(Status.SUSPENDED, heard=2)], Knowing(heard=2)) is Status.SUSPENDED


def test_a_run_that_has_heard_more_since_does_not_rest() -> None:
    assert became([wants(Status.SUSPENDED, heard=1)], Knowing(heard=2)) is Status.RUNNING


def test_a_run_that_is_told_in_the_same_batch_does_not_rest() -> None:
    assert became([told(), wants(Status.SUSPENDED)]) is Status.RUNNING
    assert became([wants(Status.SUSPENDED), told()]) is Status.RUNNING


def test_a_run_that_is_to_be_undone_does_not_just_succeed() -> None:
    assert became([wants(Status.SUCCEEDED)]) is Status.SUCCEEDED
    assert became([wants(Status.SUCCEEDED)], Knowing(is_undone=True)) is Status.ROLLING_BACK
    assert became([told("undo"), wants(Status.SUCCEEDED)]) is Status.ROLLING_BACK
    assert became([wants(Status.SUCCEEDED), told("undo")]) is Status.ROLLING_BACK
    assert became([told("news"), wants(Status.SUCCEEDED)]) is Status.SUCCEEDED


@pytest.mark.parametrize(("book", "is_refused"), [(None, False), (7, False), (8, True)])
def test_who_emits_by_an_old_book_is_refused_alone(book: int | None, is_refused: bool) -> None:
    op = Cooperate(run_id="a", at=5, claim=1, cause="step", status=Status.RUNNING, added=Cooperation(book=7))
    memory = Memory()
    memory.runs["a"] = RUN
    decided_batch = decide_batch(
        [Item(op, None, False), Item(wants(Status.RUNNING), None, False)],
        BatchContext(),
        memory=memory,
        workflows={("operation", "root", "")},
        engine=ENGINE,
        number=1,
        now=5,
        hearing=Deaf(),
        book=book,
    )
    found = [isinstance(decision, HandlersChanged) for _, decision in decided_batch.decided]
    assert found == [is_refused, False]
