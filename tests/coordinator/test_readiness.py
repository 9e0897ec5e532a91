"""A run of an operation that is notified while what it decided is on its way neither rests nor ends as if it had not
been; and one that waits for many children is woken by the last of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from perdure.coordinator.batch_context import BatchContext
from perdure.coordinator.batch_decisions import DecidedBatch, decide_batch
from perdure.coordinator.decision_inputs import Knowledge
from perdure.coordinator.memory import Memory
from perdure.coordinator.queued_ops import Item
from perdure.errors import AskedMeanwhile, HandlersChanged
from perdure.kernel.batch import Committed
from perdure.kernel.cooperation import Cooperation
from perdure.kernel.effects import Notified
from perdure.kernel.ops import Cooperate, Notify, Op, Release, Start, Take
from perdure.kernel.rows import Engine
from perdure.kernel.runs import Run
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
CALL = Start(run_id="c", at=5, workflow="w", input="{}", parent_id="a", bond="called", fresh=True)


class Owner:
    """An engine's memory, with one run of an operation in it, and the batches that it commits."""

    def __init__(self, run: Run = RUN) -> None:
        self.memory = Memory()
        self.memory.runs["a"] = run

    def decide(self, *ops: Op, registry_version: int | None = None) -> DecidedBatch:
        """Decide a batch that is never committed."""
        known = Knowledge(
            memory=self.memory,
            workflows={("operation", "root", "")},
            engine=ENGINE,
            number=1,
            now=5,
            registry_version=registry_version,
        )
        return decide_batch([Item(op, None, False) for op in ops], BatchContext(), known)

    def commit(self, *ops: Op) -> DecidedBatch:
        batch = self.decide(*ops)
        self.memory.follow(batch.builder, Committed())
        return batch

    def status(self) -> Status:
        return self.memory.runs["a"].status


def wants(status: Status, **fields: Any) -> Cooperate:
    return Cooperate(run_id="a", at=5, claim=1, cause="step", status=status, added=Cooperation(), **fields)


def notice(kind: str = "news", child: str = "") -> Notify:
    return Notify(run_id="a", at=5, kind=kind, child=child)


def became(*batches: Sequence[Op]) -> Status:
    """What the run is once all but the last of these batches are committed, and the last is decided."""
    owner = Owner()
    for batch in batches[:-1]:
        owner.commit(*batch)
    return owner.decide(*batches[-1]).builder.runs["a"].status


def errors(batch: DecidedBatch) -> list[type[Any]]:
    return [type(decision) for _, decision in batch.decided if isinstance(decision, Exception)]


# ---------------------------------------------------------------------------------------------------------------------
# Resting and ending


def test_a_run_that_knows_all_rests() -> None:
    assert became([wants(Status.SUSPENDED)]) is Status.SUSPENDED
    assert became([notice(), notice()], [wants(Status.SUSPENDED, notified=2)]) is Status.SUSPENDED


def test_a_run_that_was_notified_since_does_not_rest() -> None:
    assert became([notice()], [notice()], [wants(Status.SUSPENDED, notified=1)]) is Status.RUNNING


def test_a_run_that_is_notified_in_the_same_batch_does_not_rest() -> None:
    assert became([notice(), wants(Status.SUSPENDED)]) is Status.RUNNING
    assert became([wants(Status.SUSPENDED), notice()]) is Status.RUNNING


def test_a_run_that_is_notified_by_a_batch_that_is_never_committed_rests() -> None:
    """Memory follows the store: the next batch is decided as if this one had never been."""
    owner = Owner()
    owner.decide(notice("undo"), notice("ask"))
    assert owner.decide(wants(Status.SUSPENDED)).builder.runs["a"].status is Status.SUSPENDED
    assert owner.decide(wants(Status.SUCCEEDED)).builder.runs["a"].status is Status.SUCCEEDED


