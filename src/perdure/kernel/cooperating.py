"""The rules of operations' runs: what they wrote becomes rows, their status follows, word goes to those it concerns.

What a run does next is the model's to know (models/cooperation/rules.py); here only its writer, its status and its
mail are looked after. Word is never lost: a run that its engine has in memory is awake in the same commit, if it can go
on; one that nobody has is taken, or marked for whoever has its code; another engine's gets mail.
"""

from __future__ import annotations

from msgspec.structs import replace

from perdure.errors import IsOperation
from perdure.kernel import ops
from perdure.kernel.cooperation import Cooperation
from perdure.kernel.decision import NOTHING, Decision, Scene, mine_or_free, move
from perdure.kernel.effects import Begin, Effect, Finish, Look
from perdure.kernel.records import Audit, Outcome, Run, Wait
from perdure.kernel.status import FINISHED, Status

NEWS = "news"  # the position at which a run waits that was told something while nobody had it

JOIN = "join"  # word that somebody may handle what a run waits for
CALLED = "called"  # the bond of a run that an operation has called

_BACK = (Status.ROLLING_BACK, Status.ROLLED_BACK, Status.ROLLBACK_FAILED)


def check_no_operation(run: Run) -> None:
    """Raise IsOperation for a run that does not just end, but rolls back with all below it."""
    if run.model == "operation":
        raise IsOperation(f"run {run.id!r} is one of an operation", run_id=run.id)


def emit(_run: Run | None, op: ops.Emit, _me: str, _scene: Scene) -> Decision:
    return Decision(cooperation=op.added, posts=op.starts, reply=True)


def keeps_on(run: Run, op: ops.Cooperate, me: str) -> bool:
    """Whether what a run wrote comes to just its rows, as after most steps."""
    return (
        op.status is run.status
        and (run.status is Status.RUNNING or run.status is Status.ROLLING_BACK)
        and run.claim == op.claim
        and run.owner == me
        and run.hold is None
        and op.added.book is None
        and not (run.recoveries or op.starts or op.tells or op.waits or op.waits_dropped)
    )


def cooperate(run: Run | None, op: ops.Cooperate, me: str, scene: Scene) -> Decision:
    if run is None or run.claim != op.claim or run.owner != me or run.hold is not None or run.status in FINISHED:
        return NOTHING
    before = run
    if run.recoveries and op.added.events:
        run = replace(run, recoveries=0)
    run, audit = _through(run, op.status, op, op.cause)
    is_over = run.status in FINISHED
    effects: tuple[Effect, ...] = (Finish(run, op.outcome or Outcome()),) if is_over else ()
    outcome = op.outcome
    if run.status is Status.SUCCEEDED and scene.is_undone:
        # It was told so while it was busy ending, and nobody would tell it again.
        run, more = _back(run, op, me)
        audit, outcome, effects = audit + more, Outcome(), (Begin(run),)
    return Decision(
        run=run,
        row=run is not before,
        outcome=outcome,
        waits=op.waits,
        waits_dropped=op.waits_dropped,
        waits_cleared=is_over and op.has_waited,
        cooperation=op.added,
        audit=audit,
        effects=effects,
        posts=(*op.starts, *op.tells),
        reply=True,
    )


def _through(run: Run, became: Status, op: ops.Op, cause: str) -> tuple[Run, tuple[Audit, ...]]:
    """Move a run to a status, by way of those that lie between."""
    audit: tuple[Audit, ...] = ()
    for status in _way(run.status, became):
        run, more = move(run, status, op, cause)
        audit += more
    return run, audit


def _way(was: Status, became: Status) -> list[Status]:
    way: list[Status] = []
    if was is became:
        return way
    is_resting = was is Status.CREATED or (was is Status.SUSPENDED and became is Status.SUCCEEDED)
    if is_resting and became not in (Status.RUNNING, Status.CANCELLED):
        way.append(Status.RUNNING)
    if became in _BACK[1:] and was is not Status.ROLLING_BACK:
        way.append(Status.ROLLING_BACK)
    way.append(became)
    return way


