"""The values that the machine takes and returns: a run's state, its next move, and the writes of a commit.

They are data. A move with `rows` needs no user code: the rows are the move. The other moves name the code to run, and
the outcome of that code goes back to the machine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, ClassVar, Literal

from msgspec import Struct, field

from perdure.kernel.lineages import Lineage
from perdure.models.cooperation.children import Child, Children
from perdure.models.cooperation.context import EMPTY, Context
from perdure.models.cooperation.failures import (
    Failure,
    placed,
    source_of,
)
from perdure.models.cooperation.message_events import EventType, Message, MessageEvent, State
from perdure.models.cooperation.return_values import ReturnValue
from perdure.models.cooperation.scope import Call, Emission, NextStep


class NewRun(Struct, frozen=True, kw_only=True, gc=False):
    """A run for one expected handler of a message, or for a call. It is created in the commit that writes EMITTED."""

    lineage: Lineage
    handler: str
    message_id: str
    is_call: bool = False  # It runs a function or a graph, which knows nothing of messages.
    call: Call | None = None  # the function or graph to start, with its arguments
    tokens: tuple[str, ...] = ()  # names of cancellation tokens that it has, and that the emitter does not have

    @property
    def id(self) -> str:
        return self.lineage[-1]


class Ask(Struct, frozen=True, kw_only=True, gc=False):
    """A request that the run give up: a cancellation of its lineage or of one above it, or the rollback of a run above
    it that had not finished. `depth` is the number of ids in the lineage that the request was made to."""

    kind: Literal["cancel", "rollback"]
    depth: int
    failure: Failure


class OperationRun(Struct, frozen=True, kw_only=True, gc=False):
    """Everything that the machine needs to know about one run.

    `events` are the rows of its lineage in order. `origin` is the EMITTED of its message, `rollback_request` the
    ROLLBACK_EMITTED of its message. `wakes` has the time at which each sleep among its emissions ends.
    """

    lineage: Lineage
    handler: str
    origin: MessageEvent
    events: tuple[MessageEvent, ...] = ()
    rollback_request: MessageEvent | None = None
    asks: tuple[Ask, ...] = ()
    children: Children = field(default_factory=Children)
    wakes: Mapping[str, int] = field(default_factory=dict)
    returned: AbstractSet[str] = frozenset()  # the names of the values that it has returned so far
    now: int

    @property
    def message_id(self) -> str:
        return self.origin.message_id

    @property
    def source(self) -> str:
        return source_of(self.handler, self.lineage[-1])


# ---------------------------------------------------------------------------------------------------------------------
# Moves


class Move(Struct, frozen=True, kw_only=True, gc=False):
    """The next action of a run. `rows` are to be written in one commit."""

    rows: tuple[MessageEvent, ...] = ()


class Take(Move, frozen=True, kw_only=True, gc=False):
    """Write SEEN: a handler's engine has taken the run."""


class Refuse(Move, frozen=True, kw_only=True, gc=False):
    """Never begin: SEEN, ROLLING_BACK and ROLLED_BACK in one commit, and no code is run."""

    failure: Failure


class Invoke(Move, frozen=True, kw_only=True, gc=False):
    """Run a step. With `cleanup`, the step has a finally, which is called too if the step raises."""

    rolling_back: ClassVar[bool] = False
    index: int
    name: str
    iteration: int
    context: Context
    cleanup: bool = False


class Handle(Move, frozen=True, kw_only=True, gc=False):
    """Call the step's handler of child failures, for the `attempt`-th time in a row, counted from 1."""

    index: int
    name: str
    iteration: int
    attempt: int
    failure: Failure
    context: Context
    rolling_back: bool = False
    text: str = ""  # the phase of the rollback in which it is called
    next_step: int | None = None  # where the step said to go on, as a place in the plan


class Undo(Move, frozen=True, kw_only=True, gc=False):
    """Call a step's rollback. With `cleanup`, its finally has not run yet and is called first."""

    rolling_back: ClassVar[bool] = True
    index: int
    name: str
    iteration: int
    cause: Failure
    context: Context
    text: str
    cleanup: bool = False


class BeginRollback(Move, frozen=True, kw_only=True, gc=False):
    """Write ROLLING_BACK: the parent rolls back, children failed and that was not handled, or the run gives up."""

    failure: Failure


class UndoChildren(Move, frozen=True, kw_only=True, gc=False):
    """Do the first half of rolling back a step instance: write ROLLBACK_EMITTED for each of its emissions, and
    SUSPENDED."""

    messages: tuple[str, ...]
    text: str


class Note(Move, frozen=True, kw_only=True, gc=False):
    """Write a part of a rollback that needs no code: a step has no rollback, or a failure is recorded and passed
    over."""


class Finish(Move, frozen=True, kw_only=True, gc=False):
    """Write COMMITTED, ROLLED_BACK or ROLLBACK_FAILED."""

    state: State
    failure: Failure | None = None


Awaits = Literal["all", "busy", "missing", "any"]


class Wait(Move, frozen=True, kw_only=True, gc=False):
    """Do nothing until children have ended, the run is asked to give up, or the time has come.

    `awaits` says which children of the window must end before the machine is asked again: all that have not ended,
    those that have begun, or those that have not begun. With "any", the end of one child may be enough.
    """

    until: int | None = None
    awaits: Awaits = "any"


class Dismiss(Move, frozen=True, kw_only=True, gc=False):
    """Keep these children from beginning, then ask the machine again. A child that has begun meanwhile goes on, because
    its own writer decides."""

    children: Collection[Child]


class Block(Move, frozen=True, kw_only=True, gc=False):
    """Stop: the code does not fit the rows, since the operation no longer has a step that was run."""

    reason: str


class Nothing(Move, frozen=True, kw_only=True, gc=False):
    """The run has ended."""

    state: State


# ---------------------------------------------------------------------------------------------------------------------
# Outcomes


class Returned(Struct, frozen=True, kw_only=True, gc=False):
    """The requests of user code, and the next step that it named (`said`). `staged` is the position at which the
    requests are already stored."""

    said: NextStep | None = None
    context: Context = EMPTY
    emissions: tuple[Emission, ...] = ()
    values: tuple[ReturnValue, ...] = ()
    staged: str = ""


class Raised(Struct, frozen=True, kw_only=True, gc=False):
    """The failure that user code raised. Everything that the code asked for before it raised is dropped."""

    staged: ClassVar[str] = ""
    failure: Failure


Outcome = Returned | Raised


class Writes(Struct, frozen=True, kw_only=True, gc=False):
    """The writes of one commit."""

    rows: tuple[MessageEvent, ...] = ()
    messages: tuple[Message, ...] = ()
    runs: tuple[NewRun, ...] = ()
    values: tuple[ReturnValue, ...] = ()


def row_of(
    run: OperationRun,
    seq: int,
    type: EventType,
    *,
    message_id: str | None = None,
    exception: Failure | None = None,
    **columns: Any,
) -> MessageEvent:
    """Return a row of the run. The row stores the whole failure, unless another row has stored it."""
    return MessageEvent(
        seq=seq,
        message_id=message_id or run.message_id,
        type=type,
        coroutine_name=run.handler,
        coroutine_identifier=run.lineage[-1],
        cooperation_lineage=run.lineage,
        created_at=run.now,
        exception=None if exception is None else placed(exception, run.lineage[-1], seq),
        **columns,
    )