def test_a_run_that_is_to_be_undone_does_not_just_succeed() -> None:
    assert became([wants(Status.SUCCEEDED)]) is Status.SUCCEEDED
    assert became([wants(Status.SUCCEEDED, is_undone=True)]) is Status.ROLLING_BACK
    assert became([notice("undo")], [wants(Status.SUCCEEDED, notified=1)]) is Status.ROLLING_BACK
    assert became([notice("undo")], [wants(Status.SUCCEEDED)]) is Status.ROLLING_BACK
    assert became([notice("undo"), wants(Status.SUCCEEDED)]) is Status.ROLLING_BACK
    assert became([wants(Status.SUCCEEDED), notice("undo")]) is Status.ROLLING_BACK
    assert became([notice("news"), wants(Status.SUCCEEDED)]) is Status.SUCCEEDED


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_run_that_was_asked_to_give_up_since_does_not_succeed(is_committed: bool) -> None:
    owner, ask, ends = Owner(), notice("ask"), wants(Status.SUCCEEDED)
    if is_committed:
        owner.commit(ask)
        owner.commit(notice("news"))  # What comes after it does not take it back.
        batch = owner.decide(ends)
    else:
        batch = owner.decide(ask, ends)
    assert errors(batch) == [AskedMeanwhile]
    assert batch.builder.runs.get("a", RUN).status is Status.RUNNING


def test_a_run_that_knows_that_it_is_asked_to_give_up_may_succeed() -> None:
    """It does not heed that."""
    assert became([notice("ask")], [wants(Status.SUCCEEDED, notified=1)]) is Status.SUCCEEDED


@pytest.mark.parametrize("kind", ["ask", "undo"])
@pytest.mark.parametrize("is_committed", [True, False])
def test_nothing_is_called_after_its_caller_was_asked_to_give_up(kind: str, is_committed: bool) -> None:
    owner, calls = Owner(), wants(Status.SUSPENDED, starts=(CALL,))
    if is_committed:
        owner.commit(notice(kind))
        batch = owner.decide(calls)
    else:
        batch = owner.decide(notice(kind), calls)
    assert errors(batch) == [AskedMeanwhile]
    assert "c" not in batch.builder.runs


def test_a_run_that_knows_what_it_was_asked_may_call() -> None:
    owner = Owner()
    owner.commit(notice("ask"))
    assert "c" in owner.decide(wants(Status.SUSPENDED, starts=(CALL,), notified=1)).builder.runs


def test_what_a_rollback_calls_begins_whatever_was_asked() -> None:
    batch = Owner().decide(notice("ask"), wants(Status.ROLLING_BACK, starts=(CALL,)))
    assert errors(batch) == []
    assert "c" in batch.builder.runs


# ---------------------------------------------------------------------------------------------------------------------
# Going on


def waiting(*children: str) -> Owner:
    owner = Owner()
    owner.commit(wants(Status.SUSPENDED, awaits=children))
    return owner


def test_the_last_child_that_is_awaited_wakes_the_run() -> None:
    owner = waiting("x", "y", "z")
    owner.commit(notice(child="x"), notice(child="z"))
    assert owner.status() is Status.SUSPENDED
    owner.commit(notice(child="y"))
    assert owner.status() is Status.RUNNING


def test_the_last_child_that_is_awaited_wakes_the_run_in_one_batch() -> None:
    batch = waiting("x", "y").commit(notice(child="x"), notice(child="y"))
    assert [row.became for row in batch.builder.batch.audit] == ["running"]


def test_a_child_that_is_heard_of_twice_counts_once() -> None:
    owner = waiting("x", "y")
    owner.commit(notice(child="x"), notice(child="x"))
    owner.commit(notice(child="x"))
    assert owner.status() is Status.SUSPENDED
    owner.commit(notice(child="y"))
    assert owner.status() is Status.RUNNING


def test_a_child_that_is_not_awaited_does_not_wake_the_run() -> None:
    owner = waiting("x")
    owner.commit(notice(child="from an earlier step"))
    assert owner.status() is Status.SUSPENDED


