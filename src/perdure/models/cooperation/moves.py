"""The values that the machine takes and returns: the state of a run, its next move, and the writes of a commit.

They are plain data. A move with `rows` needs no user code. It consists of these rows. Any other move names code to run.
The outcome of that code goes back to the machine.
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
    """A run for one expected handler of a message, or for a call. The commit that writes EMITTED creates it."""

    lineage: Lineage
    handler: str
    message_id: str
    is_call: bool = False  # The run is a function or a graph, which does not know messages.
    call: Call | None = None  # the function or graph to start, with its arguments
    tokens: tuple[str, ...] = ()  # the names of the cancellation tokens that this run has and its emitter does not have

    @property
    def id(self) -> str:
        return self.lineage[-1]


class Ask(Struct, frozen=True, kw_only=True, gc=False):
    """A request that the run gives up. Its lineage or a lineage above it was cancelled, or an unfinished run above it
    rolls back. `depth` is the number of ids in the lineage to which the request was made.
    """

    kind: Literal["cancel", "rollback"]
    depth: int
    failure: Failure


class OperationRun(Struct, frozen=True, kw_only=True, gc=False):
    """Everything that the machine needs to know about one run.

    `events` are the rows of its lineage, in order. `origin` is the EMITTED row of its message. `rollback_request` is
    the ROLLBACK_EMITTED row of its message. `wakes` has the end times of the sleeps among its emissions.
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
    """The next action of a run. `rows` must be written in one commit."""

    rows: tuple[MessageEvent, ...] = ()


class Take(Move, frozen=True, kw_only=True, gc=False):
    """Write SEEN, because an engine that has the handler's code has taken the run."""


class Refuse(Move, frozen=True, kw_only=True, gc=False):
    """Never begin. SEEN, ROLLING_BACK and ROLLED_BACK are written in one commit, and no code runs."""

    failure: Failure


class Invoke(Move, frozen=True, kw_only=True, gc=False):
    """Run a step. With `cleanup`, the step has a finally function. It is called too if the step raises."""

    rolling_back: ClassVar[bool] = False
    index: int
    name: str
    iteration: int
    context: Context
    cleanup: bool = False


class Handle(Move, frozen=True, kw_only=True, gc=False):
    """Call the step's handler of child failures. `attempt` counts the calls in a row, from 1."""

    index: int
    name: str
    iteration: int
    attempt: int
    failure: Failure
    context: Context
    rolling_back: bool = False
    text: str = ""  # the phase of the rollback in which it is called
    next_step: int | None = None  # the index in the plan at which the step said to go on


class Undo(Move, frozen=True, kw_only=True, gc=False):
    """Call a step's rollback function. With `cleanup`, the step's finally function has not run yet. It is called
    first.
    """

    rolling_back: ClassVar[bool] = True
    index: int
    name: str
    iteration: int
    cause: Failure
    context: Context
    text: str
    cleanup: bool = False


class BeginRollback(Move, frozen=True, kw_only=True, gc=False):
    """Write ROLLING_BACK. The parent rolls back, or children failed and nothing handled that, or the run gives up."""

    failure: Failure


class UndoChildren(Move, frozen=True, kw_only=True, gc=False):
    """Roll back the children of a step instance: write ROLLBACK_EMITTED for each of its emissions, and SUSPENDED."""

    messages: tuple[str, ...]
    text: str


class Note(Move, frozen=True, kw_only=True, gc=False):
    """Write a part of a rollback that needs no code. Either the step has no rollback function, or a failure is recorded
    and the rollback goes on.
    """


class Finish(Move, frozen=True, kw_only=True, gc=False):
    """Write COMMITTED, ROLLED_BACK or ROLLBACK_FAILED."""

    state: State
    failure: Failure | None = None


Awaits = Literal["all", "busy", "missing", "any"]


class Wait(Move, frozen=True, kw_only=True, gc=False):
    """Do nothing until children have ended, the run is asked to give up, or a time has come.

    `awaits` says which children of the window must end before the machine is asked again. These are all children that
    have not ended, only those that have begun, or only those that have not begun. With "any", the end of one child may
    be enough.
    """

    until: int | None = None
    awaits: Awaits = "any"


class Dismiss(Move, frozen=True, kw_only=True, gc=False):
    """Keep these children from beginning. Then ask the machine again. A child that has begun in the meantime goes on,
    because its own writer decides.
    """

    children: Collection[Child]


class Block(Move, frozen=True, kw_only=True, gc=False):
    """Stop, because the code does not fit the rows. The operation no longer has a step that was executed."""

    reason: str


class Nothing(Move, frozen=True, kw_only=True, gc=False):
    """The run has ended."""

    state: State


# ---------------------------------------------------------------------------------------------------------------------
# Outcomes


class Returned(Struct, frozen=True, kw_only=True, gc=False):
    """The requests of user code, and the next step that the code has named (`said`). `staged` is the position at which
    the requests are already stored.
    """

    said: NextStep | None = None
    context: Context = EMPTY
    emissions: tuple[Emission, ...] = ()
    values: tuple[ReturnValue, ...] = ()
    staged: str = ""


class Raised(Struct, frozen=True, kw_only=True, gc=False):
    """The failure that user code raised. All requests that the code made before it raised are dropped."""

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
    """Return a row of the run. The row stores the whole failure, unless another row already stores it."""
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
