"""The rules of artifacts and tasks: what becomes of what is staged, which tasks are withdrawn, whose answer counts."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from perdure.errors import RunOwnedElsewhere, TaskClosed, TaskLost, TaskNotFound
from perdure.kernel import ops, wait_matches
from perdure.kernel.artifacts import ArtifactWrites, Chunk
from perdure.kernel.decide import decide
from perdure.kernel.decision import Decision, DecisionInput
from perdure.kernel.effects import Begin, Deliver
from perdure.kernel.events import Event
from perdure.kernel.rows import Wait
from perdure.kernel.runs import Outcome, Run
from perdure.kernel.status import Status
from perdure.kernel.tasks import Task, TaskWrites, task_event
from perdure.kernel.wait_matches import Mailbox

ME = "e-1"


def a_run(**fields: Any) -> Run:
    defaults: dict[str, Any] = {
        "workflow": "w",
        "status": Status.RUNNING,
        "version": 1,
        "revision": 1,
        "owner": ME,
        "claim": 1,
        "created_at": 0,
        "updated_at": 0,
    }
    return Run(id="r", **defaults | fields)


TASK = Task(
    id="t", run_id="r", position="1", queue="q", kind="human", title="", schema="{}", payload="null", created_at=1
)
ANSWER = Event(id="e", name=task_event("t"), run_id="r", value="1", expires_at=99, at=5)


def waiting(*positions: str) -> Mailbox:
    names = {"1": "t", "2": "t-2"}
    waits = [Wait(run_id="r", position=p, kind="event", name=task_event(names[p])) for p in positions]
    return wait_matches.opened(waits, [])


def advance(**fields: Any) -> ops.Advance:
    return ops.Advance(run_id="r", at=5, claim=1, cause="test", **fields)


def ends(status: Status, *, has_staged: bool = True) -> ops.End:
    return ops.End(status=status, outcome=Outcome(output="1"), has_staged=has_staged)


def artifacts_of(decision: Decision) -> ArtifactWrites:
    return decision.artifacts or ArtifactWrites()


def tasks_of(decision: Decision) -> TaskWrites:
    return decision.tasks or TaskWrites()


@pytest.mark.parametrize(("status", "fate"), [(Status.SUCCEEDED, "published"), (Status.FAILED, "aside")])
def test_the_end_of_a_run_says_what_becomes_of_what_it_has_staged(status: Status, fate: str) -> None:
    decision = decide(a_run(), advance(end=ends(status)), ME)
    assert artifacts_of(decision).fates == {"r": fate}
    assert decide(a_run(), advance(end=ends(status, has_staged=False)), ME).artifacts is None


def test_a_run_that_fails_and_has_something_to_undo_decides_later() -> None:
    decision = decide(a_run(undo=1), advance(end=ends(Status.FAILED)), ME)
    assert artifacts_of(decision).fates == {}
    rolling = a_run(status=Status.ROLLING_BACK, undo=1)
    for ended in (Status.SUCCEEDED, Status.FAILED):
        assert artifacts_of(decide(rolling, advance(end=ends(ended)), ME)).fates == {"r": "gone"}


def test_an_end_from_outside_says_it_too() -> None:
    cancelled = decide(a_run(), ops.Cancel(run_id="r", at=5, failure="{}"), ME)
    assert artifacts_of(cancelled).fates == {"r": "gone"}
    expired = decide(a_run(deadline=1), ops.Expire(run_id="r", at=5, failure="{}"), ME)
    assert artifacts_of(expired).fates == {"r": "aside"}
    failed = a_run(status=Status.FAILED, owner=None, completed_at=3)
    retried = decide(failed, ops.Retry(run_id="r", at=5, expected_version=1), ME)
    assert artifacts_of(retried).fates == {"r": "staged"}


def test_an_advance_that_does_not_count_brings_nothing() -> None:
    late = advance(tasks=(TASK,))
    assert decide(a_run(claim=2), late, ME).tasks is None
    assert tasks_of(decide(a_run(), late, ME)).tasks == [TASK]


def test_tasks_that_are_no_longer_waited_for_are_withdrawn() -> None:
    inputs = DecisionInput(waiting("1", "2"))
    assert tasks_of(decide(a_run(), advance(waits_dropped=("2",)), ME, inputs)).withdrawn == ["t-2"]
    assert tasks_of(decide(a_run(), advance(end=ends(Status.SUCCEEDED)), ME, inputs)).withdrawn == ["t", "t-2"]
    cancelled = decide(a_run(), ops.Cancel(run_id="r", at=5, failure="{}"), ME, inputs)
    assert tasks_of(cancelled).withdrawn == ["t", "t-2"]
    continuation = ops.Continuation(workflow="w", workflow_version="", input="1", origin="")
    assert tasks_of(decide(a_run(), advance(continuation=continuation), ME, inputs)).withdrawn == ["t", "t-2"]
    timed_out = DecisionInput(wait_matches.fire(inputs.mailbox, "1", 1))
    assert tasks_of(decide(a_run(), advance(waits_dropped=("1",)), ME, timed_out)).withdrawn == ["t"]


def test_a_task_that_was_answered_is_not_withdrawn() -> None:
    mailbox, _ = wait_matches.put(waiting("1"), ANSWER)
    decision = decide(a_run(), advance(waits_dropped=("1",), events_read=("e",)), ME, DecisionInput(mailbox))
    assert tasks_of(decision).withdrawn == []


def answer(
    task: Task | None = TASK, run: Run | None = None, *, worker: str | None = None, mailbox: Mailbox | None = None
) -> Any:
    op = ops.Answer(run_id="r", at=5, actor="ann", task_id="t", event=ANSWER, worker=worker)
    inputs = DecisionInput(waiting("1") if mailbox is None else mailbox, task=task)
    return decide(run or a_run(status=Status.SUSPENDED), op, ME, inputs)


def test_an_answer_wins_the_wait_and_closes_the_task() -> None:
    decision = answer()
    (given,) = decision.events
    assert (given.position, given.id) == ("1", "e")
    assert decision.effects == (Deliver("r", "1", 0, given),)
    (closed,) = tasks_of(decision).answers
    assert (closed.task_id, closed.worker, closed.by, closed.at) == ("t", None, "ann", 5)


def test_an_answer_to_a_run_that_nobody_has_takes_it() -> None:
    decision = answer(run=a_run(status=Status.SUSPENDED, owner=None))
    assert isinstance(decision.effects[0], Begin)
    assert decision.run is not None
    assert (decision.run.owner, decision.run.claim) == (ME, 2)


def test_an_answer_that_does_not_count_is_refused() -> None:
    with pytest.raises(TaskNotFound):
        answer(None)
    with pytest.raises(TaskClosed, match="by 'bob'"):
        answer(replace(TASK, status="answered", answered_by="bob"))
    with pytest.raises(TaskClosed, match="withdrawn"):
        answer(replace(TASK, status="withdrawn"))
    with pytest.raises(TaskClosed, match="withdrawn"):
        answer(run=a_run(status=Status.CANCELLED, owner=None, completed_at=1))
    with pytest.raises(TaskClosed, match="answered"):
        answer(mailbox=wait_matches.put(waiting("1"), replace(ANSWER, id="other"))[0])
    with pytest.raises(TaskClosed, match="withdrawn"):
        answer(mailbox=wait_matches.fire(waiting("1"), "1", 1))
    with pytest.raises(RunOwnedElsewhere):
        answer(run=a_run(owner="e-2"))


def test_a_worker_answers_only_what_it_has_or_had_last() -> None:
    claimed = replace(TASK, worker="w-1", lease_until=2)
    assert tasks_of(answer(claimed, worker="w-1")).answers[0].by == "w-1"
    for task in (TASK, replace(TASK, worker="w-2", lease_until=9)):
        with pytest.raises(TaskLost):
            answer(task, worker="w-1")
    assert tasks_of(answer(claimed)).answers[0].by == "ann"


def test_parts_of_artifacts_count_while_the_run_is_ours() -> None:
    chunk = Chunk(run_id="r", artifact_id="a", number=0, data=b"x")
    op = ops.Deposit(run_id="r", at=5, claim=1, chunks=(chunk,), gone=("b",))
    assert artifacts_of(decide(a_run(), op, ME)) == ArtifactWrites(chunks=[chunk], chunks_gone=["b"])
    for run in (None, a_run(claim=2), a_run(owner="e-2"), a_run(status=Status.SUCCEEDED, owner=None, completed_at=1)):
        decision = decide(run, op, ME)
        assert decision.artifacts is None
        assert decision.reply is False