@pytest.mark.parametrize("kind", ["news", "ask", "undo", "join"])
def test_a_notice_that_names_no_child_wakes_the_run(kind: str) -> None:
    owner = waiting("x", "y")
    owner.commit(notice(kind))
    assert owner.status() is Status.RUNNING


def test_a_run_that_awaits_no_child_in_particular_is_woken_by_all_news() -> None:
    owner = waiting()
    owner.commit(notice(child="x"))
    assert owner.status() is Status.RUNNING


def test_a_batch_that_is_never_committed_counts_no_child() -> None:
    owner = waiting("x", "y")
    owner.decide(notice(child="x"))
    owner.commit(notice(child="y"))
    assert owner.status() is Status.SUSPENDED


def test_a_run_that_suspends_anew_awaits_others() -> None:
    owner = waiting("x", "y")
    owner.commit(wants(Status.SUSPENDED, awaits=("x", "z")))
    owner.commit(notice(child="x"), notice(child="y"))
    assert owner.status() is Status.SUSPENDED
    owner.commit(notice(child="z"))
    assert owner.status() is Status.RUNNING


def test_each_notice_has_the_next_number() -> None:
    owner = waiting("x", "y")
    batches = [owner.commit(notice(child="x"), notice("join")), owner.commit(notice("ask"))]
    found = [
        effect.number
        for batch in batches
        for _, decision in batch.decided
        for effect in getattr(decision, "effects", ())
        if isinstance(effect, Notified)
    ]
    assert found == [1, 2, 3]


def test_ten_thousand_children_wake_the_run_once() -> None:
    children = tuple(f"child {number}" for number in range(10_000))
    owner = waiting(*children)
    batch = owner.commit(*(notice(child=child) for child in children))
    assert owner.status() is Status.RUNNING
    assert [row.became for row in batch.builder.batch.audit] == ["running"]


# ---------------------------------------------------------------------------------------------------------------------
# Whose it is


def test_a_run_that_leaves_memory_leaves_nothing_behind() -> None:
    owner = waiting("x", "y")
    owner.commit(notice(child="x"))
    assert owner.memory.readiness
    owner.commit(Release(run_id="a", at=5, claim=1))
    assert not owner.memory.readiness
    owner = waiting("x")
    owner.memory.forget(["a"])
    assert not owner.memory.readiness
    owner = Owner()
    owner.commit(notice(), wants(Status.SUCCEEDED))
    assert not owner.memory.readiness


def test_a_run_that_is_notified_between_its_claim_and_its_take_begins_with_that() -> None:
    """What begins it reads its rows afterwards, so it knows as much as it was notified of."""
    owner = Owner()
    owner.commit(notice(), notice("ask"))
    take = Take(run_id="a", at=5, claim=1, orphaned=True, recoveries_max=3)
    (begin,) = [effect for _, decision in owner.commit(take).decided for effect in getattr(decision, "effects", ())]
    assert begin.notified == 2
    owner.commit(wants(Status.SUSPENDED, notified=begin.notified))
    assert owner.status() is Status.SUSPENDED


def test_what_a_run_was_notified_of_under_an_earlier_claim_is_of_no_matter() -> None:
    owner = Owner()
    owner.commit(notice("ask"), notice("undo"))
    owner.memory.runs["a"] = replace(RUN, claim=2)
    ends = Cooperate(run_id="a", at=5, claim=2, cause="step", status=Status.SUCCEEDED, added=Cooperation())
    assert owner.decide(ends).builder.runs["a"].status is Status.SUCCEEDED


@pytest.mark.parametrize(("registry_version", "is_refused"), [(None, False), (7, False), (8, True)])
def test_who_emits_by_an_old_registry_is_refused_alone(registry_version: int | None, is_refused: bool) -> None:
    op = Cooperate(
        run_id="a", at=5, claim=1, cause="step", status=Status.RUNNING, added=Cooperation(registry_version=7)
    )
    batch = Owner().decide(op, wants(Status.RUNNING), registry_version=registry_version)
    found = [isinstance(decision, HandlersChanged) for _, decision in batch.decided]
    assert found == [is_refused, False]
