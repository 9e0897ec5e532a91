"""Commands: the requests of one activation of a workflow function, as values.

An activation without an `end` leaves the run suspended. outcomes.py turns an `end` into the run's outcome.

positions.py defines the positions. Times are in microseconds. This module does not know how a step is run, or where a
timer is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct


class StepRequest(Struct, frozen=True):
    """A step that workflow code awaits. `call` is passed on unchanged."""

    position: str
    name: str
    call: Any
    emitted_at: int


class TimerRequest(Struct, frozen=True):
    """A timer that is still set when its activation ends. asyncio's own timers have the `name` "timer"."""

    position: str
    name: str
    due_at: int
    since: int


class Ask(Struct, frozen=True):
    """Any request that is not a step or a timer. `what` is passed on unchanged.

    The `kind` says what the code asks for: an event or the first of several things (wait), a child's result (child), a
    child's id (start), the answer to a task (task), or the registration of a compensation (compensate).
    """

    position: str
    kind: str
    name: str
    what: Any
    since: int


class ChildCall(Struct, frozen=True):
    """The child that a request is about. `bond` is the child's tie to its parent: awaited, started or detached."""

    workflow: Any
    input: str
    bond: str
    id: str | None = None
    tags: Mapping[str, str] = {}
    deadline_us: int | None = None
    digest: str = ""  # the digest of the child's arguments


class Output(Struct, frozen=True):
    """A value that workflow code publishes under a key, or appends to a stream, as JSON.

    An output gets no answer, and has no position. `mark` consists of the completion number of the activation that made
    the output, and the output's number in that activation.
    """

    name: str
    value: str
    is_item: bool
    mark: tuple[int, int] = (0, 0)


class Completed(Struct, frozen=True):
    """The workflow returned."""

    value: Any


class Continued(Struct, frozen=True):
    """The workflow continues as another call."""

    workflow: Any
    input: str


class Raised(Struct, frozen=True):
    """The workflow raised an error: any BaseException, including CancelledError, KeyboardInterrupt and SystemExit."""

    error: BaseException


class Commands(Struct):
    """The requests of one activation, each kind in program order.

    If `end` is set, the run asks for nothing more, and everything else except `outputs` is empty. `only_steps` says
    that everything except `steps` is empty. Most activations are like that. Withdrawn positions belong to requests of
    earlier activations. A request that is made and withdrawn in the same activation does not appear.
    """

    steps: Sequence[StepRequest] = ()
    only_steps: bool = False
    steps_cancelled: Sequence[str] = ()
    timers: Sequence[TimerRequest] = ()
    timers_dropped: Sequence[str] = ()
    asks: Sequence[Ask] = ()
    asks_withdrawn: Sequence[str] = ()
    outputs: Sequence[Output] = ()
    end: Completed | Raised | Continued | None = None


Request = TypeVar("Request")


class Outstanding(Generic[Request]):
    """A live view of the requests that are not answered yet, in the order in which they were made. `position in
    outstanding` tests whether a request is outstanding at that position.
    """

    __slots__ = ("_asked",)

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self._asked = asked  # Futures and timer handles, each with its `request`.

    def __len__(self) -> int:
        return len(self._asked)

    def __iter__(self) -> Iterator[Request]:
        return (one.request for one in self._asked.values())

    def __contains__(self, position: str) -> bool:
        return position in self._asked
