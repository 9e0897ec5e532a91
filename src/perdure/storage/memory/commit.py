"""A commit to the store in memory. First come all checks that can refuse the commit. Then come the writes, which cannot
fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import astuple, replace

from perdure.errors import CommitConflict, CommitRefused, Fenced
from perdure.kernel.batch import Batch, Committed, RunWrite, awakened, outdated, taken_in, winners_elsewhere
from perdure.kernel.mail import wake_mail
from perdure.kernel.pieces import Pieces, parts
from perdure.kernel.rows import Engine
from perdure.kernel.rules.broadcasts import Settlement
from perdure.kernel.runs import Hold, Outcome
from perdure.kernel.status import ACTIVE
from perdure.ports import StoredRun
from perdure.storage.memory.database import MemoryDatabase


def check_fence(database: MemoryDatabase, engine_id: str, epoch: int) -> Engine:
    engine = database.engines.get(engine_id)
    if engine is None or engine.epoch != epoch:
        raise Fenced(f"the store does not know engine {engine_id!r} with epoch {epoch}", engine_id=engine_id)
    if not engine.alive:
        raise Fenced(f"engine {engine_id!r} was marked dead", engine_id=engine_id)
    return engine


def has_landed(database: MemoryDatabase, batch: Batch) -> bool:
    engine = database.engines.get(batch.engine_id)
    if engine and engine.epoch == batch.epoch and engine.batch == batch.number:
        return True
    engine = check_fence(database, batch.engine_id, batch.epoch)
    if engine.batch != batch.number - 1:
        raise Fenced(
            f"engine {batch.engine_id!r} sends batch {batch.number}, but the store has {engine.batch} as its last",
            engine_id=batch.engine_id,
            batch=engine.batch,
        )
    return False


def check_runs(database: MemoryDatabase, batch: Batch) -> None:
    wrong = {run_id for run_id, write in batch.runs.items() if not _is_as_expected(database, write)}
    for run_id, expected in batch.guards.items():
        stored = database.runs.get(run_id)
        if stored is None or (stored.run.owner, stored.run.version, stored.run.claim) != expected:
            wrong.add(run_id)
    taken = [key for key in batch.keys if key in database.tables.keys]
    gone = batch.mail_done.keys() - database.mail.keys()
    is_letter_gone = any(letter not in database.tables.letters for letter in batch.dead_letters_gone)
    is_task_gone = batch.tasks is not None and not database.tasks.accepts(batch.tasks)
    is_outdated = batch.shared is not None and not (
        database.records.accepts(batch.shared.records)
        and database.access.accepts(batch.shared.tokens)
        and database.cooperation.accepts(batch.shared.handlers)
    )
    if wrong or taken or gone or is_letter_gone or is_task_gone or is_outdated:
        raise CommitConflict(frozenset(wrong), frozenset(gone))


def _is_as_expected(database: MemoryDatabase, write: RunWrite) -> bool:
    stored = database.runs.get(write.run.id)
    if write.expected_version is None or stored is None:
        return write.expected_version is None and stored is None
    expected = (write.expected_owner, write.expected_version, write.expected_claim)
    return (stored.run.owner, stored.run.version, stored.run.claim) == expected


def check_values(batch: Batch) -> Pieces[None]:
    """Raise CommitRefused if a value of the batch can never be stored. This check does not use the stored rows."""
    for start, writes in parts([*batch.runs.values()]):
        if start:
            yield
        for write in writes:
            check_storable(*astuple(write.run), write.input, *astuple(write.outcome or Outcome()))
            if write.expected_version is None and write.input is None:
                raise CommitRefused(f"run {write.run.id!r} has no input", run_id=write.run.id)
    records: list[Struct] = [*batch.journal, *batch.waits.values(), *batch.events, *batch.audit]
    records += [*batch.published.values(), *batch.stream_items]
    if batch.artifacts is not None:
        records += batch.artifacts.artifacts
    if batch.tasks is not None:
        records += [*batch.tasks.tasks, *batch.tasks.released, *batch.tasks.answers]
    if batch.shared is not None:
        sessions = [session for _, session in batch.shared.sessions if session is not None]
        records += [*batch.shared.records, *batch.shared.tokens, *sessions, *batch.shared.handlers]
    if batch.cooperation is not None:
        records += [*batch.cooperation.messages, *batch.cooperation.events, *batch.cooperation.values]
    for start, some in parts(records):
        if start:
            yield
        for record in some:
            check_storable(*astuple(record))
    check_storable(*batch.mail_done.values())


def check_rows(database: MemoryDatabase, batch: Batch) -> None:
    """Raise CommitRefused or CommitConflict if the batch does not fit the stored rows."""
    if batch.cooperation is not None:
        database.cooperation.check(batch.cooperation)
    aside = {(run_id, first) for run_id, first, _ in batch.archive}
    # Only new rows are checked and not all stored rows, because a run may have many thousands of rows.
    taken = {
        (entry.run_id, entry.seq)
        for entry in batch.journal
        if entry.seq in database.journal.get(entry.run_id, {})
        and entry.run_id not in batch.continued
        and not any(entry.run_id == other and entry.seq >= first for other, first in aside)
    }
    _check_unique("entry", taken, ((entry.run_id, entry.seq) for entry in batch.journal))
    taken = {(row.run_id, row.seq) for row in batch.audit if row.seq in database.audit.get(row.run_id, {})}
    revisions = {run_id: database.runs[run_id].run.revision for run_id, _ in taken if run_id in database.runs}
    if changed := outdated(batch, revisions):
        raise CommitConflict(frozenset(changed))
    _check_unique("audit row", taken, ((row.run_id, row.seq) for row in batch.audit))
    for run_id, first, attempt in batch.archive:
        if any((attempt, seq) in database.archive.get(run_id, {}) for seq in database.entries_from(run_id, first)):
            raise CommitRefused(f"run {run_id!r} has archived entries of attempt {attempt} already", run_id=run_id)


def _check_unique(what: str, taken: set[tuple[str, int]], keys: Iterable[tuple[str, int]]) -> None:
    for key in keys:
        if key in taken:
            raise CommitRefused(f"run {key[0]!r} has an {what} {key[1]} already", run_id=key[0])
        taken.add(key)


def check_storable(*values: object) -> None:
    """Raise CommitRefused for values that no database can hold: lone surrogates, and integers of more than 64 bits."""
    for value in values:
        if isinstance(value, str):
            if value.isascii():
                continue
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise CommitRefused(f"a text cannot be stored: {error}") from error
        elif isinstance(value, Mapping):
            check_storable(*value.keys(), *value.values())
        elif isinstance(value, Hold):
            check_storable(*astuple(value))
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise CommitRefused(f"the integer {value} does not fit into 64 bits")


def write_batch(
    database: MemoryDatabase, batch: Batch, settlement: Settlement, owners: Mapping[str, str | None] | None = None
) -> Committed:
    """Write everything of a batch except its events and waits, which are already written.

    `owners` has the owners of the runs that have won waits, or None if they are not known.
    """
    database.engines[batch.engine_id] = replace(database.engines[batch.engine_id], batch=batch.number)
    runs, audit = awakened(batch, settlement.found.awake)
    for run_id, write in runs.items():
        run = write.run
        database.runs[run_id] = _written(database.runs.get(run_id), write)
        (database.active.add if run.status in ACTIVE else database.active.discard)(run_id)
        if write.expected_version is None and run.parent_id is not None:
            database.children.setdefault(run.parent_id, []).append(run_id)
            if run.model == "operation" or run.bond == "called":
                database.cooperation.children.setdefault(run.parent_id, []).append(run_id)
    for run_id, first, attempt in batch.archive:
        for seq in database.entries_from(run_id, first):
            database.archive.setdefault(run_id, {})[attempt, seq] = database.journal[run_id].pop(seq)
    for run_id in batch.continued:
        database.journal.pop(run_id, None)
        database.archive.pop(run_id, None)
        database.audit.pop(run_id, None)
    for entry in batch.journal:
        database.journal.setdefault(entry.run_id, {})[entry.seq] = entry
    for run_id in batch.consumed:
        if stored := database.runs.get(run_id):
            database.runs[run_id] = replace(stored, run=replace(stored.run, consumed=True))
    for row in audit:
        database.audit.setdefault(row.run_id, {})[row.seq] = row
    for mail_id, reply in batch.mail_done.items():
        if slot := database.mail.pop(mail_id).slot:
            database.replies[slot] = (reply, batch.at)
    found = settlement.found
    for run_id in winners_elsewhere(batch, found):
        owner = database.runs[run_id].run.owner if owners is None else owners[run_id]
        if owner != batch.engine_id and database.is_alive(owner):
            found.notified.add(run_id)
    knocks = [wake_mail(run_id, batch.engine_id, batch.at) for run_id in sorted(found.notified)]
    for mail in (*batch.mail, *knocks):
        database.leave_mail(mail)
    database.streams.apply(batch)
    database.artifacts.apply(batch)
    if batch.tasks is not None:
        database.tasks.apply(batch.tasks, batch.at)
    if batch.cooperation is not None:
        database.cooperation.apply(batch.cooperation, batch.at)
    if batch.shared is not None:
        database.records.apply(batch.shared.records)
        database.access.apply(batch.shared)
        database.cooperation.change_handlers(batch.shared.handlers, batch.at)
    found.taken = [(run_id, database.tables.waits_of(run_id), database.tables.of(run_id)) for run_id in taken_in(batch)]
    return found


def _written(stored: StoredRun | None, write: RunWrite) -> StoredRun:
    # The tags are copied, because the caller may change its own mapping later.
    run = replace(write.run, tags=dict(write.run.tags))
    if stored is None:
        return StoredRun(run=run, input=write.input or "", outcome=write.outcome or Outcome())
    was = stored.run
    return StoredRun(
        run=replace(
            run,
            workflow=was.workflow if write.input is None else run.workflow,
            model=was.model,
            parent_id=was.parent_id,
            bond=was.bond,
            consumed=was.consumed,
            created_at=was.created_at,
        ),
        input=stored.input if write.input is None else write.input,
        outcome=stored.outcome if write.outcome is None else write.outcome,
    )
