"""Log lines and counts for people. They report held runs, and a store that fails. Each is logged once."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from msgspec import Struct, field

from perdure.kernel.ops import Advance, Cooperate
from perdure.kernel.runs import Audit, Hold, Run
from perdure.kernel.status import Status

log = logging.getLogger("perdure")

_DETAILS_MAX_CHARS: Final = 2_000


def todo(run: Run, hold: Hold) -> str:
    """Return the advice for a held run. A run that is being undone can no longer be cancelled."""
    is_undone = run.status in (Status.CANCELLING, Status.ROLLING_BACK)
    or_cancel = "" if is_undone else ", or cancel it"
    if hold.kind == "paused":
        return f"perdure runs resume {run.id}"
    if hold.kind == "poison":
        return f"see what it does (perdure runs show {run.id}), then perdure runs resume {run.id}{or_cancel}"
    if hold.fingerprint:
        fitting = "start an engine with code that fits, and the run goes on by itself"
        return fitting if is_undone else f"{fitting}; or cancel it: perdure runs cancel {run.id}"
    return f"mend the cause, then perdure runs resume {run.id}{or_cancel}"


def note_hold(run: Run, hold: Hold, audit: Audit, holds: Counter[str]) -> None:
    """Log and count a hold that is committed. It is called for every audited change of a held run. Changes that do not
    set the hold are ignored. `audit` is the last audit row of the change.
    """
    if audit.became != hold.kind:
        return
    holds[hold.kind] += 1
    child = f", a child of run {run.parent_id}," if run.parent_id else ""
    details = f"\n{hold.details[:_DETAILS_MAX_CHARS]}" if hold.details else ""
    level = logging.INFO if hold.kind == "paused" else logging.WARNING
    log.log(
        level, "run %s of %r%s is held (%s): %s. What to do: %s%s",
        run.id, run.workflow, child, hold.kind, hold.reason, todo(run, hold), details,
    )  # fmt: skip


def entries_of(op: Advance | Cooperate) -> str:
    """Return a text for people about the entries of an op."""
    if isinstance(op, Cooperate):
        return ", ".join(f"{row.seq} ({row.type} {row.step or ''})" for row in op.added.events)
    return ", ".join(f"{entry.seq} ({entry.kind} {entry.name})" for entry in op.entries) or "its end"


class Stats(Struct, kw_only=True):
    """The counters of the coordinator."""

    ops: int = 0
    commits: int = 0
    resends: int = 0
    largest_batch: int = 0
    holds: Counter[str] = field(default_factory=Counter)  # by kind of hold
    outages: Counter[str] = field(default_factory=Counter)  # outages of the store, by kind of request


class Outage:
    """Requests of one kind that the store fails to answer. The first failure is logged and counted as an outage.
    Further failures are not logged or counted until a request succeeds. It may be used only on the loop.
    """

    def __init__(self, request: str, counts: Counter[str]) -> None:
        self.failures = 0
        self._request = request
        self._counts = counts

    def failed(self, what: str, error: BaseException) -> None:
        """Note that a request failed and is repeated. `what` names the request."""
        self.failures += 1
        if self.failures > 1:
            log.debug("%s: %s", what, error)
            return
        self._counts[self._request] += 1
        log.warning("%s: %s. What to do: check the database and the way to it (perdure doctor)", what, error)

    def worked(self) -> None:
        """Note that a request was answered."""
        if self.failures:
            log.info("the store answers again (%s), after %d failures", self._request, self.failures)
            self.failures = 0


__all__ = ["Outage", "Stats", "entries_of", "note_hold", "todo"]
