"""What must be true of everything in a store, whatever crashed and when."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from perdure.errors import InvalidTransition, InvariantViolated
from perdure.kernel.invariants import check_entry, check_run
from perdure.kernel.records import Audit, Entry, Run, Wait
from perdure.kernel.status import FINISHED, Status, check_transition
from perdure.ports import RunFilter, Store

_PAGE = 200


async def check_store(store: Store) -> int:
    """Look at every run of an open store; how many there are. Raises InvariantViolated with all that is wrong.

    Of each run: its row's fields fit each other; its journal and its audit trail have no gaps; every change of status
    is one that the table allows and has a version of its own; the last one is the run's. One that has finished waits
    for nothing and has no owner, a suspended one waits for something, and nothing is waited for that has happened.
    """
    wrong: list[str] = []
    seen = 0
    async for run in _runs(store):
        seen += 1
        loaded = (await store.load([run.id]))[run.id]
        _, entries = await store.journal(run.id)
        audit = await store.audit(run.id)
        archived = await store.archived(run.id)
        problems = [
            *_problems_of_row(run),
            *_problems_of_journal(entries),
            *_problems_of_audit(run, audit),
            *_problems_of_waits(run, loaded.waits, entries),
            *(f"has archived an entry of its attempt {n}" for n, _ in archived if n >= run.attempt),
        ]
        wrong += [f"run {run.id!r} ({run.workflow}, {run.status}) {problem}" for problem in problems]
    if wrong:
        raise InvariantViolated("\n".join(wrong))
    return seen


async def _runs(store: Store) -> AsyncIterator[Run]:
    after: tuple[int, str] | None = None
    while page := await store.list(RunFilter(after=after, limit=_PAGE)):
        for run in page:
            yield run
        after = (page[-1].created_at, page[-1].id)


def _problems_of_row(run: Run) -> Iterator[str]:
    try:
        check_run(run)
    except InvariantViolated as error:
        yield str(error)


def _problems_of_journal(entries: list[Entry]) -> Iterator[str]:
    numbers = [entry.seq for entry in entries]
    if numbers != list(range(1, len(entries) + 1)):
        yield f"has the journal entries {numbers}, which are not 1 to {len(entries)} in order"
    positions = [entry.position for entry in entries]
    if len(set(positions)) != len(positions):
        yield f"has several entries for one position: {sorted(p for p in positions if positions.count(p) > 1)}"
    for entry in entries:
        try:
            check_entry(entry)
        except InvariantViolated as error:
            yield str(error)


def _problems_of_audit(run: Run, audit: list[Audit]) -> Iterator[str]:
    numbers = [row.seq for row in audit]
    first = 1
    status: Status | None = None
    version = 0
    if audit and audit[0].became == "continued":  # What was before is cleared.
        first, version = audit[0].seq, audit[0].version - 1
        status = Status(audit[0].was or "")
    if numbers != list(range(first, run.revision + 1)):
        yield f"has the audit rows {numbers}, which are not {first} to {run.revision} in order"
    for row in audit:
        if row.was != status:
            yield f"was {row.was} by audit row {row.seq}, but {status} by the rows before"
        if row.became in set(Status):
            became = Status(row.became)
            try:
                check_transition(run.id, status, became)
            except InvalidTransition as error:
                yield str(error)
            status = became
            expected = {version + 1}
        else:
            expected = {version, version + 1}  # A hold leaves the version, an update takes a new one.
        if row.version not in expected:
            yield f"went from version {version} to {row.version} in audit row {row.seq} ({row.became})"
        version = row.version
    if (status, version) != (run.status, run.version):
        yield f"is {run.status} at version {run.version}, but {status} at {version} by its audit trail"


def _problems_of_waits(run: Run, waits: tuple[Wait, ...], entries: list[Entry]) -> Iterator[str]:
    if run.status in FINISHED and waits:
        yield f"has finished, but waits for {[wait.name for wait in waits]}"
    if run.status is Status.SUSPENDED and all(wait.kind == "beat" for wait in waits):
        yield "is suspended, but waits for nothing"
    done = {entry.position for entry in entries}
    for wait in waits:
        if wait.position in done:
            yield f"waits at {wait.position} for {wait.kind} {wait.name!r}, which is in its journal"


__all__ = ["check_store"]
