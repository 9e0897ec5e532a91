"""Starts of runs: through the coordinator, or in a transaction of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from perdure.api.connections import insert, insert_async
from perdure.api.run_changes import deadline_at
from perdure.api.run_handle import RunHandle
from perdure.coordinator.call_spans import one_call
from perdure.coordinator.caller_batches import insertable_batch
from perdure.errors import InvalidArguments
from perdure.kernel import ops
from perdure.kernel.rules.starts import Started
from perdure.kernel.runs import Run
from perdure.models.functions.catalogue import Catalogue
from perdure.models.functions.define import RunCall, Workflow
from perdure.models.functions.identity import same_start
from perdure.ports import Insertion, Taken, TakenRun
from perdure.session import Session
from perdure.values.arguments import Duration
from perdure.values.canonical import plain
from perdure.values.checks import checked_remark, checked_tags, checked_text
from perdure.values.json import Reader, to_text

R = TypeVar("R")
_AT_ONCE_CHARS: Final = 4 * 1024  # Longer inputs are compared in a thread.


class PreparedStart(Generic[R]):
    """A start that was checked and is not written yet."""

    def __init__(
        self,
        session: Session,
        op: ops.Start,
        input: str,
        reader: Reader | None,
        workflow: Workflow[Any, Any] | None = None,
    ) -> None:
        self.op = op
        self._session = session
        self._input = input  # before the codec encodes it
        self._reader = reader
        self._workflow = workflow  # None if this process does not have the workflow

    def insert(self, connection: object) -> RunHandle[R]:
        """Write the start with a blocking connection.

        This uses only the connection, so you may call it in any thread. Raises the same errors as
        `start(connection=…)`.
        """
        return self._inserted(insert(connection, self._insertion()))

    async def insert_async(self, connection: object) -> RunHandle[R]:
        """Write the start with a connection of any kind. Raises the same errors as `start(connection=…)`."""
        return self._inserted(await insert_async(connection, self._insertion()))

    async def submit(self) -> RunHandle[R]:
        """Write the start through the coordinator, and return once it is durable. Raises RunExists."""
        session = self._session
        started: Started = await session.coordinator.submit(self.op)
        return await self.started(started)

    async def started(self, started: Started) -> RunHandle[R]:
        """Return the handle for the coordinator's reply. Raises RunExists if another run has the id."""
        session = self._session
        if not started.created:
            stored = (await session.caller_store.get([started.run.id]))[started.run.id]
            check = self._check_same(stored.run, stored.input)
            if max(len(stored.input), len(self._input)) > _AT_ONCE_CHARS:
                await asyncio.to_thread(check)
            else:
                check()
        return RunHandle(session, started.run.id, self._reader)

    def _insertion(self) -> Insertion:
        session = self._session
        return session.caller_store.insertion(insertable_batch(self.op, session.coordinator.engine))

    def _inserted(self, taken: Taken) -> RunHandle[R]:
        if isinstance(taken, TakenRun):
            self._check_same(taken, taken.input)()
        return RunHandle(self._session, self.op.run_id, self._reader, in_transaction=True)

    def _check_same(self, run: Run | TakenRun, stored: str) -> Callable[[], None]:
        """Return a function that raises RunExists if the run was started with other arguments."""
        return same_start(run, self._session.codec.decode(stored), self.op.workflow, self._input, self._workflow)


@one_call
async def prepare(
    session: Session,
    call: RunCall[Any] | str,
    input: Mapping[str, Any] | None = None,
    *,
    version: str | None = None,
    id: str | None = None,
    tags: Mapping[str, str] | None = None,
    deadline: datetime | Duration | None = None,
    actor: str = "api",
) -> PreparedStart[Any]:
    """Check a start without writing anything. Raises UnknownWorkflow, InvalidArguments, UnstorableValue."""
    session.check_open(to_start=True)
    payload_max = session.limits.payload_bytes_max
    if actor != "api":
        checked_remark("", actor)
    reader: Reader | None = None
    workflow: Workflow[Any, Any] | None = None
    model = ""  # the model is not known
    if isinstance(call, str):
        name = checked_text(call, "a workflow's name")
        if version:
            checked_text(version, "a workflow's version")
        version = await _newest_version(session, name) if version is None else version
        if not (input is None or isinstance(input, Mapping)):
            raise InvalidArguments(f"the input of {name!r} must be a mapping of its parameters, not {input!r:.80}")
        given = dict(input or {})
        if (workflow := session.workflows.get((name, version))) is not None:
            model = workflow.model
            text = workflow.signature.write((), given, payload_max)
        else:
            text = to_text(plain(given), f"the input of workflow {name!r}", payload_max)
    else:
        workflow = session.listener.workflow_of(call)
        name, version, model = workflow.name, workflow.version, workflow.model
        text = workflow.signature.write(call.args, call.kwargs, payload_max)
        reader = workflow.signature.result
    now = session.clock.now()
    op = ops.Start(
        run_id=session.ids(now) if id is None else checked_text(id, "a run's id"),
        at=now,
        actor=actor,
        workflow=name,
        workflow_version=version,
        model=model,
        input=session.codec.encode(text),
        tags=checked_tags(tags),
        deadline=deadline_at(deadline, now),
        fresh=id is None,
    )
    return PreparedStart(session, op, text, reader, workflow)


async def start_all(session: Session, prepared: Sequence[PreparedStart[Any]]) -> list[RunHandle[Any]]:
    """Start several runs in shared commits.

    If a start is refused, the other runs are started, and then the error of the refused start is raised.
    """
    replies = await session.coordinator.submit_batch([one.op for one in prepared])
    for reply in replies:
        if isinstance(reply, BaseException):
            raise reply
    return [await one.started(reply) for one, reply in zip(prepared, replies, strict=True)]


async def _newest_version(session: Session, name: str) -> str:
    """Return the version that the newest engine with this workflow has. Raises UnknownWorkflow. Raises InvalidArguments
    for an operation."""
    catalogue = Catalogue(lambda: session.caller_store, session.workflows)
    hint = "; to start it anyway, and let it wait for an engine, pass its version: version=''"
    return await catalogue.version(name, hint=hint)


__all__ = ["PreparedStart", "prepare", "start_all"]
