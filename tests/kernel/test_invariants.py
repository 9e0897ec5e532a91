"""What can never be stored is an engine bug, found before it is written and when it is read."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from perdure.errors import EngineBug, InvariantViolated
from perdure.kernel import ops
from perdure.kernel.decide import RULES
from perdure.kernel.decision import Decision
from perdure.kernel.invariants import check_decision, check_entry, check_run
from perdure.kernel.rows import Entry, Wait
from perdure.kernel.runs import Run
from perdure.kernel.status import Status
from tests.kernel.examples import BLOCKED, ME, PAUSED, a_run, an_entry

BROKEN = [
    a_run(Status.SUCCEEDED, completed_at=None),
    a_run(completed_at=5),
    a_run(Status.FAILED, owner=ME),
    a_run(Status.CANCELLED, hold=PAUSED),
    a_run(hold=PAUSED, owner=ME),
    a_run(version=0),
    a_run(version=5, revision=4),
    a_run(claim=-1),
    a_run(attempt=0),
    a_run(recoveries=-1),
]


@pytest.mark.parametrize("status", list(Status))
def test_runs_as_they_should_be_pass(status: Status) -> None:
    check_run(a_run(status))


def test_a_blocked_run_may_be_claimed_by_an_engine_with_other_code() -> None:
    check_run(a_run(hold=BLOCKED, owner=ME))


@pytest.mark.parametrize("run", BROKEN)
def test_an_impossible_run_is_an_engine_bug_that_names_it(run: Run) -> None:
    with pytest.raises(InvariantViolated, match="'r-1'") as caught:
        check_run(run)
    assert isinstance(caught.value, EngineBug)
    with pytest.raises(InvariantViolated):
        check_decision(Decision(run=run, row=True))


@pytest.mark.parametrize("entry", [an_entry(0), an_entry(position=""), an_entry(value=None), an_entry(failure="{}")])
def test_an_impossible_entry_is_an_engine_bug(entry: Entry) -> None:
    with pytest.raises(InvariantViolated, match="'r-1'"):
        check_entry(entry)
    with pytest.raises(InvariantViolated):
        check_decision(Decision(run=a_run(), entries=(an_entry(), entry)))


def test_there_is_a_rule_for_every_op() -> None:
    assert set(RULES) == set(ops.Op.__subclasses__())


def test_an_op_knows_how_much_it_adds_to_a_batch() -> None:
    assert ops.Start(run_id="r", at=1, workflow="w", input="x" * 10).payload_bytes == 10
    assert ops.Advance(run_id="r", at=1, claim=1, cause="", entries=(an_entry(value="x" * 7),)).payload_bytes == 7
    wait = Wait(run_id="r", position="1", kind="beat", name="s", failure="x" * 3, details="x" * 5)
    assert ops.Advance(run_id="r", at=1, claim=1, cause="", waits=(wait,)).payload_bytes == 8
    assert ops.Update(run_id="r", at=1, tags=UNSET).payload_bytes == 0
