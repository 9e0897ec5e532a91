"""Word for runs of operations, decided by where they are: nobody sleeps on what it was told."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from perdure.errors import IsOperation, RunOwnedElsewhere
from perdure.kernel import ops
from perdure.kernel.cooperation import Cooperation, MessageEventRow
from perdure.kernel.decide import decide
from perdure.kernel.decision import Decision, DecisionInput
from perdure.kernel.effects import Begin, Finish, Notified
from perdure.kernel.lineages import origin_of, read_origin
from perdure.kernel.operation_notices import Readiness
from perdure.kernel.runs import Outcome, Run
from perdure.kernel.status import Status

ME, OTHER = "e-1", "e-2"


def a_run(status: Status = Status.SUSPENDED, owner: str | None = ME, **fields: Any) -> Run:
    ended = status in (Status.SUCCEEDED, Status.ROLLED_BACK, Status.ROLLBACK_FAILED, Status.CANCELLED)
    defaults: dict[str, Any] = {
        "id": "b",
        "workflow": "child",
        "model": "operation",
        "status": status,
        "version": 3,
        "revision": 3,
        "owner": None if ended else owner,
        "claim": 2,
        "parent_id": "a",
        "origin": origin_of("m-1", ("r", "a", "b")),
        "created_at": 1,
        "updated_at": 1,
        "completed_at": 2 if ended else None,
    }
    return Run(**defaults | fields)


def rows(*types: str) -> Cooperation:
    return Cooperation(
        events=[
            MessageEventRow(
                scope="b", seq=seq, id=f"{seq}", message_id="m-1", type=type, cooperation_lineage="r/a/b", created_at=5
            )
            for seq, type in enumerate(types, start=1)
        ]
    )


def notify(run: Run | None, kind: str = "news", inputs: DecisionInput | None = None, **fields: Any) -> Decision:
    return decide(run, ops.Notify(run_id="b", at=9, kind=kind, **fields), ME, inputs or DecisionInput())


def cooperate(run: Run, status: Status, inputs: DecisionInput | None = None, **fields: Any) -> Decision:
    op = ops.Cooperate(
        run_id="b", at=9, claim=fields.pop("claim", 2), cause="step", status=status, added=rows("SUSPENDED"), **fields
    )
    return decide(run, op, ME, inputs or DecisionInput())


def became(decision: Decision) -> list[str]:
    return [row.became for row in decision.audit]


def test_the_origin_of_a_run_is_its_message_and_its_lineage() -> None:
    assert read_origin(origin_of("m-1", ("r", "a", "b"))) == ("m-1", ("r", "a", "b"))


# ---------------------------------------------------------------------------------------------------------------------
# Word


def awaiting(*children: str, **fields: Any) -> DecisionInput:
    return DecisionInput(readiness=Readiness(claim=2).awaiting(children), **fields)


def test_a_run_that_can_go_on_is_awake_in_the_commit_that_notifies_it() -> None:
    decision = notify(a_run(), inputs=awaiting("c"), child="c")
    assert became(decision) == ["running"]
    assert [type(effect) for effect in decision.effects] == [Notified]


def test_a_run_that_cannot_go_on_yet_is_only_notified() -> None:
    decision = notify(a_run(), inputs=awaiting("c", "d"), child="c")
    assert not decision.row
    assert [type(effect) for effect in decision.effects] == [Notified]


@pytest.mark.parametrize("kind", ["ask", "undo"])
def test_who_is_to_give_up_is_awake_and_so_are_those_below(kind: str) -> None:
    decision = notify(a_run(), kind, awaiting("x", children=("c", "d")))
    assert became(decision) == ["running"]
    assert [(post.run_id, post.kind) for post in decision.follow_ups] == [("c", "ask"), ("d", "ask")]  # type: ignore[attr-defined]


def test_another_engines_run_is_its_own_to_tell() -> None:
    with pytest.raises(RunOwnedElsewhere):
        notify(a_run(owner=OTHER))


def test_a_waiting_run_that_nobody_has_is_taken_where_its_code_is() -> None:
    decision = notify(a_run(owner=None))
    assert decision.run is not None
    assert (decision.run.owner, decision.run.claim, decision.run.status) == (ME, 3, Status.RUNNING)
    assert [type(effect) for effect in decision.effects] == [Begin]


def test_a_waiting_run_that_nobody_has_is_marked_for_whoever_has_its_code() -> None:
    decision = notify(a_run(owner=None), inputs=DecisionInput(has_code=False))
    assert decision.guard  # Who takes it in the same moment would not know.
    assert not decision.row
    assert [(wait.position, wait.due_at) for wait in decision.waits] == [("news", 0)]


@pytest.mark.parametrize("status", [Status.RUNNING, Status.ROLLING_BACK, Status.CREATED])
def test_whoever_takes_a_run_reads_what_it_was_told(status: Status) -> None:
    decision = notify(a_run(status, owner=None))
    assert decision.guard
    assert not decision.row
    assert not decision.effects


def test_a_run_that_nobody_has_taken_never_begins() -> None:
    refusal = rows("SEEN", "ROLLING_BACK", "ROLLED_BACK")
    brought: dict[str, Any] = {"refusal": refusal, "failure": "{}", "answer": "gone", "parent_id": "a"}
    decision = notify(a_run(Status.CREATED, owner=None), "undo", DecisionInput(has_code=False), **brought)
    assert became(decision) == ["running", "rolling_back", "rolled_back"]
    assert decision.cooperation is refusal
    assert [(post.run_id, post.about) for post in decision.follow_ups] == [("a", "gone")]  # type: ignore[attr-defined]
    claimed = notify(a_run(Status.CREATED), "undo", **brought)
    assert claimed.cooperation is None  # Its owner knows better.


@pytest.mark.parametrize("has_code", [True, False])
def test_what_has_succeeded_is_undone(has_code: bool) -> None:
    decision = notify(a_run(Status.SUCCEEDED), "undo", DecisionInput(has_code=has_code))
    assert decision.run is not None
    assert (decision.run.status, decision.run.completed_at) == (Status.ROLLING_BACK, None)
    assert decision.run.owner == (ME if has_code else None)
    assert len(decision.effects) == has_code


@pytest.mark.parametrize(("status", "kind"), [(Status.SUCCEEDED, "ask"), (Status.ROLLED_BACK, "undo")])
def test_what_has_ended_is_told_nothing(status: Status, kind: str) -> None:
    assert notify(a_run(status), kind).reply is False
    assert notify(None, kind).reply is False


# ---------------------------------------------------------------------------------------------------------------------
# Going on


@pytest.mark.parametrize(
    ("was", "status", "way"),
    [
        (Status.RUNNING, Status.RUNNING, []),
        (Status.RUNNING, Status.SUSPENDED, ["suspended"]),
        (Status.SUSPENDED, Status.SUCCEEDED, ["running", "succeeded"]),
        (Status.SUSPENDED, Status.ROLLED_BACK, ["rolling_back", "rolled_back"]),
        (Status.CREATED, Status.ROLLED_BACK, ["running", "rolling_back", "rolled_back"]),
        (Status.CREATED, Status.SUSPENDED, ["running", "suspended"]),
        (Status.ROLLING_BACK, Status.ROLLBACK_FAILED, ["rollback_failed"]),
    ],
)
def test_a_status_is_reached_by_way_of_those_between(was: Status, status: Status, way: list[str]) -> None:
    assert became(cooperate(a_run(was), status)) == way


def test_what_a_run_did_that_is_no_longer_ours_is_dropped() -> None:
    assert cooperate(a_run(), Status.RUNNING, claim=1).reply is False
    assert cooperate(a_run(owner=OTHER), Status.RUNNING).reply is False
    assert cooperate(a_run(Status.SUCCEEDED), Status.RUNNING).reply is False


def test_a_run_that_gets_on_has_recovered() -> None:
    decision = cooperate(a_run(Status.RUNNING, recoveries=2), Status.RUNNING)
    assert decision.run is not None
    assert (decision.run.recoveries, decision.row) == (0, True)


def test_a_run_that_was_told_while_it_ended_is_undone_at_once() -> None:
    outcome = Outcome(output="null")
    inputs = DecisionInput(readiness=Readiness(claim=2).after("undo", ""))
    decision = cooperate(a_run(Status.RUNNING), Status.SUCCEEDED, inputs, outcome=outcome)
    assert became(decision) == ["succeeded", "rolling_back"]
    assert decision.run is not None
    assert (decision.run.owner, decision.run.claim) == (ME, 3)
    assert [type(effect) for effect in decision.effects] == [Begin]
    plain = cooperate(a_run(Status.RUNNING), Status.SUCCEEDED, outcome=outcome)
    assert [type(effect) for effect in plain.effects] == [Finish]


# ---------------------------------------------------------------------------------------------------------------------
# From outside


def settle(run: Run) -> Decision:
    op = ops.Settle(
        run_id="b",
        at=9,
        status=Status.SUCCEEDED,
        added=rows("SEEN", "COMMITTED"),
        outcome=Outcome(output="null"),
        answer="done",
        otherwise="begun",
        parent_id="a",
    )
    return decide(run, op, ME, DecisionInput(has_code=False))


def test_what_nobody_has_taken_is_settled_without_its_code() -> None:
    decision = settle(a_run(Status.CREATED, owner=None))
    assert became(decision) == ["running", "succeeded"]
    assert [post.about for post in decision.follow_ups] == ["done"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("run", [a_run(Status.CREATED), a_run(Status.RUNNING), a_run(Status.CREATED, owner=OTHER)])
def test_what_somebody_has_taken_is_not(run: Run) -> None:
    decision = settle(run)
    assert decision.reply is False
    assert decision.cooperation is None
    assert [post.about for post in decision.follow_ups] == ["begun"]  # type: ignore[attr-defined]


def test_a_run_of_an_operation_does_not_just_end() -> None:
    with pytest.raises(IsOperation):
        decide(a_run(), ops.Cancel(run_id="b", at=9, failure="{}"), ME, DecisionInput())
    function = replace(a_run(), model="function")
    assert decide(function, ops.Cancel(run_id="b", at=9, failure="{}"), ME, DecisionInput()).reply is True
