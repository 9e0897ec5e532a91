"""Events and dead letters in their stored form. Times are microseconds since the epoch. Values are JSON text, which the
kernel does not read.

rules/delivery.py and rules/broadcasts.py decide which wait gets an event. rules/unread_events.py decides what happens
to events that a run has not read before it ends.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field


class Event(Struct, frozen=True, kw_only=True, gc=False):
    """A named value that is sent to runs. `run_id` is the run that gets the event: its target, or the waiting run that
    got a broadcast. In the second case `shared` is set. If `run_id` is None, the event is in the queue of its name.
    `position` is the position of the wait that the event has won.

    If `consumed`, only the first reader gets the event. Otherwise the event is retained for all readers until it
    expires.
    """

    id: str
    name: str
    value: str = ""  # JSON, encoded by the codec
    fields: Mapping[str, str] = field(default_factory=dict)  # the fields by which waits can filter, as JSON
    run_id: str | None = None
    shared: bool = False
    consumed: bool = True
    position: str | None = None
    option: int = 0
    number: int = 0  # the order of sending; the store sets it
    expires_at: int
    fallback: str = "discard"  # what happens if its target ends before reading it: discard | broadcast | dead_letter
    key: str | None = None
    actor: str = ""
    at: int


_MISFIT = "misfit: "


class DeadLetter(Struct, frozen=True, kw_only=True):
    """An event that its target could not read, or had not read when it ended."""

    id: str
    name: str
    value: str
    fields: Mapping[str, str] = field(default_factory=dict)
    run_id: str
    status: str  # how the target ended, or why it could not read the event (see misfit)
    ended_at: int  # when the target ended, or when it could not read the event
    consumed: bool = True
    at: int  # when it was sent

    @property
    def reason(self) -> str:
        """The reason why the run could not read the event. It is empty if the run ended first."""
        return self.status.removeprefix(_MISFIT) if self.status.startswith(_MISFIT) else ""


def misfit(reason: str) -> str:
    """Return the status of a dead letter that a run could not read."""
    return f"{_MISFIT}{reason}"
