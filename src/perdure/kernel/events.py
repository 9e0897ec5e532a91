"""Events and dead letters as they are stored. Times are microseconds since the epoch; values are JSON text, and opaque.

rules/delivery.py and rules/broadcasts.py decide which wait gets an event. rules/unread_events.py decides what happens
to the events that a run has not read when it ends.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field


class Event(Struct, frozen=True, kw_only=True, gc=False):
    """A named value on its way to runs. `run_id` is the run that it is for: its target, or the waiting run that a
    broadcast was given to (then `shared` is set). None: the event is in the queue of its name. `position` is the wait
    that the event won.

    If `consumed`, the event goes to its first reader only. Otherwise it is retained for all readers until it expires.
    """

    id: str
    name: str
    value: str = ""  # JSON, encoded by the codec
    fields: Mapping[str, str] = field(default_factory=dict)  # the fields that waits can choose by, as JSON
    run_id: str | None = None
    shared: bool = False
    consumed: bool = True
    position: str | None = None
    option: int = 0
    number: int = 0  # the order of sending; given by the store
    expires_at: int
    fallback: str = "discard"  # if its target ends first: discard | broadcast | dead_letter
    key: str | None = None
    actor: str = ""
    at: int


_MISFIT = "misfit: "


class DeadLetter(Struct, frozen=True, kw_only=True):
    """An event that its target could not read, or did not read before it ended."""

    id: str
    name: str
    value: str
    fields: Mapping[str, str] = field(default_factory=dict)
    run_id: str
    status: str  # how the target ended, or (see misfit) why it could not read the event
    ended_at: int  # when the target ended, or when it could not read the event
    consumed: bool = True
    at: int  # when it was sent

    @property
    def reason(self) -> str:
        """The reason why the reader could not read the event; empty if the target ended first."""
        return self.status.removeprefix(_MISFIT) if self.status.startswith(_MISFIT) else ""


def misfit(reason: str) -> str:
    """Return the status of a dead letter that its reader could not read."""
    return f"{_MISFIT}{reason}"
