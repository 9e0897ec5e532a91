"""Effects: what is to be done once a decision is committed. Plain values; the engine performs them."""

from __future__ import annotations

from msgspec import Struct

from perdure.kernel.ops import Tell
from perdure.kernel.records import Event, Outcome, Run


class Begin(Struct, frozen=True, gc=False):
    """Bring this run to life on this engine: from the given input if it is new (None: from its stored journal).

    `is_ahead`: the run was brought to life before it was claimed, and what it did then is committed with the claim."""

    run: Run
    input: str | None = None
    is_ahead: bool = False


class Proceed(Struct, frozen=True, gc=False):
    """What the run's last advance asked for may now be done."""

    run_id: str


class Drop(Struct, frozen=True, gc=False):
    """This run is no longer ours, or set aside: close it, stop its steps, forget it."""

    run_id: str
    reason: str


class Finish(Struct, frozen=True, gc=False):
    """This run has ended: close it, and tell whoever waits for its outcome."""

    run: Run
    outcome: Outcome


class Deliver(Struct, frozen=True, gc=False):
    """A position that this run waits at was won: by an event, by the end of the run `target`, or by its timer."""

    run_id: str
    position: str
    option: int
    event: Event | None = None
    target: str | None = None
    outcome: tuple[Run, Outcome] | None = None  # the target's, if it is known


class Rearm(Struct, frozen=True, gc=False):
    """This run's deadline changed."""

    run: Run


class Examine(Struct, frozen=True, gc=False):
    """This run of an operation is held: find out from its rows what can be done with it meanwhile."""

    run: Run


class Published(Struct, frozen=True, gc=False):
    """This run has published something, or a stream of its has grown: tell whoever reads."""

    run_id: str


class Look(Struct, frozen=True, gc=False):
    """This run of an operation has got word."""

    run_id: str
    tell: Tell


Effect = Begin | Proceed | Deliver | Drop | Finish | Rearm | Examine | Published | Look
