"""Deciding a batch: what each op comes to, on what is in memory, what was looked up, and what the ops before it did."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Container, Iterable, Sequence
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from perdure.coordinator.assembly import Assembly
from perdure.coordinator.inbox import Item
from perdure.coordinator.lookup import Found
from perdure.coordinator.memory import Memory
from perdure.errors import (
    DeadLetterNotFound,
    EngineBug,
    HandlersChanged,
    PerdureError,
    RunFinished,
    RunOwnedElsewhere,
)
from perdure.kernel import boxes
from perdure.kernel.batch import Batch
from perdure.kernel.boxes import EMPTY
from perdure.kernel.cooperating import keeps_on
from perdure.kernel.decide import Decision, born_of, decide, goes_on
from perdure.kernel.decision import NO_SCENE, Scene, Stored
from perdure.kernel.effects import Proceed
from perdure.kernel.invariants import check_decision, check_run
from perdure.kernel.ops import Advance, Answer, Cooperate, Emit, Expire, Forget, Op, Send, SetHold, Start, Tell, Wake
from perdure.kernel.records import Engine, Hold, Run
from perdure.kernel.status import FINISHED, Status

log = logging.getLogger("perdure")

WRITTEN: Final = Decision(reply=True)

_WAKING = (Wake, Expire)  # whoever owns the run wakes it by itself


class Hearing(Protocol):
    """What runs of operations that are in memory have heard. These have none in memory."""

    def is_ready(self, run_id: str, told: Sequence[Tell]) -> bool:
        """Whether a waiting run can go on that is told this."""
        del run_id, told
        return True

    def heard(self, run_id: str) -> int:
        """How often a run has got word so far."""
        del run_id
        return 0

    def is_undone(self, run_id: str) -> bool:
        """Whether a run knows that what it does is to be undone."""
        del run_id
        return False


class Deaf(Hearing):
    """Nobody is here."""


class Posted(Struct, frozen=True):
    """An op was left for another engine, which will answer in this slot."""

    slot: str


Decided = tuple[Item, Decision | Proceed | Posted | PerdureError]  # Proceed: a plain advance


class Deliberation(Struct):
    """The batch, what each op came to, and what has to be done about runs that nothing could be decided about."""

    assembly: Assembly
    decided: list[Decided]
    owed: list[Op]


def deliberate(
    items: Iterable[Item],
    found: Found,
    *,
    memory: Memory,
    workflows: Container[tuple[str, str]],
    engine: Engine,
    number: int,
    now: int,
    hearing: Hearing,
    book: int | None = None,
) -> Deliberation:
    """Decide ops one after the other, each on what those before it came to. `found` is what was looked up for them.

    `hearing` tells of runs of operations what they know. `book` is the version of the book of
    handlers, if it has been found that some of the ops do not know it.
    """
    assembly = Assembly(Batch(engine_id=engine.id, epoch=engine.epoch, number=number, at=now))
    decided: list[Decided] = []
    owed: list[Op] = []
    runs = memory.runs
    posts: deque[Item] = deque()
    told: dict[str, list[Tell]] = {}
    waiting = iter(items)
    while (item := posts.popleft() if posts else next(waiting, None)) is not None:
        op = item.op
        # What is stored may have another owner than what an op before this one made of it: one that is dead.
        before = runs.get(op.run_id)
        run = assembly.runs.get(op.run_id) or before
        try:
            if type(op) is Advance and run is not None and goes_on(run, op, engine.id):
                assembly.add_entries(op.entries)
                decided.append((item, Proceed(run.id)))
                continue
            if type(op) is Cooperate and run is not None and keeps_on(run, op, engine.id):
                assembly.add_cooperation(op.added)
                decided.append((item, WRITTEN))
                continue
            if isinstance(op, Start):
                op = replace(op, admitted_at=now, admit=op.admit and (op.workflow, op.workflow_version) in workflows)
                if op.parent_id is not None and item.reply is not None:
                    op = _born(op, memory, assembly)
            if before is None and op.run_id in found.runs:
                before = found.runs[op.run_id].run
                if run is None:
                    check_run(before)
                    run = before
            if run is not None and run.owner is not None and run.owner in memory.dead:
                run = replace(run, owner=None)
            if isinstance(op, Advance):
                box = assembly.boxes.get(op.run_id) or memory.boxes.get(op.run_id)
                scene = NO_SCENE if box is None else Scene(box)
                if op.onward is not None:
                    onward = (op.onward.workflow, op.onward.workflow_version)
                    scene = Scene(scene.box, onward in workflows)
            elif isinstance(op, Start):
                scene = NO_SCENE
            else:
                if book is not None and isinstance(op, (Cooperate, Emit)) and op.added.book not in (None, book):
                    raise HandlersChanged("a handler was registered or taken out meanwhile", run_id=op.run_id)
                scene = NO_SCENE
                if type(op) is not Cooperate or op.run_id in found.runs:
                    op, scene = _scene(op, run, found, assembly, memory, workflows, engine.id)
                if isinstance(op, Cooperate):
                    op, scene = _heard(op, scene, told.get(op.run_id, ()), hearing)
                elif isinstance(op, Tell):
                    told.setdefault(op.run_id, []).append(op)
                    scene = replace(scene, is_ready=hearing.is_ready(op.run_id, told[op.run_id]))
            decision = decide(run, op, engine.id, scene)
            check_decision(decision)
        except RunOwnedElsewhere as elsewhere:
            # It is for the run's owner to decide. What came by mail is there for it already.
            if item.mail or type(op) in _WAKING:
                decided.append((item, elsewhere))
            else:
                decided.append((item, Posted(assembly.post(op, is_awaited=item.reply is not None))))
        except EngineBug as bug:
            # A bug about one run must not stop all others: it is set aside, with what was found, if it is ours.
            log.exception("an op for run %s could not be decided", op.run_id)
            decided.append((item, bug))
            if item.mail:
                assembly.answer(item.mail, bug)
            if runs.pop(op.run_id, None) is not None:
                hold = Hold(kind="blocked", reason=f"engine bug: {bug}", at=op.at)
                owed.append(SetHold(run_id=op.run_id, at=op.at, hold=hold))
        except PerdureError as error:
            decided.append((item, error))
            if item.mail:
                assembly.answer(item.mail, error)
        else:
            assembly.add(before, decision)
            decided.append((item, decision))
            if item.mail:
                assembly.answer(item.mail, decision.reply)
            if op.run_id in found.runs and op.run_id not in assembly.boxes:
                assembly.boxes[op.run_id] = scene.box  # It counts if the run is ours from now on.
            if decision.posts:
                posts.extendleft(Item(post, None, False) for post in reversed(decision.posts))
    return Deliberation(assembly, decided, owed)


def drafted(op: Start, engine: Engine) -> Batch:
    """What a start comes to that is not this engine's to commit: the rows of a run that waits for somebody to take it.
    Raises InvariantViolated."""
    assembly = Assembly(Batch(engine_id=engine.id, epoch=engine.epoch, number=0, at=op.at))
    decision = decide(None, replace(op, admit=False), engine.id)
    check_decision(decision)
    assembly.add(None, decision)
    return assembly.batch


def _scene(
    op: Op,
    run: Run | None,
    found: Found,
    assembly: Assembly,
    memory: Memory,
    workflows: Container[tuple[str, str]],
    me: str,
) -> tuple[Op, Scene]:
    box = assembly.boxes.get(op.run_id) or memory.boxes.get(op.run_id)
    if box is None:
        loaded = None if op.run_id in memory.runs else found.runs.get(op.run_id)
        box = EMPTY if loaded is None else boxes.opened(loaded.waits, loaded.events)
    letter = op.letter if isinstance(op, (Send, Forget)) else ""
    if letter and (letter not in found.letters or letter in assembly.batch.letters_gone):
        raise DeadLetterNotFound(f"there is no dead letter {letter!r}: it was replayed or removed", letter_id=letter)
    if isinstance(op, Send) and op.event.key is not None:
        known = assembly.batch.keys.get(op.event.key) or found.keys.get(op.event.key)
        if known is not None:
            op = replace(op, known=known)
    has_code = run is None or (run.workflow, run.workflow_version) in workflows
    children = (*found.children.get(op.run_id, ()), *assembly.children.get(op.run_id, ()))
    stored: Stored | None = None
    if isinstance(op, Wake) and run is not None and run.owner == me and op.run_id in found.runs:
        stored = found.runs[op.run_id].waits, found.runs[op.run_id].events
    task = found.tasks.get(op.task_id) if isinstance(op, Answer) else None
    return op, Scene(box, has_code, children, stored, task)


def _heard(op: Cooperate, scene: Scene, told: Sequence[Tell], hearing: Hearing) -> tuple[Cooperate, Scene]:
    """What a run wants to write that has got word since it decided that: it does not rest, nor is it done for good if
    it is to be undone."""
    if op.status is Status.SUSPENDED and (told or hearing.heard(op.run_id) != op.heard):
        op = replace(op, status=Status.RUNNING)
    elif op.status is Status.SUCCEEDED:
        is_undone = hearing.is_undone(op.run_id) or any(tell.kind == "undo" for tell in told)
        scene = replace(scene, is_undone=is_undone)
    return op, scene


def _born(op: Start, memory: Memory, assembly: Assembly) -> Start:
    """A child whose parent asked for it in an earlier commit: it must still be there to have it."""
    parent = assembly.runs.get(op.parent_id or "") or memory.runs.get(op.parent_id or "")
    if parent is None or parent.status in FINISHED or parent.hold is not None:
        raise RunFinished(f"run {op.parent_id!r} is not there any more to start {op.run_id!r}", run_id=op.run_id)
    return born_of(parent, op)
