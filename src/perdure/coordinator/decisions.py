"""Deciding a batch: what each op comes to, on what is in memory, what was looked up, and what the ops before it did."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Container, Iterable, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from perdure.coordinator.batch_builder import BatchBuilder
from perdure.coordinator.batch_context import BatchContext
from perdure.coordinator.damage import check_sound
from perdure.coordinator.inbox import Item
from perdure.coordinator.memory import Memory
from perdure.errors import (
    AskedMeanwhile,
    DeadLetterNotFound,
    EngineBug,
    HandlersChanged,
    PerdureError,
    RowDamaged,
    RunFinished,
    RunOwnedElsewhere,
)
from perdure.kernel import mailboxes
from perdure.kernel.batch import Batch
from perdure.kernel.decide import Decision, born_of, decide, goes_on
from perdure.kernel.decision import NO_INPUT, DecisionInput, Stored
from perdure.kernel.effects import Proceed
from perdure.kernel.invariants import check_decision
from perdure.kernel.mailboxes import EMPTY
from perdure.kernel.ops import (
    Advance,
    Answer,
    Cancel,
    Cooperate,
    Emit,
    Expire,
    Forget,
    Op,
    Send,
    SetHold,
    Start,
    Tell,
    Wake,
)
from perdure.kernel.pieces import Pieces, at_once
from perdure.kernel.records import Engine, Hold, Run
from perdure.kernel.rules.operations import ASK, CALLED, FENCE, JOIN, NEWS, keeps_on
from perdure.kernel.status import FINISHED, Status

log = logging.getLogger("perdure")

WRITTEN: Final = Decision(reply=True)

DECIDED_AT_ONCE_MAX: Final = 512  # ops, in one turn of the loop: more than a batch has

_STOPPING = (Cancel, Expire, SetHold, Tell)  # ops that may stop a run from outside
_WAKING = (Wake, Expire)  # whoever owns the run wakes it by itself


class Outlook:
    """Which waiting runs can go on with what one batch tells them. Here nothing is known of runs: each may."""

    def is_ready(self, tell: Tell) -> bool:
        """Whether a waiting run can go on that is told this, after what this was asked about before."""
        del tell
        return True


class Hearing(Protocol):
    """What runs of operations that are in memory have heard. These have none in memory."""

    def outlook(self) -> Outlook:
        """For one batch."""
        return Outlook()

    def heard(self, run_id: str) -> int:
        """How often a run has got word so far."""
        del run_id
        return 0

    def is_undone(self, run_id: str) -> bool:
        """Whether a run knows that what it does is to be undone."""
        del run_id
        return False

    def is_asked(self, run_id: str, heard: int) -> bool:
        """Whether a run was asked to give up after it had got word this often."""
        del run_id, heard
        return False


class Deaf(Hearing):
    """Nobody is here."""


class Posted(Struct, frozen=True):
    """An op was left for another engine, which will answer in this slot."""

    slot: str


Decided = tuple[Item, Decision | Proceed | Posted | PerdureError]  # Proceed: a plain advance


class DecidedBatch(Struct):
    """The batch, what each op came to, and what has to be done about runs that nothing could be decided about."""

    builder: BatchBuilder
    decided: list[Decided]
    owed: list[Op]
    stopped: list[str]  # runs that are stopped from outside, or asked to give up


class Knowledge(Struct, frozen=True, kw_only=True):
    """What a batch is decided by, beside its ops and what was looked up for them.

    `hearing` tells of runs of operations what they know. `book` is the version of the book of handlers, if it has been
    found that some of the ops do not know it.
    """

    memory: Memory
    workflows: Container[tuple[str, str, str]]
    engine: Engine
    number: int
    now: int
    hearing: Hearing
    book: int | None = None


def decide_batch(items: Iterable[Item], found: BatchContext, **knowledge: Any) -> DecidedBatch:
    """As `in_pieces`, at once."""
    return at_once(in_pieces(items, found, Knowledge(**knowledge)))


def in_pieces(items: Iterable[Item], found: BatchContext, knowledge: Knowledge) -> Pieces[DecidedBatch]:
    """Decide ops one after the other, each on what those before it came to. `found` is what was looked up for them.

    One op may bring ten thousand more, which are decided with it: a piece has at most DECIDED_AT_ONCE_MAX ops.
    """
    deciding = _Deciding(found, knowledge)
    follow_ups = deciding.follow_ups
    count = 0
    for item in items:
        following: Item | None = item
        while following is not None:
            count += 1
            if count % DECIDED_AT_ONCE_MAX == 0:
                yield
            deciding.decide(following)
            following = follow_ups.popleft() if follow_ups else None
    return DecidedBatch(deciding.builder, deciding.decided, deciding.owed, deciding.stopped)


class _Deciding:
    """One batch while it is decided."""

    def __init__(self, found: BatchContext, knowledge: Knowledge) -> None:
        engine = knowledge.engine
        batch = Batch(engine_id=engine.id, epoch=engine.epoch, number=knowledge.number, at=knowledge.now)
        self.builder = BatchBuilder(batch)
        self.decided: list[Decided] = []
        self.owed: list[Op] = []
        self.stopped: list[str] = []
        self.follow_ups: deque[Item] = deque()  # ops that decisions brought, which come next
        self._found = found
        self._knowledge = knowledge
        self._told: dict[str, list[Tell]] = {}
        self._outlook = knowledge.hearing.outlook()

    def decide(self, item: Item) -> None:
        """Decide one op, and take in what it comes to."""
        op, me = item.op, self._knowledge.engine.id
        # What is stored may have another owner than what an op before this one made of it: one that is dead.
        before = self._knowledge.memory.runs.get(op.run_id)
        run = self.builder.runs.get(op.run_id, before)
        try:
            if type(op) is Advance and run is not None and goes_on(run, op, me):
                self.builder.add_entries(op.entries)
                self.decided.append((item, Proceed(run.id)))
                return
            if type(op) is Cooperate and run is not None and keeps_on(run, op, me):
                self.builder.add_cooperation(op.added)
                self.decided.append((item, WRITTEN))
                return
            if type(op) is Start:
                op = self._admitted(op, is_asked=item.reply is not None)
            before, run = self._stored(op, before, run)
            op, inputs = self._inputs(op, run)
            decision = decide(run, op, me, inputs)
            check_decision(decision)
        except PerdureError as error:
            self._refuse(item, op, error)
        else:
            self._take_in(item, before, decision, inputs)

    def _admitted(self, op: Start, *, is_asked: bool) -> Start:
        """A start, with whether its run begins at once. `is_asked`: somebody waits for the answer."""
        has_code = op.admit and (op.model, op.workflow, op.workflow_version) in self._knowledge.workflows
        op = replace(op, admitted_at=self._knowledge.now, admit=has_code)
        is_born = op.parent_id is not None and is_asked
        return _born(op, self._knowledge.memory, self.builder) if is_born else op

    def _stored(self, op: Op, before: Run | None, run: Run | None) -> tuple[Run | None, Run | None]:
        """A run as it was before the batch and as it is now, also if memory does not have it. Raises RowDamaged."""
        if before is None and op.run_id in self._found.runs:
            loaded = self._found.runs[op.run_id]
            before = loaded.run
            if run is None:
                check_sound(loaded, op)
                # Nobody writes any more in the name of an owner that is dead.
                run = replace(before, owner=None) if loaded.forsaken else before
        return before, run

    def _inputs(self, op: Op, run: Run | None) -> tuple[Op, DecisionInput]:
        """What an op is decided on beside its run, and the op with what is known by now. Raises what refuses it."""
        known, builder = self._knowledge, self.builder
        match op:
            case Advance():
                mailbox = builder.mailboxes.get(op.run_id) or known.memory.mailboxes.get(op.run_id)
                inputs = NO_INPUT if mailbox is None else DecisionInput(mailbox)
                if op.continuation is not None:
                    continuation = ("", op.continuation.workflow, op.continuation.workflow_version)
                    inputs = DecisionInput(inputs.mailbox, continuation in known.workflows)
                return op, inputs
            case Start():
                return op, NO_INPUT
            case Cooperate() | Emit() if known.book is not None and op.added.book not in (None, known.book):
                raise HandlersChanged("a handler was registered or taken out meanwhile", run_id=op.run_id)
            case _:
                inputs = NO_INPUT
        if type(op) is not Cooperate or op.run_id in self._found.runs:
            op, inputs = _inputs(op, run, self._found, builder, known.memory, known.workflows, known.engine.id)
        match op:
            case Cooperate():
                return _heard(op, inputs, self._told.get(op.run_id, ()), known.hearing)
            case Tell() if op.kind != FENCE:
                self._told.setdefault(op.run_id, []).append(op)
                return op, replace(inputs, is_ready=self._outlook.is_ready(op))
            case _:
                return op, inputs

    def _take_in(self, item: Item, before: Run | None, decision: Decision, inputs: DecisionInput) -> None:
        run_id, builder = item.op.run_id, self.builder
        builder.add(before, decision)
        self.decided.append((item, decision))
        if decision.effects and isinstance(item.op, _STOPPING) and getattr(item.op, "kind", "") not in (NEWS, JOIN):
            self.stopped.append(run_id)
        if item.mail:
            builder.answer(item.mail, decision.reply)
        if run_id in self._found.runs and run_id not in builder.mailboxes:
            builder.mailboxes[run_id] = inputs.mailbox  # It counts if the run is ours from now on.
        if decision.follow_ups:
            self.follow_ups.extendleft([Item(post, None, False) for post in reversed(decision.follow_ups)])

    def _refuse(self, item: Item, op: Op, error: PerdureError) -> None:
        """Nothing was decided: leave the op to the run's owner, or have the error be the answer."""
        if isinstance(error, RunOwnedElsewhere):
            # It is for the run's owner to decide. What came by mail is there for it already.
            if item.mail or type(op) in _WAKING:
                self.decided.append((item, error))
            else:
                self.decided.append((item, Posted(self.builder.post(op, is_awaited=item.reply is not None))))
            return
        is_bug = isinstance(error, EngineBug) and not isinstance(error, RowDamaged)
        if is_bug:
            # A bug about one run must not stop all others: it is set aside, with what was found, if it is ours.
            log.error("an op for run %s could not be decided", op.run_id, exc_info=error)
        self.decided.append((item, error))
        if item.mail:
            self.builder.answer(item.mail, error)
        if is_bug and self._knowledge.memory.runs.pop(op.run_id, None) is not None:
            hold = Hold(kind="blocked", reason=f"engine bug: {error}", at=op.at)
            self.owed.append(SetHold(run_id=op.run_id, at=op.at, hold=hold))


