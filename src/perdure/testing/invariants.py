"""Invariants of all data in a store. They hold at any time, even after a crash."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from perdure.errors import InvalidTransition, InvariantViolated
from perdure.kernel import wait_matches
from perdure.kernel.invariants import check_entry, check_run
from perdure.kernel.rows import DEFINITION, Entry, Staged, Wait
from perdure.kernel.runs import Audit, Run
from perdure.kernel.status import FINISHED, Status, check_transition
from perdure.kernel.tasks import TASK_EVENT, task_event
from perdure.ports import ArtifactFilter, LoadedRun, RunFilter, Store, TaskFilter
from perdure.values.arguments import checked

_PAGE = 200
_QUEUE = 10_000


@checked
async def check_store(store: Store, *, now: int | None = None) -> int:
    """Check every run of an open store, and return how many runs there are. Raises InvariantViolated with a list of all
    problems.

    Runs: the fields of a row do not contradict each other. The journal and the audit have no gaps. Every change of
    status is in the transition table and has its own version. The last change is the run's status. A finished run has
    no waits, nothing staged, and no owner. A suspended run has a wait. If a result is in the journal, the run does not
    wait for it, and it is not staged.

    Events: no event belongs to a finished run. A position that an event has won is marked as won. A position that is
    marked as won has a winner. No run waits for the end of a run that has ended. With `now`, in microseconds since the
    epoch: no run waits for an event that is in the store and has not expired.

    Artifacts and tasks: a finished run has nothing staged and no open task. For each open task, there is a run that
    waits for it. For each run that waits for a task, this task exists.
    """
    wrong: list[str] = []
    seen = 0
    async for run in _runs(store):
        seen += 1
        loaded = (await store.load([run.id]))[run.id]
        journal = (await store.journals([run.id]))[run.id]
        entries = journal.entries
        audit = await store.audit(run.id)
        archived = await store.archived(run.id)
        problems = [
            *_problems_of_row(run),
            *_problems_of_journal(entries),
            *_problems_of_audit(run, audit),
            *_problems_of_waits(run, loaded.waits, entries),
            *_problems_of_staged(run, journal.staged, entries),
            *_problems_of_events(run, loaded),
            *[problem async for problem in _problems_of_ends(store, loaded)],
            *[problem async for problem in _problems_of_artifacts_and_tasks(store, loaded)],
            *([] if now is None else [problem async for problem in _overlooked(store, loaded, now)]),
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
    outlines = [entry.seq for entry in entries if entry.kind == DEFINITION]
    if outlines != sorted(number for number in outlines if number < 1):
        yield f"has the definitions {outlines}, whose numbers are not below 1"
    numbers = [entry.seq for entry in entries[len(outlines) :]]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"has the journal entries {numbers}, which are not 1 to {len(numbers)} in order"
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
    if audit and audit[0].became == "continued":  # The earlier rows were cleared.
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
            expected = {version, version + 1}  # A hold keeps the version, and an update increments it.
        if row.version not in expected:
            yield f"went from version {version} to {row.version} in audit row {row.seq} ({row.became})"
        version = row.version
    if (status, version) != (run.status, run.version):
        yield f"is {run.status} at version {run.version}, but {status} at {version} by its audit trail"


def _problems_of_waits(run: Run, waits: tuple[Wait, ...], entries: list[Entry]) -> Iterator[str]:
    if run.status in FINISHED and waits:
        yield f"has finished, but waits for {[wait.name for wait in waits]}"
    is_operation = run.model == "operation"  # An operation's run waits for its children, and this is in its own rows.
    if run.status is Status.SUSPENDED and not is_operation and all(wait.kind == "beat" for wait in waits):
        yield "is suspended, but waits for nothing"
    done = {entry.position for entry in entries}
    for wait in waits:
        if wait.position in done:
            yield f"waits at {wait.position} for {wait.kind} {wait.name!r}, which is in its journal"


def _problems_of_staged(run: Run, found: tuple[Staged, ...], entries: list[Entry]) -> Iterator[str]:
    if run.status in FINISHED and found:
        yield f"has finished, but what {[staged.name for staged in found]} came to is staged"
    done = {entry.position for entry in entries}
    for staged in found:
        if staged.position in done:
            yield f"has what step {staged.name!r} came to staged at {staged.position}, and in its journal"
        if staged.claim > run.claim:
            yield f"has something staged with the claim {staged.claim}, but is at {run.claim}"


def _problems_of_events(run: Run, loaded: LoadedRun) -> Iterator[str]:
    if run.status in FINISHED and loaded.events:
        yield f"has finished, but has the events {[event.name for event in loaded.events]}"
        return
    won: dict[str, str] = {}
    for event in loaded.events:
        if event.position is None:
            continue
        group = [wait for wait in loaded.waits if wait.position == event.position]
        if not group or any(wait.due_at != 0 for wait in group):
            yield f"has the event {event.name!r}, which won position {event.position}, where it waits for {group}"
        if event.position in won:
            yield f"has two events that won position {event.position}: {won[event.position]} and {event.id}"
        won[event.position] = event.id


async def _problems_of_ends(store: Store, loaded: LoadedRun) -> AsyncIterator[str]:
    """Check that positions marked as won have a winner, and that other positions have none."""
    targets = [wait.target for wait in loaded.waits if wait.target is not None]
    known = await store.load(targets)
    over = {one for one in targets if one not in known or known[one].run.status in FINISHED}
    retried = {one for one in targets if one in known and known[one].run.attempt > 1}
    given = {event.position for event in loaded.events}
    for position in {wait.position for wait in loaded.waits if wait.kind in ("event", "run")}:
        group = [wait for wait in loaded.waits if wait.position == position]
        is_marked = any(wait.due_at == 0 for wait in group)
        ended = [wait.target for wait in group if wait.target in over]
        if ended and not is_marked:
            yield f"waits at {position} for the end of {ended}, which has come"
        if is_marked and not ended and position not in given and not retried:
            yield f"has won at {position}, but nothing is there that could have"


async def _problems_of_artifacts_and_tasks(store: Store, loaded: LoadedRun) -> AsyncIterator[str]:
    run = loaded.run
    artifacts = await store.artifacts(ArtifactFilter(run_id=run.id, staged=True, limit=_QUEUE))
    staged = [one.name for one in artifacts if one.state == "staged"]
    if staged and run.status in FINISHED:
        yield f"has finished, but has staged {staged}"
    if len(staged) < len(artifacts) and run.status is not Status.SUCCEEDED:
        yield "has published artifacts, but has not succeeded"
    waits = {wait.name: wait for wait in loaded.waits if wait.name.startswith(TASK_EVENT)}
    tasks = {task_event(task.id): task for task in await store.tasks(TaskFilter(run_id=run.id, limit=_QUEUE))}
    for name, task in tasks.items():
        if task.status == "open" and (name not in waits or waits[name].position != task.position):
            yield f"does not wait for the task {task.id!r}, which is open"
    for name, wait in waits.items():
        if wait.due_at is None and (name not in tasks or tasks[name].status != "open"):
            yield f"waits at {wait.position} for {name}, which is not open"


async def _overlooked(store: Store, loaded: LoadedRun, now: int) -> AsyncIterator[str]:
    waits = [wait for wait in loaded.waits if wait.kind == "event" and wait.due_at is None]
    if not waits:
        return
    queued = [event for event in loaded.events if event.position is None]
    for name in {wait.name for wait in waits}:
        queued += [event for event in await store.events(name=name, limit=_QUEUE) if event.consumed]
    for wait in waits:
        for event in queued:
            if event.expires_at > now and wait_matches.accepts(wait, event):
                yield f"waits at {wait.position} for event {wait.name!r}, and {event.id} is there"


__all__ = ["check_store"]
