"""Inserting a new run, or a message with its runs, over a caller's own connection and in the caller's transaction."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec.structs import astuple

from perdure.errors import HandlersChanged, Misuse
from perdure.kernel.batch import Batch
from perdure.kernel.cooperation import Cooperation
from perdure.ports import Rows, Statement, Taken, TakenMessage, TakenRun
from perdure.storage.sqlite.commit import plan
from perdure.storage.sqlite.cooperation import QUERIES as MESSAGE_QUERIES
from perdure.storage.sqlite.cooperation import event_of, insert_events
from perdure.storage.sqlite.queries import QUERIES
from perdure.storage.sqlite.rows import json_text, stored_run_of

_SAVEPOINT: Final = "perdure_start"


def insertion(path: Path, batch: Batch) -> Generator[Statement, Rows, Taken]:
    """Insert the one run of a batch, or its one message with its runs. All rows are inserted, or none.

    Raises Misuse, HandlersChanged.
    """
    return _start(path, batch) if batch.cooperation is None else _emission(path, batch, batch.cooperation)


def _emission(path: Path, batch: Batch, added: Cooperation) -> Generator[Statement, Rows, TakenMessage | None]:
    (message,) = added.messages
    files = {name: file for _, name, file in (yield Statement("pragma database_list"))}
    _check_file(f"message {message.id!r} was not emitted", message.id, path, files)
    planned = plan(batch)
    yield Statement(f"savepoint {_SAVEPOINT}", writes=True)
    try:
        # A write must come first. If a transaction begins with a read and others write in the meantime, it can no
        # longer write.
        yield Statement(MESSAGE_QUERIES["emit_message"], astuple(message))
        ((inserted,),) = yield Statement("select changes()")
        if not inserted:
            rows = yield Statement(MESSAGE_QUERIES["emitted"], {"message_id": message.id})
            known = event_of(rows[0])
            yield Statement(f"release {_SAVEPOINT}")
            return TakenMessage(message_id=known.message_id, scope=known.scope)
        ((version,),) = yield Statement(MESSAGE_QUERIES["book_version"])
        if version != added.registry_version:
            raise HandlersChanged("a handler was registered or taken out meanwhile")
        rest = [*planned.runs, *planned.rest, *insert_events(added.events), *planned.audit]
        for sql, variables in rest:
            yield Statement(sql, tuple(variables))
    except BaseException:
        with suppress(Exception):
            yield Statement(f"rollback to {_SAVEPOINT}")
            yield Statement(f"release {_SAVEPOINT}")
        raise
    yield Statement(f"release {_SAVEPOINT}")
    return None


def _start(path: Path, batch: Batch) -> Generator[Statement, Rows, TakenRun | None]:
    (run_id,) = batch.runs
    files = {name: file for _, name, file in (yield Statement("pragma database_list"))}
    _check_file(f"run {run_id!r} was not started", run_id, path, files)
    planned = plan(batch)
    yield Statement(f"savepoint {_SAVEPOINT}", writes=True)
    try:
        for sql, variables in planned.runs:
            yield Statement(sql, tuple(variables))
        ((inserted,),) = yield Statement("select changes()")
        for sql, variables in [*planned.rest, *planned.audit] if inserted else []:
            yield Statement(sql, tuple(variables))
        taken = None
        if not inserted:
            rows = yield Statement(QUERIES["stored_runs"], {"ids": json_text([run_id])})
            stored = stored_run_of(tuple(rows[0]))
            run = stored.run
            taken = TakenRun(id=run.id, workflow=run.workflow, origin=run.origin, input=stored.input)
    except BaseException:
        # After some errors, SQLite itself has already rolled back the whole transaction.
        with suppress(Exception):
            yield Statement(f"rollback to {_SAVEPOINT}")
            yield Statement(f"release {_SAVEPOINT}")
        raise
    yield Statement(f"release {_SAVEPOINT}")
    return taken


def _check_file(what: str, run_id: str, path: Path, files: dict[str, str]) -> None:
    if _is_same(files.get("main", ""), path):
        return
    why = f"this connection is to {files.get('main') or 'a database in memory'}, and the store to {path}"
    if any(_is_same(file, path) for file in files.values()):
        why = f"{path} is only attached to this connection, and SQLite does not commit two files as one"
    raise Misuse(f"{what}: {why}; connect to the store's file itself", run_id=run_id)


def _is_same(file: str, path: Path) -> bool:
    with suppress(OSError):
        return bool(file) and Path(file).samefile(path)
    return False
