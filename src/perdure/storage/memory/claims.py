"""Runs without a living owner that can be claimed or that are due."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.kernel.fingerprints import may_fit
from perdure.kernel.runs import Run
from perdure.kernel.status import Status
from perdure.ports import DueRun, Offer
from perdure.storage.claims import fits
from perdure.storage.memory.database import MemoryDatabase


def free_runs(database: MemoryDatabase, offers: Iterable[Offer]) -> list[tuple[Run, Offer]]:
    """Return the active runs without a living owner that fit an offer, each with the offer."""
    known: dict[str, list[Offer]] = {}
    for offer in offers:
        known.setdefault(offer.workflow, []).append(offer)
    messages = database.cooperation.messages

    def topic_of(message_id: str) -> str:
        return messages[message_id].topic if message_id in messages else ""

    def is_begun(run_id: str) -> bool:
        return 1 in database.cooperation.events.get(run_id, ())

    active = (database.runs[run_id].run for run_id in database.active)
    return [
        (run, offer)
        for run in active
        if run.workflow in known and not database.is_alive(run.owner)
        for offer in known[run.workflow]
        if fits(run, offer, topic_of, is_begun)
    ]


def claimable(database: MemoryDatabase, offers: Iterable[Offer]) -> list[Run]:
    found = [run for run, offer in free_runs(database, offers) if _is_claimable(run, offer)]
    return sorted(found, key=lambda run: (run.created_at, run.id))


def _is_claimable(run: Run, offer: Offer) -> bool:
    if run.hold is None:
        return run.status is not Status.SUSPENDED
    return bool(offer.fingerprint) and may_be_unblocked(run, offer)


def may_be_unblocked(run: Run, offer: Offer) -> bool:
    hold = run.hold
    return hold is not None and hold.kind == "blocked" and may_fit(hold.fingerprint, offer.fingerprint)


def runs_due(database: MemoryDatabase, offers: Iterable[Offer], before: int) -> list[DueRun]:
    free = [run for run, _ in free_runs(database, offers) if run.hold is None]
    held = (database.runs[run_id].run for run_id in database.active if database.runs[run_id].run.hold is not None)
    found = [
        DueRun(run_id=run.id, due_at=run.deadline, deadline=True)
        for run in (*free, *(run for run in held if _is_held_alive(run) and not database.is_alive(run.owner)))
        if run.deadline is not None and run.deadline < before
    ]
    for run in free:
        waits = database.tables.waits_of(run.id) if run.status is Status.SUSPENDED else ()
        due = [wait.due_at for wait in waits if wait.due_at is not None and wait.due_at < before]
        if due:
            found.append(DueRun(run_id=run.id, due_at=min(due), deadline=False))
    return sorted(found, key=lambda due: (due.due_at, due.run_id))


def _is_held_alive(run: Run) -> bool:
    """Return whether its deadline can end this held run. This needs no code of the run."""
    return run.model == "operation" or run.status in (Status.CREATED, Status.RUNNING, Status.SUSPENDED)
