"""What one activation of a workflow function asks for, as values. Positions are those of asking.py; times are in µs.

Nothing here knows how a step is carried out or where a timer is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct


class StepRequest(Struct, frozen=True):
    """A step that workflow code awaits. `call` is handed through untouched."""

    position: str
    name: str
    call: Any
    emitted_at: int


class TimerRequest(Struct, frozen=True):
    """A timer that outlived the activation that set it. `name` is "timer" for those of asyncio."""

    position: str
    name: str
    due_at: int
    since: int


class Ask(Struct, frozen=True):
    """Something else that workflow code awaits: an event or one of several things (wait), a child's result (child), a
    child's id (start), the answer to a task (task). `what` is handed through untouched."""

    position: str
    kind: str
    name: str
    what: Any
    since: int


class ChildCall(Struct, frozen=True):
    """What a request for a child is about. `bond` is what ties it to its parent: awaited, started or detached."""

    workflow: Any
    input: str
    bond: str
    id: str | None = None
    tags: Mapping[str, str] = {}
    deadline_us: int | None = None
    digest: str = ""  # of its arguments


class Post(Struct, frozen=True):
    """What workflow code says: a value for a key, or an item for a stream; as JSON. It is not answered, and has no
    position; `mark` is the completion number of the activation that said it, and its place in that."""

    name: str
    value: str
    is_item: bool
    mark: tuple[int, int] = (0, 0)


class Completed(Struct, frozen=True):
    """The workflow returned."""

    value: Any


class Continued(Struct, frozen=True):
    """The workflow goes on as another call."""

    workflow: Any
    input: str


class Raised(Struct, frozen=True):
    """The workflow raised: any BaseException, CancelledError, KeyboardInterrupt and SystemExit included."""

    error: BaseException


class Commands(Struct):
    """What one activation asks for, each in program order. With `end` all else but `outputs` is empty: the run asks for
    nothing more. `only_steps` says that all else is empty, as it mostly is.

    Withdrawn positions are those of earlier activations: what was asked for and withdrawn in the same one never shows.
    """

    steps: Sequence[StepRequest] = ()
    only_steps: bool = False
    steps_cancelled: Sequence[str] = ()
    timers: Sequence[TimerRequest] = ()
    timers_dropped: Sequence[str] = ()
    asks: Sequence[Ask] = ()
    asks_withdrawn: Sequence[str] = ()
    outputs: Sequence[Post] = ()
    end: Completed | Raised | Continued | None = None


Request = TypeVar("Request")


class Outstanding(Generic[Request]):
    """A live view of the requests that have not been answered, in the order of asking; `in` takes a position."""

    __slots__ = ("_asked",)

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self._asked = asked  # Futures and timer handles, each with its `request`.

    def __len__(self) -> int:
        return len(self._asked)

    def __iter__(self) -> Iterator[Request]:
        return (one.request for one in self._asked.values())

    def __contains__(self, position: str) -> bool:
        return position in self._asked
