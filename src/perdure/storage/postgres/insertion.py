"""Inserting a new run, or a message with its runs, over a caller's own connection and in the caller's transaction.

The store does not know the driver of that connection, its search path, or whether it leads to this database. An error
of Postgres would end the caller's transaction. So everything that can be checked is checked first. All other problems
are returned as a state.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any, Final

from msgspec import Struct

from perdure.errors import HandlersChanged, Misuse, RunExists
from perdure.kernel.batch import Batch
from perdure.kernel.cooperation import Cooperation
from perdure.ports import Rows, Statement, Taken, TakenMessage, TakenRun
from perdure.storage.postgres.address import Address
from perdure.storage.postgres.queries import QUERIES
from perdure.storage.postgres.rows import json_text

_SOURCE: Final = re.compile(r"\bfrom (?=\w)")


def insertion(address: Address, batch: Batch) -> Generator[Statement, Rows, Taken]:
    """Insert the one run of a batch, or its one message with its runs. The rows are the same as `commit` writes.

    Raises Misuse, RunExists, HandlersChanged.
    """
    return _start(address, batch) if batch.cooperation is None else _emission(address, batch, batch.cooperation)


def _start(address: Address, batch: Batch) -> Generator[Statement, Rows, TakenRun | None]:
    (write,) = batch.runs.values()
    (note,) = batch.audit
    run = write.run
    what = _What(f"run {run.id!r} was not started", run.id)
    began = yield from _surroundings(address, what, "start_v2")
    variables = {
        "engine": batch.engine_id,
        "began": began,
        "id": run.id,
        "workflow": run.workflow,
        "version": run.workflow_version,
        "model": run.model,
        "is_known": run.claim > 0,
        "tags": _tags_text(run.tags),
        "deadline": run.deadline,
        "actor": note.actor,
        "at": run.created_at,
        "input": write.input,
    }
    ((state, workflow, origin, input),) = yield _statement("start", variables, address.schema)
    _check(state, what, address)
    if state == "inserted":
        return None
    if input is None and not origin:
        raise RunExists(
            f"the id {run.id!r} belongs to another run, of {workflow!r}; this start asks for {run.workflow!r}. Use"
            " another id",
            run_id=run.id,
        )
    return TakenRun(id=run.id, workflow=workflow, origin=origin, input=input or "")


def _emission(address: Address, batch: Batch, added: Cooperation) -> Generator[Statement, Rows, TakenMessage | None]:
    (message,) = added.messages
    (event,) = added.events
    runs = list(batch.runs.values())
    what = _What(f"message {message.id!r} was not emitted", message.id)
    began = yield from _surroundings(address, what, "emit_v2")
    variables = {
        "engine": batch.engine_id,
        "began": began,
        "book": added.registry_version,
        "root": event.scope,
        "event_id": event.id,
        "emitted_at": event.created_at,
        "context": event.context,
        "message": message.id,
        "topic": message.topic,
        "payload": message.payload,
        "at": message.created_at,
        "actor": batch.audit[0].actor if batch.audit else "",
        "run_ids": [write.run.id for write in runs],
        "names": [write.run.workflow for write in runs],
        "tags": [_tags_text(write.run.tags) for write in runs],
        "inputs": [write.input for write in runs],
    }
    ((state, scope),) = yield _statement("emit", variables, address.schema)
    _check(state, what, address)
    return None if state == "inserted" else TakenMessage(message_id=message.id, scope=scope)


def _tags_text(tags: Mapping[str, str]) -> str:
    return json_text(tags) if tags else "{}"


class _What(Struct, frozen=True):
    """The request that failed, and the run or message that it is about."""

    text: str
    run_id: str


def _surroundings(address: Address, what: _What, function: str) -> Generator[Statement, Rows, str]:
    """Return the time at which the connection's transaction began. Raises Misuse if the connection cannot be used."""
    variables = {"schema": address.schema, "function": function}
    ((began, is_there, is_allowed),) = yield _statement("surroundings", variables)
    if not is_there:
        raise _foreign(what, address)
    if not is_allowed:
        raise Misuse(
            f"{what.text}: the user of this connection may not start runs in Perdure's schema; grant it"
            f' usage on the schema "{address.schema}", and execute on its functions start_v2 and emit_v2'
            " (perdure.storage.postgres.caller_grants has the statements)",
            run_id=what.run_id,
        )
    return str(began)


def _check(state: str, what: _What, address: Address) -> None:
    """Raise the error that a state means."""
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


def _statement(name: str, variables: Mapping[str, Any], schema: str | None = None) -> Statement:
    """Return a named query as a statement for a connection with another search path."""
    query = QUERIES[name]
    sql = query.sql if schema is None else _SOURCE.sub(f'from "{schema}".', query.sql)
    return Statement(sql, tuple(query.arguments(variables)), writes=name in ("start", "emit"))