def insertable_batch(op: Start, engine: Engine) -> Batch:
    """What a start comes to that is not this engine's to commit: the rows of a run that waits for somebody to take it.
    Raises InvariantViolated."""
    builder = BatchBuilder(Batch(engine_id=engine.id, epoch=engine.epoch, number=0, at=op.at))
    decision = decide(None, replace(op, admit=False), engine.id)
    check_decision(decision)
    builder.add(None, decision)
    return builder.batch


def insertable_emission(op: Emit, engine: Engine) -> Batch:
    """The same for a message and the runs of those who handle it."""
    builder = BatchBuilder(Batch(engine_id=engine.id, epoch=engine.epoch, number=0, at=op.at))
    for one in (op, *(replace(start, admit=False) for start in op.starts)):
        decision = decide(None, one, engine.id)
        check_decision(decision)
        builder.add(None, decision)
    return builder.batch


def _inputs(
    op: Op,
    run: Run | None,
    found: BatchContext,
    builder: BatchBuilder,
    memory: Memory,
    workflows: Container[tuple[str, str, str]],
    me: str,
) -> tuple[Op, DecisionInput]:
    mailbox = builder.mailboxes.get(op.run_id) or memory.mailboxes.get(op.run_id)
    if mailbox is None:
        loaded = None if op.run_id in memory.runs else found.runs.get(op.run_id)
        mailbox = EMPTY if loaded is None else mailboxes.opened(loaded.waits, loaded.events)
    letter = op.letter if isinstance(op, (Send, Forget)) else ""
    if letter and (letter not in found.letters or letter in builder.batch.letters_gone):
        raise DeadLetterNotFound(f"there is no dead letter {letter!r}: it was replayed or removed", letter_id=letter)
    if isinstance(op, Send) and op.event.key is not None:
        known = builder.batch.keys.get(op.event.key) or found.keys.get(op.event.key)
        if known is not None:
            op = replace(op, known=known)
    has_code = run is None or (run.known_model, run.workflow, run.workflow_version) in workflows
    children = (*found.children.get(op.run_id, ()), *builder.children.get(op.run_id, ()))
    stored: Stored | None = None
    # What was stored before this batch is of no matter to a run that has begun anew in it: its positions mean other
    # things now, and the commit frees what had won them.
    is_known = op.run_id in found.runs and op.run_id not in builder.batch.continued
    if isinstance(op, Wake) and run is not None and run.owner == me and is_known:
        stored = found.runs[op.run_id].waits, found.runs[op.run_id].events
    task = found.tasks.get(op.task_id) if isinstance(op, Answer) else None
    return op, DecisionInput(mailbox, has_code, children, stored, task)


