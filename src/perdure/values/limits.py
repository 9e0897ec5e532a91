"""The limits of an engine or a client: numbers, sizes and durations."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from msgspec import Struct

from perdure.errors import InvalidArguments
from perdure.values.arguments import Duration, shown, span_of

PAYLOAD_BYTES_MAX: Final = 2 * 1024 * 1024
HIERARCHY_LEVELS_MAX: Final = 1_000
_COUNT_MAX: Final = 2**53
_SECONDS_MAX: Final = 100 * 366 * 86_400  # A thread cannot wait for much longer.
_MAY_BE_ZERO: Final = frozenset({"live_runs_max", "recoveries_max", "restarts_max"})
_TOO_MUCH: Final = "%s is more than any machine has"


class Limits(Struct, frozen=True, kw_only=True):
    """The limits of an engine or a client. A client uses the limits of the store and of events.

    Runs: an engine keeps at most `live_runs_max` suspended runs in memory, and replays other runs on demand. A run is
    held if its workflow code runs `callbacks_max` callbacks without waiting for anything. A run is held as poison if
    its process died `recoveries_max` times while the run executed. Hierarchies of operations have at most
    `hierarchy_levels_max` levels.

    Steps: at most `steps_max` steps run at once. Plain functions run in `threads_max` threads. Steps with
    `process=True` run in `processes_max` processes; the default is the number of processors. At shutdown, running steps
    have `grace_s` to end. If a step blocks the event loop for `blocked_warn_s`, a warning names it.

    Values: an input, a result or an event takes at most `payload_bytes_max` bytes as JSON. An event is kept for
    `event_retention`, unless its class says otherwise. At most `events_pending_max` events of one name may wait to be
    read.

    The store: after `patience_s` without an answer, callers get StoreUnavailable. If an engine's store cannot be used
    (StoreMisconfigured), the engine restarts: it drops its runs, and registers again after a pause. The pause doubles
    from `restart_first_s` to `restart_max_s`. After `restarts_max` restarts, the next failure stops the engine for
    good. If the engine worked for `restart_forget_s` between two restarts, the count begins again. A failed commit is
    resent after `resend_first_s`, then after pauses that grow to `resend_max_s`.

    The coordinator: callers wait while `inbox_max` ops are queued. A batch has at most `batch_ops_max` ops and
    `batch_bytes_max` bytes.
    """

    live_runs_max: int = 20_000
    callbacks_max: int = 100_000
    recoveries_max: int = 5
    hierarchy_levels_max: int = HIERARCHY_LEVELS_MAX
    steps_max: int = 1_000
    threads_max: int = 32
    processes_max: int | None = None
    grace_s: float = 10.0
    blocked_warn_s: float = 1.0
    payload_bytes_max: int = PAYLOAD_BYTES_MAX
    event_retention: Duration = timedelta(days=7)
    events_pending_max: int = 10_000
    inbox_max: int = 10_000
    batch_ops_max: int = 256
    batch_bytes_max: int = 4 * 1024 * 1024
    resend_first_s: float = 0.01
    resend_max_s: float = 1.0
    patience_s: float = 30.0
    restarts_max: int = 10
    restart_first_s: float = 0.5
    restart_max_s: float = 60.0
    restart_forget_s: float = 600.0

    def __post_init__(self) -> None:
        """Raise InvalidArguments for a value that cannot be a limit."""
        span_of(self.event_retention, "event_retention")
        for name in self.__struct_fields__:
            bound = getattr(self, name)
            if name.endswith("_s"):
                _check_seconds(name, bound)
            elif name != "event_retention" and not (bound is None and name == "processes_max"):
                _check_count(name, bound, least=0 if name in _MAY_BE_ZERO else 1)


def _check_count(name: str, bound: object, *, least: int) -> None:
    if not isinstance(bound, int) or isinstance(bound, bool):
        raise InvalidArguments(f"{name} is a number of things, not {shown(bound)}")
    if not least <= bound <= _COUNT_MAX:
        low = f"{name} must be at least {least}, not {shown(bound)}"
        raise InvalidArguments(low if bound < least else _TOO_MUCH % name)


def _check_seconds(name: str, bound: object) -> None:
    if not isinstance(bound, (int, float)) or isinstance(bound, bool) or bound != bound:
        raise InvalidArguments(f"{name} is a number of seconds, not {shown(bound)}")
    if bound < 0:
        raise InvalidArguments(f"{name} is at least 0, not {shown(bound)}")
    if bound > _SECONDS_MAX:
        raise InvalidArguments(f"{name} is at most 100 years, not {shown(bound)}")


__all__ = ["HIERARCHY_LEVELS_MAX", "PAYLOAD_BYTES_MAX", "Limits"]
