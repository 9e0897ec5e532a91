"""A commit: one batch is one transaction. If possible, it is one statement, so that it takes only one round trip over
the network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import asyncpg
from msgspec.structs import asdict, astuple

from perdure.errors import CommitConflict, CommitRefused, Fenced, OutcomeUnknown, StoreBusy
from perdure.kernel.batch import Batch, Committed, RunWrite, awakened, outdated, taken_in, winners_elsewhere
from perdure.kernel.mail import wake_mail
from perdure.kernel.runs import Audit
from perdure.kernel.status import FINISHED
from perdure.storage.postgres import tasks
from perdure.storage.postgres.artifacts import artifacts_of, has_artifacts
from perdure.storage.postgres.cooperation import cooperation_in_parts, cooperation_of, is_large
from perdure.storage.postgres.driver import Connection
from perdure.storage.postgres.events import match, prepared
from perdure.storage.postgres.faults import (
    BOOK_CHANGED,
    CONFLICT,
    LETTERS_GONE,
    NEEDS_MATCHING,
    UNIQUE,
    is_lost,
    sqlstate,
)
from perdure.storage.postgres.queries import QUERIES, Query
from perdure.storage.postgres.reads import mailboxes_now
from perdure.storage.postgres.rows import (
    Row,
    changed_run,
    mail_row,
    new_run,
    published_row,
    stream_item_rows,
    wait_rows,
)
from perdure.storage.postgres.runless_rows import write as write_shared
from perdure.storage.postgres.tasks import tasks_of

BLOCK: Final = 2**20  # how many numbers of the sequence a commit reserves at once

_LANDED = 1
_FENCED = 2


async def commit(connection: Connection, batch: Batch) -> Committed:
    """Apply a batch, or find out that it was applied before.

    Raises Fenced, CommitConflict, CommitRefused, StoreBusy, OutcomeUnknown. If nothing was written, it may also raise
    asyncpg's errors.
    """
    try:
        if not _brings_events(batch):
            try:
                return await _commit_at_once(connection, batch)
            except asyncpg.PostgresError as error:
                if sqlstate(error) != NEEDS_MATCHING:
                    raise
        return await _commit_matched(connection, batch)
    except asyncpg.PostgresError as error:
        if sqlstate(error) == LETTERS_GONE:
            raise CommitConflict(frozenset()) from error
        if sqlstate(error) == BOOK_CHANGED:
            raise CommitConflict(frozenset(), registry_version=int(vars(error).get("detail") or 0)) from error
        if sqlstate(error) == UNIQUE:
            # An audit row with this number exists, so another engine has changed the run at the same moment.
            rows = await connection.fetch(QUERIES["revisions"].sql, [*batch.runs])
            if changed := outdated(batch, dict(map(tuple, rows))):
                raise CommitConflict(frozenset(changed)) from error
        if sqlstate(error) != CONFLICT:
            raise
    raise await _conflict(connection, batch)


def _brings_events(batch: Batch) -> bool:
    """Return whether the batch always needs matching. If it depends on stored rows, the statement itself checks
    them.
    """
    if batch.numbered or batch.events_given or batch.events_read or batch.spread or batch.dead_letters_gone:
        return True
    if batch.guards or batch.keys or taken_in(batch):
        return True
    return any(wait.target is not None for wait in batch.waits.values()) if batch.waits else False


async def _commit_at_once(connection: Connection, batch: Batch) -> Committed:
    variables = {
        "engine": batch.engine_id,
        "epoch": batch.epoch,
        "number": batch.number,
        "ended": [run_id for run_id, write in batch.runs.items() if write.run.status in FINISHED],
        "cleared": [*batch.waits_cleared, *batch.continued],
        "dropped": batch.waits_dropped,
        "put": wait_rows(batch.waits.values()),
        **_writes(batch, batch.runs.values(), batch.audit, None),
    }
    query = QUERIES["commit"]
    if _has_rare_parts(batch):
        return await _commit_in_parts(connection, batch, query, variables)
    has_more = _has_artifacts_or_tasks(batch)
    if has_more:
        query = QUERIES["commit_with_artifacts"]
        variables |= _artifacts_and_tasks(batch)
    if is_large(batch):
        return await _commit_in_parts(connection, batch, query, variables)
    if batch.cooperation is not None:
        query = QUERIES["commit_with_all" if has_more else "commit_with_cooperation"]
        variables |= cooperation_of(batch)
    try:
        state: int = await connection.fetchval(query.sql, *query.arguments(variables))
    except Exception as error:
        if is_lost(error):
            raise OutcomeUnknown(f"the connection broke during batch {batch.number}: {error}") from error
        raise
    return await _committed(connection, batch, state)


async def _commit_in_parts(
    connection: Connection, batch: Batch, query: Query, variables: Mapping[str, Any]
) -> Committed:
    """Commit a batch with several statements in one transaction. The usual parts come first, and then the rare parts
    and the rows of messages.
    """
    await asyncio.sleep(0)  # Let other tasks run, because they could not run while the variables were made.
    await connection.execute("begin")
    try:
        state: int = await connection.fetchval(query.sql, *query.arguments(variables))
        if state:
            await connection.execute("rollback")
            return await _committed(connection, batch, state)
        if _has_rare_parts(batch):
            await _write_artifacts_and_tasks(connection, batch, variables)
        if batch.cooperation is not None:
            await _write_cooperation(connection, batch)
        if batch.shared is not None:
            await write_shared(connection, batch.shared, batch.at)
    except Exception as error:
        if not is_lost(error):
            await connection.execute("rollback")
        raise
    await _end_transaction(connection, batch)
    return Committed()


async def _write_cooperation(connection: Connection, batch: Batch) -> None:
    query = QUERIES["finish_cooperation"]
    for part in cooperation_in_parts(batch):
        await connection.fetchval(query.sql, *query.arguments(part))


def _has_rare_parts(batch: Batch) -> bool:
    """Return whether the batch has parts that need statements of their own."""
    return batch.shared is not None or (batch.tasks is not None and bool(batch.tasks.released))


async def _write_artifacts_and_tasks(connection: Connection, batch: Batch, variables: Mapping[str, Any]) -> None:
    """Write the batch's artifacts and tasks. Raises CommitConflict if the batch releases a task that its worker no
    longer has."""
    if batch.tasks is not None:
        query = tasks.QUERIES["release_task"]
        for one in batch.tasks.released:
            if not await connection.fetch(query.sql, *query.arguments(asdict(one))):
                raise CommitConflict(frozenset())
    if _has_artifacts_or_tasks(batch):
        query = QUERIES["finish_artifacts"]
        await connection.fetchval(query.sql, *query.arguments({**variables, **_artifacts_and_tasks(batch)}))


async def _end_transaction(connection: Connection, batch: Batch) -> None:
    try:
        await connection.execute("commit")
    except Exception as error:
        if is_lost(error):
            raise OutcomeUnknown(f"the connection broke at the end of batch {batch.number}: {error}") from error
        raise


async def _commit_matched(connection: Connection, batch: Batch) -> Committed:
    if batch.numbered >= BLOCK:
        raise CommitRefused(f"the batch has {batch.numbered} events and waits; the limit is {BLOCK - 1}")
    await connection.execute("begin")
    try:
        state, base = await prepared(connection, batch)
        if state:
            await connection.execute("rollback")
            return await _committed(connection, batch, state)
        settled, variables = await match(connection, batch, base)
        runs, audit = awakened(batch, settled.awake)
        variables |= _writes(batch, runs.values(), audit, base if batch.numbered else None)
        knocks = [wake_mail(run_id, batch.engine_id, batch.at) for run_id in winners_elsewhere(batch, settled)]
        variables |= {"engine": batch.engine_id, "knocks": [mail_row(mail) for mail in knocks]}
        query = QUERIES["finish"]
        settled.notified = set(await connection.fetchval(query.sql, *query.arguments(variables)))
        await _write_artifacts_and_tasks(connection, batch, variables)
        if batch.cooperation is not None:
            await _write_cooperation(connection, batch)
        if batch.shared is not None:
            await write_shared(connection, batch.shared, batch.at)
        if taken := taken_in(batch):
            settled.taken = await mailboxes_now(connection, taken)
    except Exception as error:
        if not is_lost(error):
            await connection.execute("rollback")
        raise
    await _end_transaction(connection, batch)
    return settled


def _writes(batch: Batch, runs: Iterable[RunWrite], audit: Sequence[Audit], base: int | None) -> dict[str, Any]:
    """Return the parts of the type writes_v1."""
    new: list[Row] = []
    changed: list[Row] = []
    for write in runs:
        if write.expected_version is None:
            new.append(new_run(write, base))
        else:
            changed.append(changed_run(write))
    # Rows are always locked in this order. So engines that change the same runs do not deadlock.
    changed.sort(key=itemgetter(0))
    return {
        "new_runs": new,
        "changed_runs": changed,
        "archive": batch.archive,
        "continued": batch.continued,
        "journal": [astuple(entry) for entry in batch.journal],
        "consumed": batch.consumed,
        "audit": [astuple(row) for row in audit],
        "mail": [mail_row(mail) for mail in batch.mail],
        "mail_done": [(mail_id, reply, batch.at) for mail_id, reply in batch.mail_done.items()],
        "published": [published_row(value) for value in batch.published.values()],
        "stream_items": stream_item_rows(batch.stream_items),
    }


def _has_artifacts_or_tasks(batch: Batch) -> bool:
    return batch.tasks is not None or has_artifacts(batch)


def _artifacts_and_tasks(batch: Batch) -> dict[str, Any]:
    """Return those parts of the type stock_v1 that `_writes` does not return."""
    return {"artifacts_at": batch.at, **artifacts_of(batch), **tasks_of(batch)}


async def _committed(connection: Connection, batch: Batch, state: int) -> Committed:
    if state == _FENCED:
        raise await _fence(connection, batch)
    return Committed(landed=state == _LANDED)


async def _fence(connection: Connection, batch: Batch) -> Fenced:
    query = QUERIES["engine"]
    row = await connection.fetchrow(query.sql, batch.engine_id)
    last = row[3] if row is not None else None
    # If a store was restored to an earlier state, its signs of life are old too. Then another engine may have marked
    # this engine dead. The error should report the missing batches, because they are the cause.
    is_behind = row is not None and row[1] == batch.epoch and row[3] < batch.number - 1
    try:
        if not is_behind:
            check_fence(batch.engine_id, batch.epoch, row)
    except Fenced as fenced:
        return fenced
    return Fenced(
        f"engine {batch.engine_id!r} sends batch {batch.number}, but the store has {last} as its last: the store went"
        " back to an earlier state, or somebody else writes in the engine's name",
        engine_id=batch.engine_id,
        batch=last,
    )


def check_fence(engine_id: str, epoch: int, row: Sequence[Any] | None) -> None:
    """Raise Fenced unless the engine with this row may write."""
    if row is None:
        raise Fenced(f"the store does not know engine {engine_id!r} any more", engine_id=engine_id)
    if row[1] != epoch:
        raise Fenced(f"engine {engine_id!r} has epoch {row[1]} in the store, not {epoch}", engine_id=engine_id)
    if not row[2]:
        raise Fenced(f"engine {engine_id!r} was marked dead", engine_id=engine_id)


async def _conflict(connection: Connection, batch: Batch) -> CommitConflict | StoreBusy:
    """Return the error for a batch that was rolled back. It names the runs that were not as expected."""
    rows = await connection.fetch(QUERIES["expectations"].sql, [*batch.runs, *batch.guards])
    found = {run_id: tuple(rest) for run_id, *rest in rows}
    there = await connection.fetch(QUERIES["mail_there"].sql, list(batch.mail_done)) if batch.mail_done else []
    gone = batch.mail_done.keys() - {mail_id for (mail_id,) in there}
    used = await connection.fetch(QUERIES["sent"].sql, list(batch.keys)) if batch.keys else []
    wrong = {run_id for run_id, write in batch.runs.items() if found.get(run_id) != _expected(write)}
    wrong |= {run_id for run_id, expected in batch.guards.items() if found.get(run_id) != expected}
    if wrong or used or gone:
        return CommitConflict(frozenset(wrong), frozenset(gone))
    # Another engine wrote between the rollback and this read. Now all runs are as expected.
    return StoreBusy("runs of the batch were being changed by another process; nothing was written")


def _expected(write: RunWrite) -> tuple[str | None, int, int] | None:
    if write.expected_version is None:
        return None
    return write.expected_owner, write.expected_version, write.expected_claim
