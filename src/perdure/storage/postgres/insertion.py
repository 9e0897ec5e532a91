"""A new run, inserted by a caller's own connection in the caller's transaction.

Of that connection nothing is known: not its driver, not its search path, not whether it leads here at all. And an error
of Postgres would be the end of the transaction, so what can be asked beforehand is asked, and the rest is returned.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any, Final

from msgspec.structs import astuple

from perdure.errors import Misuse
from perdure.kernel.batch import Batch
from perdure.ports import Rows, Statement, StoredRun
from perdure.storage.postgres.address import Address
from perdure.storage.postgres.queries import QUERIES
from perdure.storage.postgres.rows import Row, new_run, stored_run_of

_SOURCE: Final = re.compile(r"\bfrom (?=\w)")


def insertion(address: Address, batch: Batch) -> Generator[Statement, Rows, StoredRun | None]:
    """The one run of a batch, as `commit` would write it. Raises Misuse."""
    (write,) = batch.runs.values()
    (note,) = batch.audit
    run_id = write.run.id
    ((began, is_there, is_allowed),) = yield _statement("surroundings", {"schema": address.schema})
    if not is_there:
        raise _foreign(run_id, address)
    if not is_allowed:
        raise Misuse(
            f"run {run_id!r} was not started: the user of this connection may not write Perdure's tables; grant it"
            f' usage on the schema "{address.schema}", and select and insert on all its tables and sequences',
            run_id=run_id,
        )
    variables = {
        "engine": batch.engine_id,
        "began": began,
        "run": record_text(new_run(write, None)),
        "note": record_text(astuple(note)),
    }
    ((state,),) = yield _statement("start", variables, address.schema)
    match state:
        case "inserted":
            return None
        case "detached":
            raise Misuse(
                f"run {run_id!r} was not started: this connection is not in a transaction (it is in autocommit mode);"
                " begin one, as with `async with connection.transaction():`, or leave connection= out",
                run_id=run_id,
            )
        case "read-only":
            raise Misuse(
                f"run {run_id!r} was not started: the transaction of this connection is read-only, or its server is a"
                " standby; begin one that may write",
                run_id=run_id,
            )
        case "foreign":
            raise _foreign(run_id, address)
        case _:
            rows = yield _statement("stored_runs", {"ids": [run_id]}, address.schema)
            return stored_run_of(rows[0])


def _foreign(run_id: str, address: Address) -> Misuse:
    return Misuse(
        f"run {run_id!r} was not started: this connection leads to another database than the store, which is"
        f" {address.name} with the schema {address.schema!r}; connect to that one (and, with repeatable reads, begin"
        " the transaction after the engine or client was opened)",
        run_id=run_id,
    )


def _statement(name: str, variables: Mapping[str, Any], schema: str | None = None) -> Statement:
    """A named query, where a connection has another search path."""
    query = QUERIES[name]
    sql = query.sql if schema is None else _SOURCE.sub(f'from "{schema}".', query.sql)
    return Statement(sql, tuple(query.arguments(variables)), writes=name == "start")


def record_text(row: Row) -> str:
    """A row as Postgres writes values of composite types, which needs no help of a driver."""
    return f"({','.join(map(_field, row))})"


def _field(value: object) -> str:
    if value is None:
        return ""
    text = str(value).replace("\\", "\\\\").replace('"', '""')
    return f'"{text}"'
