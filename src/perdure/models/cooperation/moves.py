"""What the rules are told, and what they answer: a run as it stands, its next move, and what is to be written.

All of it is data. A move with `rows` needs no user code: the rows are the move. The others name the code to be run, and
what came of it goes back to the rules.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar, Literal

from msgspec import Struct, field

from perdure.models.cooperation.children import Child, Children
from perdure.models.cooperation.context import EMPTY, Context
from perdure.models.cooperation.events import Lineage, Message, MessageEvent, ReturnValue, State
from perdure.models.cooperation.failures import Failure, source_of
from perdure.models.cooperation.scope import Call, Emission, NextStep


class NewRun(Struct, frozen=True, kw_only=True, gc=False):
    """A run for one expected handler of a message, or for a call. It is created in the commit that writes EMITTED."""

    lineage: Lineage
    handler: str
    message_id: str
    is_call: bool = False  # It is of a function or a graph, which knows nothing of messages.
    call: Call | None = None  # what it is to be started with
    tokens: tuple[str, ...] = ()  # names of cancellation tokens that it has, and that the emitter does not have

    @property
    def id(self) -> str:
        return self.lineage[-1]


class Ask(Struct, frozen=True, kw_only=True, gc=False):
    """Somebody wants the run to give up: a cancellation of its lineage or of one above it, or the rollback of a run
    above it that had not finished. `depth` is the number of ids in the lineage that it was asked of."""

    kind: Literal["cancel", "rollback"]
    depth: int
    failure: Failure


class OperationRun(Struct, frozen=True, kw_only=True, gc=False):
    """All that the rules need to know of one run. `events` are the rows of its lineage in order, `origin` the EMITTED
    of its message, `told` the ROLLBACK_EMITTED of it. `wakes` has the time of each sleep among its emissions."""

    lineage: Lineage
    handler: str
    origin: MessageEvent
    events: tuple[MessageEvent, ...] = ()
    told: MessageEvent | None = None
    asks: tuple[Ask, ...] = ()
    children: Children = field(default_factory=Children)
    wakes: Mapping[str, int] = field(default_factory=dict)
    returned: frozenset[str] = frozenset()  # the names of what it has returned so far
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
    """What a run does next. `rows` are to be written in one commit."""

    rows: tuple[MessageEvent, ...] = ()


class Take(Move, frozen=True, kw_only=True, gc=False):
    """Write SEEN: a handler's engine has taken the run."""


class Refuse(Move, frozen=True, kw_only=True, gc=False):
    """Never begin: SEEN, ROLLING_BACK and ROLLED_BACK in one commit, and no code is run."""

    failure: Failure


class Invoke(Move, frozen=True, kw_only=True, gc=False):
    """Run a step. With `cleanup`, its finally is to be called too if it raises."""

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
    text: str = ""  # the phase of the rollback that it is asked in
    next_step: int | None = None  # where the step said to go on, as a place in the plan


class Undo(Move, frozen=True, kw_only=True, gc=False):
    """Call a step's rollback, after its finally if that has not been run (`cleanup`)."""

    rolling_back: ClassVar[bool] = True
    index: int
    name: str
    iteration: int
    cause: Failure
    context: Context
    text: str
    cleanup: bool = False


class BeginRollback(Move, frozen=True, kw_only=True, gc=False):
    """Write ROLLING_BACK: by the parent's word, for failed children that nobody dealt with, or giving up."""

    failure: Failure


class TellChildren(Move, frozen=True, kw_only=True, gc=False):
    """The first half of rolling back a step instance: ROLLBACK_EMITTED for each of its emissions, and SUSPENDED."""

    messages: tuple[str, ...]
    text: str


class Note(Move, frozen=True, kw_only=True, gc=False):
    """A part of a rollback that needs no code: a step without rollback, or a failure recorded and passed over."""


class Finish(Move, frozen=True, kw_only=True, gc=False):
    """Write COMMITTED, ROLLED_BACK or ROLLBACK_FAILED."""

    state: State
    failure: Failure | None = None


class Wait(Move, frozen=True, kw_only=True, gc=False):
    """Nothing to do until a child changes, something is asked, or the time has come."""

    until: int | None = None


class Dismiss(Move, frozen=True, kw_only=True, gc=False):
    """Have these children never begin, unless they have; then look again. Each child's own writer decides."""

    children: Collection[Child]


class Block(Move, frozen=True, kw_only=True, gc=False):
    """The code does not fit the rows: a step that was run is not in the operation any more."""

    reason: str


class Nothing(Move, frozen=True, kw_only=True, gc=False):
    """The run has ended."""

    state: State


# ---------------------------------------------------------------------------------------------------------------------
# Outcomes


class Returned(Struct, frozen=True, kw_only=True, gc=False):
    """What user code asked for and said before it returned. `staged` is where that is stored already."""

    said: NextStep | None = None
    context: Context = EMPTY
    emissions: tuple[Emission, ...] = ()
    values: tuple[ReturnValue, ...] = ()
    staged: str = ""


class Raised(Struct, frozen=True, kw_only=True, gc=False):
    """What user code raised. All that it asked for before is dropped."""

    staged: ClassVar[str] = ""
    failure: Failure


Outcome = Returned | Raised


class Writes(Struct, frozen=True, kw_only=True, gc=False):
    """What is written in one commit."""

    rows: tuple[MessageEvent, ...] = ()
    messages: tuple[Message, ...] = ()
    runs: tuple[NewRun, ...] = ()
    values: tuple[ReturnValue, ...] = ()
