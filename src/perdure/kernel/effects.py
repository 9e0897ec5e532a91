"""Effects: the actions that the engine takes once a decision is committed. They are plain values."""

from __future__ import annotations

from msgspec import Struct

from perdure.kernel.events import Event
from perdure.kernel.ops import Notify
from perdure.kernel.runs import Outcome, Run


class Begin(Struct, frozen=True, gc=False):
    """Load this run into this engine's memory. If the run is new, it begins with the given input. If the input is None,
    the run is loaded from its stored journal.

    `is_ahead` says that the run's code ran before the run was claimed, and that its progress is committed with the
    claim. `notified` is the number of notices that an operation's run has got since it was claimed. The run's rows
    contain all of them.
    """

    run: Run
    input: str | None = None
    is_ahead: bool = False
    notified: int = 0


class Proceed(Struct, frozen=True, gc=False):
    """Perform the requests of the run's last advance, because the advance is committed."""

    run_id: str


class Drop(Struct, frozen=True, gc=False):
    """Close this run, stop its steps and forget it, because this engine no longer owns it or it is held."""

    run_id: str
    reason: str


class Finish(Struct, frozen=True, gc=False):
    """Close this run, because it has ended, and hand its outcome to the callers who wait for it."""

    run: Run
    outcome: Outcome


class Deliver(Struct, frozen=True, gc=False):
    """Hand the winner of a position to this run. The winner is an event, the end of the run `target`, or a timer."""

    run_id: str
    position: str
    option: int
    event: Event | None = None
    target: str | None = None
    outcome: tuple[Run, Outcome] | None = None  # the outcome of the target, or None if it is not known


class Rearm(Struct, frozen=True, gc=False):
    """Set the timer for this run's deadline again, because the deadline has changed."""

    run: Run


class Examine(Struct, frozen=True, gc=False):
    """Read the rows of this held run of an operation, to find out how the run can be ended without its code."""

    run: Run


class Published(Struct, frozen=True, gc=False):
    """Notify the readers of this run, because it has published a value or appended to a stream."""

    run_id: str


class Notified(Struct, frozen=True, gc=False):
    """Hand a notice to this run of an operation. `number` counts the notices since the run was claimed."""

    run_id: str
    notice: Notify
    number: int


Effect = Begin | Proceed | Deliver | Drop | Finish | Rearm | Examine | Published | Notified
