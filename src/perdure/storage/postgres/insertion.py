"""A new run, or a message with its runs, inserted by a caller's own connection in the caller's transaction.

Of that connection nothing is known: not its driver, not its search path, not whether it leads here at all. And an error
of Postgres would be the end of the transaction, so what can be asked beforehand is asked, and the rest is returned.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import astuple

from perdure.errors import HandlersChanged, Misuse
from perdure.kernel.batch import Batch
from perdure.kernel.cooperation import Cooperation, MessageEventRow
from perdure.ports import Rows, Statement, StoredRun
from perdure.storage.postgres.address import Address
from perdure.storage.postgres.cooperation import QUERIES as MESSAGE_QUERIES
from perdure.storage.postgres.cooperation import event_of
from perdure.storage.postgres.queries import QUERIES, Query
from perdure.storage.postgres.rows import Row, new_run, stored_run_of

_TABLES: Final = ("runs", "run_tags", "audit", "engines", "blocks")
_TABLES_OF_MESSAGES: Final = ("messages", "message_event", "handler_book")
_SOURCE: Final = re.compile(r"\bfrom (?=\w)")


def insertion(address: Address, batch: Batch) -> Generator[Statement, Rows, StoredRun | MessageEventRow | None]:
    """The one run of a batch, or the one message of it with its runs, as `commit` would write it. Raises Misuse,
    HandlersChanged."""
    return _start(address, batch) if batch.cooperation is None else _emission(address, batch, batch.cooperation)


def _start(address: Address, batch: Batch) -> Generator[Statement, Rows, StoredRun | None]:
    (write,) = batch.runs.values()
    (note,) = batch.audit
    what = _What(f"run {write.run.id!r} was not started", write.run.id)
    began = yield from _surroundings(address, what, "start_v1", _TABLES)
    variables = {
        "engine": batch.engine_id,
        "began": began,
        "run": record_text(new_run(write, None)),
        "note": record_text(astuple(note)),
    }
    ((state,),) = yield _statement("start", variables, address.schema)
    _check(state, what, address)
    if state == "inserted":
        return None
    rows = yield _statement("stored_runs", {"ids": [write.run.id]}, address.schema)
    return stored_run_of(rows[0])


def _emission(address: Address, batch: Batch, added: Cooperation) -> Generator[Statement, Rows, MessageEventRow | None]:
    (message,) = added.messages
    (event,) = added.events
    what = _What(f"message {message.id!r} was not emitted", message.id)
    began = yield from _surroundings(address, what, "emit_v1", (*_TABLES, *_TABLES_OF_MESSAGES))
    variables = {
        "engine": batch.engine_id,
        "began": began,
        "book": added.book,
        "runs": [record_text(new_run(write, None)) for write in batch.runs.values()],
        "notes": [record_text(astuple(note)) for note in batch.audit],
        "message": record_text(astuple(message)),
        "emission": record_text(astuple(event)),
    }
    ((state,),) = yield _statement("emit", variables, address.schema)
    _check(state, what, address)
    if state == "inserted":
        return None
    rows = yield _statement("emitted", {"message_id": message.id}, address.schema, MESSAGE_QUERIES)
    return event_of(rows[0])


class _What(Struct, frozen=True):
    """What was not done, and to whom."""

    text: str
    run_id: str


def _surroundings(
    address: Address, what: _What, function: str, tables: Sequence[str]
) -> Generator[Statement, Rows, str]:
    """When the connection's transaction began. Raises Misuse if the connection cannot be used."""
    variables = {"schema": address.schema, "function": function, "tables": [*tables]}
    ((began, is_there, is_allowed),) = yield _statement("surroundings", variables)
    if not is_there:
        raise _foreign(what, address)
    if not is_allowed:
        raise Misuse(
            f"{what.text}: the user of this connection may not write Perdure's tables; grant it"
            f' usage on the schema "{address.schema}", and select and insert on all its tables and sequences',
            run_id=what.run_id,
        )
    return str(began)


def _check(state: str, what: _What, address: Address) -> None:
    """Raise what a state says is wrong."""
    match state:
        case "detached":
            raise Misuse(
                f"{what.text}: this connection is not in a transaction (it is in autocommit mode);"
                " begin one, as with `async with connection.transaction():`, or leave connection= out",
                run_id=what.run_id,
            )
        case "read-only":
            raise Misuse(
                f"{what.text}: the transaction of this connection is read-only, or its server is a"
                " standby; begin one that may write",
                run_id=what.run_id,
            )
        case "foreign":
            raise _foreign(what, address)
        case "changed":
            raise HandlersChanged("a handler was registered or taken out meanwhile")
        case _:
            pass


def _foreign(what: _What, address: Address) -> Misuse:
    return Misuse(
        f"{what.text}: this connection leads to another database than the store, which is"
        f" {address.name} with the schema {address.schema!r}; connect to that one (and, with repeatable reads, begin"
        " the transaction after the engine or client was opened)",
        run_id=what.run_id,
    )


def _statement(
    name: str, variables: Mapping[str, Any], schema: str | None = None, queries: Mapping[str, Query] = QUERIES
) -> Statement:
    """A named query, where a connection has another search path."""
    query = queries[name]
    sql = query.sql if schema is None else _SOURCE.sub(f'from "{schema}".', query.sql)
    return Statement(sql, tuple(query.arguments(variables)), writes=name in ("start", "emit"))


def record_text(row: Row) -> str:
    """A row as Postgres writes values of composite types, which needs no help of a driver."""
    return f"({','.join(map(_field, row))})"


def _field(value: object) -> str:
    if value is None:
        return ""
    text = str(value).replace("\\", "\\\\").replace('"', '""')
    return f'"{text}"'