def tell(run: Run | None, op: ops.Tell, me: str, scene: Scene) -> Decision:
    if run is None:
        return NOTHING
    if run.status in FINISHED:
        return _undone(run, op, me, scene) if op.kind == "undo" and run.status is Status.SUCCEEDED else NOTHING
    run = mine_or_free(run, op, me)
    posts: tuple[ops.Op, ...] = ()
    if op.kind not in (NEWS, JOIN):
        posts = tuple(ops.Tell(run_id=child, at=op.at, actor=op.actor, kind="ask") for child in scene.children)
    if run.owner == me:
        audit: tuple[Audit, ...] = ()
        if run.status is Status.SUSPENDED and (op.kind != NEWS or scene.is_ready):
            run, audit = move(run, Status.RUNNING, op, f"told: {op.kind}")
        return Decision(run=run, row=bool(audit), audit=audit, effects=(Look(run.id, op),), posts=posts, reply=True)
    if run.status is Status.CREATED and op.refusal is not None and run.hold is None:
        return _settled(run, Status.ROLLED_BACK, op, op.refusal, Outcome(failure=op.failure), op.answer)
    if run.status is Status.SUSPENDED and run.hold is None:
        if scene.has_code:
            run, audit = move(run, Status.RUNNING, op, f"told: {op.kind}", owner=me, claim=run.claim + 1)
            return Decision(run=run, row=True, audit=audit, effects=(Begin(run),), posts=posts, reply=True)
        mark = Wait(run_id=run.id, position=NEWS, kind="timer", name=NEWS, due_at=0)
        return Decision(run=run, guard=True, box=scene.box, waits=(mark,), posts=posts, reply=True)
    # Whoever takes it reads its rows afterwards, and these are among them.
    return Decision(run=run, guard=True, box=scene.box, posts=posts, reply=True)


def _undone(run: Run, op: ops.Op, me: str, scene: Scene, added: Cooperation | None = None) -> Decision:
    """What has succeeded is to be undone: it is active again."""
    owner = me if scene.has_code else None
    run, audit = _back(run, op, owner)
    effects: tuple[Effect, ...] = (Begin(run),) if owner is not None else ()
    return Decision(run=run, row=True, outcome=Outcome(), cooperation=added, audit=audit, effects=effects, reply=True)


def _back(run: Run, op: ops.Op, owner: str | None) -> tuple[Run, tuple[Audit, ...]]:
    return move(
        run, Status.ROLLING_BACK, op, "undone", owner=owner, claim=run.claim + 1, completed_at=None, recoveries=0
    )


# Functions and graphs that an operation has called.


def undo_call(run: Run, op: ops.Tell, me: str, scene: Scene) -> Decision:
    """What has succeeded is to be undone: it does its compensations, if it has registered any."""
    outcome = Outcome(failure=op.failure)
    if run.undo:
        decision = _undone(run, op, me, scene)
        return replace(decision, outcome=outcome)
    run, audit = _back(run, op, None)
    run, more = move(run, Status.ROLLED_BACK, op, "there was nothing to undo")
    return Decision(
        run=run,
        row=True,
        outcome=outcome,
        audit=audit + more,
        effects=(Finish(run, outcome),),
        posts=to_caller(run, op),
        reply=True,
    )


def to_caller(run: Run, op: ops.Op) -> tuple[ops.Op, ...]:
    """Word for the operation that has called a run which has ended. It reads for itself what became of it."""
    if run.bond != CALLED or run.status not in FINISHED or run.parent_id is None:
        return ()
    return (ops.Tell(run_id=run.parent_id, at=op.at, actor=op.actor, kind=NEWS),)


def heard_of(run: Run) -> tuple[str, ...]:
    """Those whose failure cannot be taken back, since the operation that has called them knows it."""
    return (run.id,) if run.bond == CALLED and run.status is Status.FAILED else ()


def settle(run: Run | None, op: ops.Settle, _me: str, _scene: Scene) -> Decision:
    if run is None or run.status in FINISHED:
        return NOTHING
    if run.status is op.was and run.owner is None and run.hold is None:
        return _settled(run, op.status, op, op.added, op.outcome, op.answer)
    return Decision(posts=_to_parent(op, op.otherwise), reply=False)


def _settled(
    run: Run, status: Status, op: ops.Tell | ops.Settle, added: Cooperation, outcome: Outcome, answer: str
) -> Decision:
    run, audit = _through(run, status, op, "ended without its code")
    return Decision(
        run=run,
        row=True,
        outcome=outcome,
        cooperation=added,
        audit=audit,
        effects=(Finish(run, outcome),),
        posts=_to_parent(op, answer),
        reply=True,
    )


def _to_parent(op: ops.Tell | ops.Settle, about: str) -> tuple[ops.Op, ...]:
    if not op.parent_id or not about:
        return ()
    return (ops.Tell(run_id=op.parent_id, at=op.at, actor=op.actor, kind=NEWS, about=about),)


def cancel_scope(run: Run | None, op: ops.CancelScope, _me: str, _scene: Scene) -> Decision:
    if run is not None and run.status in FINISHED:
        return NOTHING
    return Decision(cooperation=op.added, posts=op.tells, reply=True)


def undo_scope(run: Run | None, op: ops.UndoScope, me: str, scene: Scene) -> Decision:
    if run is None:
        return Decision(cooperation=op.added, posts=op.tells, reply=True)
    if run.status is not Status.SUCCEEDED:
        return NOTHING
    return _undone(run, op, me, scene, op.added)
