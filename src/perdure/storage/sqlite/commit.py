"""A commit: one batch is one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from perdure.errors import CommitConflict, Fenced, StoreBusy
from perdure.kernel.batch import (
    Batch,
    Committed,
    RunWrite,
    awakened,
    outdated,
    taken_in,
    winners_elsewhere,
    without_reads,
)
from perdure.kernel.mail import wake_mail
from perdure.kernel.rows import Mail
from perdure.storage.sqlite.artifacts import write as write_artifacts
from perdure.storage.sqlite.cooperation import RegistryChanged
from perdure.storage.sqlite.cooperation import write as write_cooperation
from perdure.storage.sqlite.events import LettersGone, is_matched, match
from perdure.storage.sqlite.queries import (
    CLEAR_STAGED,
    CLEAR_WAITS,
    DELETE_MAIL,
    DROP_STAGED,
    DROP_WAITS,
    FORGET_READS,
    INSERT_AUDIT,
    INSERT_BEGINNING_RUNS,
    INSERT_JOURNAL,
    INSERT_PAYLOADS,
    INSERT_RUNS,
    INSERT_STEPS,
    MARK_CONSUMED,
    NOTE_READS,
    PUT_KEYS,
    PUT_WAITS,
    QUERIES,
    READ_EVENTS,
    REPLY_MAIL,
    UPDATE_RUNS,
    UPDATE_RUNS_BRIEFLY,
    UPDATE_RUNS_BRIEFLY_WITH_OUTCOME,
    UPDATE_RUNS_WITH_OUTCOME,
    UPDATE_SUCCEEDING_RUNS,
    Execution,
)
from perdure.storage.sqlite.reads import mailboxes_now
from perdure.storage.sqlite.rows import (
    Payloads,
    Row,
    audit_rows,
    beginning_run,
    briefly_updated_run,
    entry_rows,
    inserted_run,
    json_text,
    outcome_row,
    replaced_input,
    succeeding_run,
    updated_run,
    wait_rows,
)
from perdure.storage.sqlite.runless_rows import SomebodyElseWasFaster
from perdure.storage.sqlite.runless_rows import write as write_shared
from perdure.storage.sqlite.streams import write as write_streams
from perdure.storage.sqlite.tasks import TaskTaken
from perdure.storage.sqlite.tasks import write as write_tasks
from perdure.storage.sqlite.transaction import snapshot, transaction

_HISTORY: Final = ("clear_journal", "clear_archive", "clear_history_payloads", "clear_audit")


class Plan(Struct):
    """A batch in the form of statements.

    The thread that requests the commit makes the plan. So the writer's thread holds its transaction only for as long as
    the statements take. Planning in the writer's thread would not be faster, because the two threads share the GIL.
    """

    batch: Batch
    waits: list[Execution]
    runs: list[Execution]
    rest: list[Execution]
    audit: list[Execution]
    has_streams: bool


class _RunConflict(Exception):
    """Fewer rows were written than the batch has. The transaction is rolled back."""


def plan(batch: Batch) -> Plan:
    """Turn a batch into statements. Raises UnicodeEncodeError, OverflowError."""
    payloads: Payloads = []
    runs, new_inputs = _run_executions(batch.runs.values(), payloads, batch.numbered)
    steps, others = entry_rows(batch.journal, payloads)
    waits: list[Execution] = []
    if batch.waits_cleared or batch.waits_dropped or batch.waits or batch.events_read or batch.continued:
        cleared = [(run_id,) for run_id in batch.waits_cleared]
        emptied = [*cleared, *((run_id,) for run_id in batch.continued)]
        waits = [
            *CLEAR_WAITS.executions(emptied),
            *CLEAR_STAGED.executions(emptied),
            *DROP_WAITS.executions(batch.waits_dropped),
            *DROP_STAGED.executions(batch.waits_dropped),
            *NOTE_READS.executions(batch.events_read),
            *READ_EVENTS.executions(batch.events_read),
            *FORGET_READS.executions([(run_id,) for run_id in without_reads(batch)]),
            *PUT_WAITS.executions(wait_rows(wait for wait in batch.waits.values() if not wait.number)),
        ]
    rest: list[Execution] = [
        *new_inputs,
        *_archive_executions(batch.archive),
        *_history_executions(batch.continued),
        *INSERT_STEPS.executions(steps),
        *INSERT_JOURNAL.executions(others),
        *INSERT_PAYLOADS.executions(payloads),
    ]
    if batch.consumed:
        rest += MARK_CONSUMED.executions([(run_id,) for run_id in batch.consumed])
    has_streams = bool(batch.published or batch.stream_items or batch.archive or new_inputs)
    return Plan(batch, waits, runs, rest, INSERT_AUDIT.executions(audit_rows(batch.audit)), has_streams)


def commit(connection: sqlite3.Connection, planned: Plan) -> Committed:
    """Apply a batch, or find out that it was applied before. Raises Fenced, CommitConflict, StoreBusy,
    sqlite3.Error.
    """
    batch = planned.batch
    try:
        with transaction(connection):
            if not _advance(connection, batch):
                return Committed(landed=True)
            if batch.guards or batch.keys or batch.mail_done:
                _check_untouched(connection, batch)
            for sql, variables in planned.waits:
                connection.execute(sql, variables)
            found = Committed()
            if is_matched(connection, batch):
                found = match(connection, batch).found
                if found.awake:
                    planned = _without_sleep(planned, found.awake)
                if winners := winners_elsewhere(batch, found):
                    _notify_winners(connection, batch, found, winners)
            written = 0
            for sql, variables in planned.runs:
                written += connection.execute(sql, variables).rowcount
            if written != len(batch.runs):
                raise _RunConflict
            for sql, variables in planned.rest:
                connection.execute(sql, variables)
            for mail in batch.mail:
                connection.execute(*posting(mail))
            for sql, variables in planned.audit:
                connection.execute(sql, variables)
            if planned.has_streams:
                write_streams(connection, batch)
            if batch.artifacts is not None or batch.archive or batch.continued:
                write_artifacts(connection, batch)
            if batch.tasks is not None:
                write_tasks(connection, batch.tasks, batch.at)
            if batch.cooperation is not None:
                write_cooperation(connection, batch)
            if batch.shared is not None:
                write_shared(connection, batch.shared, batch.at)
            if taken := taken_in(batch):
                found.taken = mailboxes_now(connection, taken)
            return found
    except (LettersGone, TaskTaken, SomebodyElseWasFaster):
        raise CommitConflict(frozenset()) from None
    except RegistryChanged as changed:
        raise CommitConflict(frozenset(), registry_version=changed.version) from None
    except _RunConflict:
        raise _conflict(connection, batch) from None
    except sqlite3.IntegrityError:
        # An audit row with this number exists, so another process has changed the run at the same moment.
        rows = connection.execute(QUERIES["revisions"], {"ids": json_text([*batch.runs])}).fetchall()
        if stale := outdated(batch, dict(rows)):
            raise CommitConflict(frozenset(stale)) from None
        raise


def _without_sleep(planned: Plan, awake: set[str]) -> Plan:
    """Return the plan without the suspension of these runs, because the events for which they would wait have
    arrived.
    """
    writes, audit = awakened(planned.batch, awake)
    runs, _ = _run_executions(writes.values(), [], planned.batch.numbered)
    return replace(planned, runs=runs, audit=INSERT_AUDIT.executions(audit_rows(audit)))


def _check_untouched(connection: sqlite3.Connection, batch: Batch) -> None:
    """Check that runs that are not written are unchanged, that keys are new, and that the mail that is deleted still
    exists.
    """
    rows = connection.execute(QUERIES["expectations"], {"ids": json_text(list(batch.guards))}).fetchall()
    if {run_id: tuple(found) for run_id, *found in rows} != batch.guards:
        raise _RunConflict
    keys = [(key, event_id, batch.at) for key, event_id in batch.keys.items()]
    if _count(connection, PUT_KEYS.executions(keys)) != len(keys):
        raise _RunConflict
    replies = [(mail_id, reply, batch.at) for mail_id, reply in batch.mail_done.items()]
    _count(connection, REPLY_MAIL.executions(replies))
    if _count(connection, DELETE_MAIL.executions([(mail_id,) for mail_id in batch.mail_done])) != len(batch.mail_done):
        raise _RunConflict


def _count(connection: sqlite3.Connection, executions: Iterable[Execution]) -> int:
    return sum(connection.execute(sql, variables).rowcount for sql, variables in executions)


def posting(mail: Mail) -> tuple[str, dict[str, str | int | None]]:
    """Return the statement that stores a mail, and its variables."""
    values = {"run_id": mail.run_id, "sender": mail.sender, "slot": mail.slot or None, "op": mail.op, "at": mail.at}
    return QUERIES["post"], values


def _notify_winners(connection: sqlite3.Connection, batch: Batch, found: Committed, winners: list[str]) -> None:
    """Leave mail for other engines whose runs have won a wait in this batch."""
    wanted = {"ids": json_text(winners), "engine_id": batch.engine_id}
    found.notified = {run_id for (run_id,) in connection.execute(QUERIES["owned_elsewhere"], wanted)}
    for run_id in sorted(found.notified):
        connection.execute(*posting(wake_mail(run_id, batch.engine_id, batch.at)))


def check_fence(connection: sqlite3.Connection, engine_id: str, epoch: int) -> None:
    """Raise Fenced unless the engine may write. This must be called inside a transaction."""
    row = connection.execute(QUERIES["engine"], {"id": engine_id}).fetchone()
    _check_fence(engine_id, epoch, row)


def _check_fence(engine_id: str, epoch: int, row: Row | None) -> Row:
    if row is None:
        raise Fenced(f"the store does not know engine {engine_id!r} any more", engine_id=engine_id)
    if row[1] != epoch:
        raise Fenced(f"engine {engine_id!r} has epoch {row[1]} in the store, not {epoch}", engine_id=engine_id)
    if not row[2]:
        raise Fenced(f"engine {engine_id!r} was marked dead", engine_id=engine_id)
    return row


def _advance(connection: sqlite3.Connection, batch: Batch) -> bool:
    """Change the number in the engine's row to the number of this batch. Returns False if the batch was applied before.
    Raises Fenced.
    """
    key = {"id": batch.engine_id, "epoch": batch.epoch, "number": batch.number}
    if connection.execute(QUERIES["advance"], key).rowcount == 1:
        return True
    row = connection.execute(QUERIES["engine"], {"id": batch.engine_id}).fetchone()
    if row is not None and row[1] == batch.epoch and row[3] == batch.number:
        return False
    last = _check_fence(batch.engine_id, batch.epoch, row)[3]
    raise Fenced(
        f"engine {batch.engine_id!r} sends batch {batch.number}, but the store has {last} as its last: the store went"
        " back to an earlier state, or somebody else writes in the engine's name",
        engine_id=batch.engine_id,
        batch=last,
    )


def _run_executions(
    writes: Iterable[RunWrite], payloads: Payloads, numbered: int
) -> tuple[list[Execution], list[Execution]]:
    """Return the statements that write the rows of runs, and the statements that replace inputs after that."""
    inserted: list[Row] = []
    beginning: list[Row] = []
    updated: list[Row] = []
    finished: list[Row] = []
    succeeding: list[Row] = []
    briefly_updated: list[Row] = []
    briefly_finished: list[Row] = []
    new_inputs: list[Execution] = []
    for write in writes:
        if write.expected_version is None:
            if (row := beginning_run(write, numbered)) is not None:
                beginning.append(row)
            else:
                inserted.append(inserted_run(write, payloads, numbered))
            continue
        if write.is_brief and write.input is None and (row := succeeding_run(write)) is not None:
            succeeding.append(row)
            continue
        row = briefly_updated_run(write) if write.is_brief else updated_run(write)
        if write.outcome is None:
            (briefly_updated if write.is_brief else updated).append(row)
        else:
            row += outcome_row(write, payloads)
            (briefly_finished if write.is_brief else finished).append(row)
        if write.input is not None:
            new_inputs.append((QUERIES["drop_large_input"], [write.run.id]))
            new_inputs.append((QUERIES["replace_input"], [*replaced_input(write, payloads)]))
    runs = INSERT_RUNS.executions(inserted)
    runs += INSERT_BEGINNING_RUNS.executions(beginning)
    runs += UPDATE_RUNS.executions(updated)
    runs += UPDATE_RUNS_WITH_OUTCOME.executions(finished)
    runs += UPDATE_RUNS_BRIEFLY.executions(briefly_updated)
    runs += UPDATE_RUNS_BRIEFLY_WITH_OUTCOME.executions(briefly_finished)
    runs += UPDATE_SUCCEEDING_RUNS.executions(succeeding)
    return runs, new_inputs


def _conflict(connection: sqlite3.Connection, batch: Batch) -> CommitConflict | StoreBusy:
    """Return the error for a batch that was rolled back. It names the runs that were not as expected."""
    with snapshot(connection):
        ids = json_text([*batch.runs, *batch.guards])
        rows = connection.execute(QUERIES["expectations"], {"ids": ids}).fetchall()
        used = connection.execute(QUERIES["sent"], {"ids": json_text(list(batch.keys))}).fetchall()
        there = connection.execute(QUERIES["mail_there"], {"ids": json_text(list(batch.mail_done))}).fetchall()
    found = {run_id: tuple(rest) for run_id, *rest in rows}
    gone = batch.mail_done.keys() - {mail_id for (mail_id,) in there}
    wrong = {run_id for run_id, write in batch.runs.items() if found.get(run_id) != _expected(write)}
    wrong |= {run_id for run_id, expected in batch.guards.items() if found.get(run_id) != expected}
    if wrong or used or gone:
        return CommitConflict(frozenset(wrong), frozenset(gone))
    # Another process wrote between the rollback and this read. Now all runs are as expected.
    return StoreBusy("runs of the batch were being changed by another process; nothing was written")


def _expected(write: RunWrite) -> tuple[str | None, int, int] | None:
    if write.expected_version is None:
        return None
    return write.expected_owner, write.expected_version, write.expected_claim


def _history_executions(continued: list[str]) -> list[Execution]:
    return [(QUERIES[query], [run_id]) for run_id in continued for query in _HISTORY]


def _archive_executions(archive: list[tuple[str, int, int]]) -> list[Execution]:
    found: list[Execution] = []
    for run_id, seq, attempt in archive:
        found.append((QUERIES["archive"], [attempt, run_id, seq]))
        found.append((QUERIES["archive_payloads"], [attempt, run_id, seq]))
        found.append((QUERIES["archive_clear"], [run_id, seq]))
    return found