def _heard(
    op: Cooperate, inputs: DecisionInput, told: Sequence[Tell], hearing: Hearing
) -> tuple[Cooperate, DecisionInput]:
    """What a run wants to write that has got word since it decided that: it does not rest, nor is it done for good if
    it is to be undone."""
    if op.status is Status.SUSPENDED and (told or hearing.heard(op.run_id) != op.heard):
        op = replace(op, status=Status.RUNNING)
    # What a run calls begins with this very commit, so the run must know what it is asked when it calls.
    is_final = op.status is Status.SUCCEEDED
    is_calling = bool(op.starts) and op.starts[0].bond == CALLED and op.status is not Status.ROLLING_BACK
    if is_final or is_calling:
        kinds = {tell.kind for tell in told} if told else ()
        is_asked = ASK in kinds or (is_calling and "undo" in kinds)
        if is_asked or hearing.is_asked(op.run_id, op.heard):
            raise AskedMeanwhile(f"run {op.run_id!r} was asked to give up", run_id=op.run_id)
        if is_final and ("undo" in kinds or hearing.is_undone(op.run_id)):
            inputs = replace(inputs, is_undone=True)
    return op, inputs


def _born(op: Start, memory: Memory, builder: BatchBuilder) -> Start:
    """A child whose parent asked for it in an earlier commit: it must still be there to have it."""
    parent = builder.runs.get(op.parent_id or "") or memory.runs.get(op.parent_id or "")
    if parent is None or parent.status in FINISHED or parent.hold is not None:
        raise RunFinished(f"run {op.parent_id!r} is not there any more to start {op.run_id!r}", run_id=op.run_id)
    return born_of(parent, op)
