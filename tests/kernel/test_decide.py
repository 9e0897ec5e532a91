"""The rules, op by op. `decided` makes every decision twice: they must be equal."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perdure.errors import (
    ConcurrentModification,
    Misuse,
    RunFinished,
    RunNotFound,
    RunNotRetryable,
    RunOwnedElsewhere,
)
from perdure.kernel import ops, wait_matches
from perdure.kernel.decide import decide
from perdure.kernel.decision import NOTHING, DecisionInput
from perdure.kernel.effects import Begin, Drop, Finish, Proceed, Rearm
from perdure.kernel.ops import End
from perdure.kernel.rules.starts import Started
from perdure.kernel.runs import Outcome
from perdure.kernel.status import ACTIVE, FINISHED, Status
from perdure.kernel.wait_matches import EMPTY
from tests.kernel.examples import (
    BLOCKED,
    ME,
    NOW,
    OTHER,
    PAUSED,
    a_run,
    a_wait,
    advance,
    an_entry,
    decided,
    statuses,
)

SUCCESS = End(status=Status.SUCCEEDED, outcome=Outcome(output='"done"'))
FAILURE = End(status=Status.FAILED, outcome=Outcome(failure="{}"))
START = ops.Start(run_id="r-1", at=NOW, workflow="w", input="{}", tags={"tenant": "acme"}, deadline=NOW + 9)
CANCEL = ops.Cancel(run_id="r-1", at=NOW, reason="changed my mind", failure="{}", actor="ada")
EXPIRE = ops.Expire(run_id="r-1", at=NOW, failure="{}")
RETRY = ops.Retry(run_id="r-1", at=NOW, expected_version=3, from_entry=5, actor="ada")
PAUSE = ops.SetHold(run_id="r-1", at=NOW, hold=PAUSED, actor="ada")
RESUME = ops.Resume(run_id="r-1", at=NOW, actor="ada")


def take(**changes: object) -> ops.Take:
    return replace(ops.Take(run_id="r-1", at=NOW, claim=2, orphaned=True, recoveries_max=5), **changes)


# Start.


def test_a_run_that_is_admitted_is_first_written_as_running() -> None:
    decision = decided(None, START)
    run = decision.run
    assert run is not None
    assert (run.status, run.version, run.owner, run.claim, run.started_at) == ("running", 1, ME, 1, NOW)
    assert (run.tags, run.deadline, decision.input) == ({"tenant": "acme"}, NOW + 9, "{}")
    assert statuses(decision) == [(None, "running")]
    assert decision.effects == (Begin(run, "{}"),)
    assert decision.reply == Started(run, True)


def test_a_run_that_is_not_admitted_waits_as_created_without_an_owner() -> None:
    decision = decided(None, replace(START, admit=False))
    run = decision.run
    assert run is not None
    assert (run.status, run.owner, run.claim, run.started_at) == ("created", None, 1, None)
    assert decision.effects == ()


def test_whether_a_created_run_is_known_to_be_a_function_is_kept() -> None:
    known = decided(None, replace(START, admit=False)).run
    by_name = decided(None, replace(START, admit=False, model="")).run
    assert known is not None
    assert by_name is not None
    assert (known.model, known.known_model) == ("function", "function")
    assert (by_name.model, by_name.claim, by_name.known_model) == ("function", 0, "")


@pytest.mark.parametrize("status", list(Status))
def test_starting_an_id_that_is_there_changes_nothing(status: Status) -> None:
    decision = decided(a_run(status), START)
    assert decision.reply == Started(a_run(status), False)
    assert (decision.run, decision.row, decision.effects) == (None, False, ())


# Advance.


def test_going_on_writes_entries_and_waits_but_no_row() -> None:
    decision = decided(a_run(), advance(entries=(an_entry(),), waits=(a_wait(),), waits_dropped=("2",)))
    assert (decision.entries, decision.waits, decision.waits_dropped) == ((an_entry(),), (a_wait(),), ("2",))
    assert (decision.row, decision.audit, decision.run) == (False, (), a_run())
    assert decision.effects == (Proceed("r-1"),)


def test_nothing_left_to_run_suspends() -> None:
    decision = decided(a_run(), advance(entries=(an_entry(),), idle=True, waits=(a_wait(),)))
    assert statuses(decision) == [("running", "suspended")]
    assert decision.run is not None
    assert (decision.run.version, decision.row) == (4, True)


def test_a_run_that_an_end_is_on_its_way_to_does_not_fall_asleep_before_it_has_read_it() -> None:
    mailbox = wait_matches.fire(wait_matches.fire(EMPTY, "1", 0), "2", 0)
    first = decide(a_run(), advance(entries=(an_entry(),), idle=True, waits_dropped=("1",)), ME, DecisionInput(mailbox))
    assert statuses(first) == []
    assert first.mailbox is not None
    assert first.mailbox.won.keys() == {"2"}
    second = decide(
        a_run(), advance(entries=(an_entry(),), idle=True, waits_dropped=("2",)), ME, DecisionInput(first.mailbox)
    )
    assert statuses(second) == [("running", "suspended")]
    assert second.mailbox is EMPTY


def test_a_suspended_run_that_goes_on_is_running_again() -> None:
    decision = decided(a_run(Status.SUSPENDED), advance(entries=(an_entry(),)))
    assert statuses(decision) == [("suspended", "running")]


def test_a_suspended_run_that_wakes_and_waits_again_passes_through_running() -> None:
    decision = decided(a_run(Status.SUSPENDED), advance(entries=(an_entry(),), idle=True))
    assert statuses(decision) == [("suspended", "running"), ("running", "suspended")]
    assert decision.run is not None
    assert decision.run.version == 5


def test_a_suspended_run_that_only_waits_for_something_else_stays_suspended() -> None:
    decision = decided(a_run(Status.SUSPENDED), advance(idle=True, waits=(a_wait(),), waits_dropped=("9",)))
    assert (statuses(decision), decision.row, decision.waits) == ([], False, (a_wait(),))


@pytest.mark.parametrize("end", [SUCCESS, FAILURE])
@pytest.mark.parametrize("status", [Status.RUNNING, Status.SUSPENDED])
def test_the_last_entry_and_the_end_are_one_decision(status: Status, end: End) -> None:
    decision = decided(a_run(status), advance(entries=(an_entry(),), end=end))
    run = decision.run
    assert run is not None
    assert (run.status, run.completed_at, run.owner) == (end.status, NOW, None)
    assert (decision.entries, decision.outcome, decision.waits_cleared) == ((an_entry(),), end.outcome, True)
    assert decision.effects == (Finish(run, end.outcome),)


def test_progress_forgives_earlier_recoveries() -> None:
    decision = decided(a_run(recoveries=3), advance(entries=(an_entry(),)))
    assert decision.run is not None
    assert (decision.run.recoveries, decision.row) == (0, True)
    waiting = decided(a_run(recoveries=3), advance(waits=(a_wait(),)))
    assert waiting.run is not None
    assert waiting.run.recoveries == 3


@pytest.mark.parametrize(
    "run",
    [None, a_run(claim=3), a_run(owner=OTHER), a_run(owner=None), a_run(hold=PAUSED, owner=None), a_run(Status.CREATED)]
    + [a_run(status) for status in FINISHED],
)
def test_a_late_result_is_dropped(run: object) -> None:
    assert decided(run, advance(entries=(an_entry(),), end=SUCCESS)) is NOTHING  # type: ignore[arg-type]


# Take, Release.


def test_a_created_run_that_is_claimed_starts_running() -> None:
    decision = decided(a_run(Status.CREATED, owner=ME), take(orphaned=False))
    assert statuses(decision) == [("created", "running")]
    assert decision.run is not None
    assert decision.run.started_at == NOW
    assert decision.effects == (Begin(decision.run),)


def test_a_released_run_goes_on_without_a_word() -> None:
    assert decided(a_run(), take(orphaned=False)).effects == (Begin(a_run()),)


def test_an_orphaned_run_counts_its_recoveries() -> None:
    decision = decided(a_run(recoveries=4), take())
    assert decision.run is not None
    assert (decision.run.recoveries, decision.row, statuses(decision)) == (5, True, [])


def test_one_recovery_too_many_is_poison() -> None:
    decision = decided(a_run(recoveries=5), take())
    run = decision.run
    assert run is not None
    assert run.hold is not None
    assert (run.hold.kind, run.owner, run.status, decision.reply) == ("poison", None, "running", False)
    assert "6 times" in run.hold.reason
    assert "resume it by hand" in run.hold.reason
    assert decision.effects == ()


def test_a_run_that_was_released_properly_is_never_poison() -> None:
    assert decided(a_run(recoveries=99), take(orphaned=False)).effects == (Begin(a_run(recoveries=99)),)


def test_a_suspended_run_that_is_claimed_goes_on_from_its_journal() -> None:
    run = a_run(Status.SUSPENDED, recoveries=9)
    decision = decided(run, take())
    assert (decision.effects, decision.row) == ((Begin(run),), False)


@pytest.mark.parametrize("status", [Status.CREATED, Status.RUNNING, Status.SUSPENDED])
def test_a_blocked_run_that_is_claimed_has_fitting_code_now(status: Status) -> None:
    decision = decided(a_run(status, hold=BLOCKED, owner=ME, recoveries=2), take())
    run = decision.run
    assert run is not None
    assert (run.hold, run.recoveries, decision.effects) == (None, 0, (Begin(run),))
    assert decision.audit[0].became == "resumed"
    assert run.status == (Status.RUNNING if status is Status.CREATED else status)


@pytest.mark.parametrize("run", [None, a_run(owner=OTHER), a_run(claim=7)])
def test_only_the_claim_of_now_can_be_taken_or_released(run: object) -> None:
    assert decided(run, take()) is NOTHING  # type: ignore[arg-type]
    assert decided(run, ops.Release(run_id="r-1", at=NOW, claim=2)) is NOTHING  # type: ignore[arg-type]


def test_a_released_run_has_no_owner_and_the_same_version() -> None:
    decision = decided(a_run(Status.SUSPENDED), ops.Release(run_id="r-1", at=NOW, claim=2))
    assert decision.run == a_run(Status.SUSPENDED, owner=None)
    assert decision.effects == (Drop("r-1", "released"),)


# Cancel, Expire.


@pytest.mark.parametrize("status", sorted(ACTIVE - {Status.ROLLING_BACK, Status.CANCELLING}))
def test_an_active_run_can_be_cancelled(status: Status) -> None:
    decision = decided(a_run(status, hold=BLOCKED), CANCEL)
    run = decision.run
    assert run is not None
    assert (run.status, run.completed_at, run.owner, run.hold, decision.reply) == ("cancelled", NOW, None, None, True)
    (row,) = decision.audit
    assert (row.was, row.became, row.actor, row.details) == (status, "cancelled", "ada", "changed my mind")
    assert (decision.waits_cleared, decision.effects) == (True, (Finish(run, Outcome(failure="{}")),))


@pytest.mark.parametrize("run", [None, *(a_run(status) for status in FINISHED)])
def test_cancelling_what_has_ended_or_never_was_replies_false(run: object) -> None:
    assert decided(run, CANCEL) is NOTHING  # type: ignore[arg-type]


def test_a_passed_deadline_fails_the_run() -> None:
    decision = decided(a_run(Status.SUSPENDED, deadline=NOW), EXPIRE)
    assert statuses(decision) == [("suspended", "failed")]
    assert decision.audit[0].cause == "deadline passed"


@pytest.mark.parametrize(
    "run",
    [None, a_run(), a_run(deadline=NOW + 1), a_run(deadline=NOW, owner=OTHER), a_run(Status.SUCCEEDED, deadline=NOW)],
)
def test_a_deadline_that_moved_or_no_longer_matters_does_nothing(run: object) -> None:
    assert decided(run, EXPIRE) is NOTHING  # type: ignore[arg-type]


# Retry.


def test_a_retry_archives_from_the_failed_entry_and_runs_again() -> None:
    decision = decided(a_run(Status.FAILED, attempt=2, recoveries=1), RETRY)
    run = decision.run
    assert run is not None
    assert (run.status, run.version, run.attempt, run.claim) == ("running", 4, 3, 3)
    assert (run.completed_at, run.owner, run.recoveries) == (None, ME, 0)
    assert (decision.archive_from, decision.outcome, decision.effects) == (5, Outcome(), (Begin(run),))
    (row,) = decision.audit
    assert (row.was, row.became, row.cause, row.actor) == ("failed", "running", "retried", "ada")


def test_a_retry_begins_a_deadline_anew_that_would_end_the_run_at_once() -> None:
    passed = decided(a_run(Status.FAILED, created_at=NOW - 300, deadline=NOW), RETRY)
    ahead = decided(a_run(Status.FAILED, deadline=NOW + 1), RETRY)
    assert passed.run is not None
    assert ahead.run is not None
    assert (passed.run.deadline, ahead.run.deadline) == (NOW + 300, NOW + 1)
    assert "deadline" in passed.audit[0].details


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.FAILED])
def test_only_a_failed_run_can_be_retried(status: Status) -> None:
    with pytest.raises(RunNotRetryable, match=f"'r-1' is {status}: only a failed run"):
        decided(a_run(status), RETRY)


def test_two_retries_at_once_do_not_both_happen() -> None:
    with pytest.raises(ConcurrentModification):
        decided(a_run(Status.FAILED, version=4), RETRY)


# Update, SetHold, Resume.


def test_an_update_replaces_tags_and_deadline_and_bumps_the_version() -> None:
    decision = decided(a_run(tags={"a": "1"}), ops.Update(run_id="r-1", at=NOW, tags={"b": "2"}, deadline=None))
    run = decision.run
    assert run is not None
    assert (run.tags, run.deadline, run.version, run.status) == ({"b": "2"}, None, 4, "running")
    assert (decision.audit[0].cause, decision.effects) == ("updated tags and deadline", (Rearm(run),))


def test_an_update_of_another_version_writes_nothing() -> None:
    with pytest.raises(ConcurrentModification, match="version 3, not 2") as caught:
        decided(a_run(), ops.Update(run_id="r-1", at=NOW, expected_version=2, tags={}))
    assert (caught.value.version, caught.value.expected_version) == (3, 2)


def test_a_finished_run_keeps_its_deadline_but_its_tags_can_change() -> None:
    assert decided(a_run(Status.SUCCEEDED), ops.Update(run_id="r-1", at=NOW, tags={"a": "1"})).row
    with pytest.raises(RunFinished, match="succeeded"):
        decided(a_run(Status.SUCCEEDED), ops.Update(run_id="r-1", at=NOW, deadline=NOW))


def test_an_update_of_nothing_is_refused() -> None:
    with pytest.raises(Misuse, match="give tags or deadline"):
        decided(a_run(), ops.Update(run_id="r-1", at=NOW))


@pytest.mark.parametrize("status", [Status.CREATED, Status.RUNNING, Status.SUSPENDED])
def test_a_held_run_keeps_its_status_and_loses_its_owner(status: Status) -> None:
    decision = decided(a_run(status), PAUSE)
    run = decision.run
    assert run is not None
    assert (run.status, run.hold, run.owner, run.version) == (status, PAUSED, None, 3)
    assert decision.effects == (Drop("r-1", "paused"),)
    (row,) = decision.audit
    assert (row.became, row.cause, row.actor) == ("paused", "by hand", "ada")


def test_a_held_run_is_not_held_again() -> None:
    assert decided(a_run(hold=BLOCKED, owner=None), PAUSE) is NOTHING


def test_a_finished_run_cannot_be_held() -> None:
    with pytest.raises(RunFinished):
        decided(a_run(Status.CANCELLED), PAUSE)


@pytest.mark.parametrize("run", [None, a_run(claim=9), a_run(Status.SUCCEEDED)])
def test_the_engines_own_hold_comes_too_late_without_a_word(run: object) -> None:
    assert decided(run, replace(PAUSE, claim=2)) is NOTHING  # type: ignore[arg-type]


def test_resuming_lifts_the_hold_and_forgives() -> None:
    decision = decided(a_run(hold=PAUSED, owner=None, recoveries=5), RESUME)
    run = decision.run
    assert run is not None
    assert (run.hold, run.owner, run.claim, run.recoveries) == (None, ME, 3, 0)
    assert decision.effects == (Begin(run),)


def test_a_created_run_that_is_resumed_starts() -> None:
    decision = decided(a_run(Status.CREATED, hold=PAUSED), RESUME)
    assert statuses(decision) == [("created", "resumed"), ("created", "running")]


def test_an_engine_without_the_workflow_lifts_the_hold_for_others() -> None:
    decision = decided(a_run(hold=PAUSED, owner=None), replace(RESUME, take=False))
    assert decision.run == a_run(owner=None, revision=5, updated_at=NOW)
    assert decision.effects == ()


def test_a_run_without_a_hold_is_not_resumed() -> None:
    assert decided(a_run(), RESUME) is NOTHING


# What all have in common.


@pytest.mark.parametrize("op", [CANCEL, RETRY, PAUSE, RESUME, ops.Update(run_id="r-1", at=NOW, tags={})])
def test_a_run_of_another_living_engine_is_left_alone(op: ops.Op) -> None:
    with pytest.raises(RunOwnedElsewhere, match="e-2") as caught:
        decided(a_run(owner=OTHER), op)
    assert (caught.value.run_id, caught.value.owner) == ("r-1", OTHER)


@pytest.mark.parametrize("op", [RETRY, PAUSE, RESUME, ops.Update(run_id="r-1", at=NOW, tags={})])
def test_a_run_that_is_not_there_is_said_to_be_missing(op: ops.Op) -> None:
    with pytest.raises(RunNotFound, match="r-1"):
        decided(None, op)
