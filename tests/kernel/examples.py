"""A run in every state that the tests need, and the ops they apply to it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from perdure.kernel import ops
from perdure.kernel.decide import decide
from perdure.kernel.decision import Decision
from perdure.kernel.invariants import check_decision
from perdure.kernel.rows import Entry, Wait
from perdure.kernel.runs import Hold, Run
from perdure.kernel.status import FINISHED, Status

ME = "e-1"
OTHER = "e-2"
NOW = 1_000_000

PAUSED = Hold(kind="paused", reason="by hand")
BLOCKED = Hold(kind="blocked", reason="other code", fingerprint="f-1")


def a_run(status: Status = Status.RUNNING, **changes: Any) -> Run:
    """A run that this engine owns, unless it has finished or was never claimed."""
    owned = status not in FINISHED and status is not Status.CREATED
    run = Run(
        id="r-1",
        workflow="w",
        status=status,
        version=3,
        revision=4,
        owner=ME if owned else None,
        claim=2,
        created_at=10,
        started_at=None if status is Status.CREATED else 10,
        updated_at=20,
        completed_at=20 if status in FINISHED else None,
    )
    return replace(run, **changes)


def an_entry(seq: int = 1, **changes: Any) -> Entry:
    entry = Entry(
        run_id="r-1", seq=seq, position=str(seq), kind="step", name="s", value='"v"', started_at=NOW - 5, at=NOW
    )
    return replace(entry, **changes)


def a_wait(position: str = "1") -> Wait:
    return Wait(run_id="r-1", position=position, kind="timer", name="sleep", due_at=NOW + 5, since=NOW)


def advance(**changes: Any) -> ops.Advance:
    fields: dict[str, Any] = {"run_id": "r-1", "at": NOW, "claim": 2, "cause": "step finished"}
    return ops.Advance(**fields | changes)


def decided(run: Run | None, op: ops.Op, me: str = ME) -> Decision:
    """The decision; made twice, since it must not depend on anything else, and checked as the coordinator does."""
    decision = decide(run, op, me)
    assert decide(run, op, me) == decision
    check_decision(decision)
    if decision.run is not None and run is not None:
        assert decision.run.revision == run.revision + len(decision.audit)
        assert [row.seq for row in decision.audit] == list(range(run.revision + 1, decision.run.revision + 1))
    return decision


def statuses(decision: Decision) -> list[tuple[str | None, str]]:
    return [(row.was, row.became) for row in decision.audit]
