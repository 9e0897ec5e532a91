"""The engine's and the client's verbs for starting runs, by themselves or in a transaction of the caller's own."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar, overload

from perdure.arguments import Duration, checked
from perdure.connections import insert, insert_async
from perdure.controlling import deadline_at
from perdure.coordinator.coordinator import Coordinator
from perdure.coordinator.deciding import drafted
from perdure.errors import InvalidArguments
from perdure.handles import RunHandle
from perdure.kernel import ops
from perdure.kernel.decide import Started
from perdure.kernel.records import Run
from perdure.models.functions.canonical import plain
from perdure.models.functions.catalogue import Catalogue
from perdure.models.functions.checks import checked_remark, checked_tags, checked_text
from perdure.models.functions.define import RunCall, Workflow
from perdure.models.functions.identity import check_same
from perdure.models.functions.values import Reader, to_text
from perdure.ports import Clock, Codec, Ids, Insertion, Store, Taken, TakenRun
from perdure.registry import Registry, called

R = TypeVar("R")


class PreparedStart(Generic[R]):
    """A start that has been checked: all that is missing is that somebody writes it."""

    def __init__(
        self, op: ops.Start, input: str, reader: Reader | None, workflow: Workflow[Any, Any] | None = None
    ) -> None:
        self.op = op
        self.input = input  # before the codec
        self.reader = reader
        self.workflow = workflow  # if it is known here


@checked(own=("call",))
class Starting:
    """What whoever has these parts can start."""

    _coordinator: Coordinator
    _patient_store: Store
    _clock: Clock
    _codec: Codec
    _ids: Ids
    _workflows: Registry
    _payload_bytes_max: int

    def _check_open(self, *, to_start: bool = False) -> None:
        raise NotImplementedError

    def _handle(self, id: str, reader: Reader | None, *, in_transaction: bool = False) -> RunHandle[Any]:
        raise NotImplementedError

    @overload
    async def start(
        self,
        call: RunCall[R],
        *,
        id: str | None = None,
        tags: Mapping[str, str] | None = None,
        deadline: datetime | Duration | None = None,
        actor: str = "api",
        connection: object | None = None,
    ) -> RunHandle[R]: ...

    @overload
    async def start(
        self,
        call: str,
        input: Mapping[str, Any] | None = None,
        *,
        version: str | None = None,
        id: str | None = None,
        tags: Mapping[str, str] | None = None,
        deadline: datetime | Duration | None = None,
        actor: str = "api",
        connection: object | None = None,
    ) -> RunHandle[Any]: ...

    async def start(
        self,
        call: RunCall[Any] | str,
        input: Mapping[str, Any] | None = None,
        *,
        version: str | None = None,
        id: str | None = None,
        tags: Mapping[str, str] | None = None,
        deadline: datetime | Duration | None = None,
        actor: str = "api",
        connection: object | None = None,
    ) -> RunHandle[Any]:
        """Start a run; its handle once the run is durable.

        What to run is a called workflow, or its name with the arguments by name, as JSON values; without a `version` it
        is the one that the newest engine has. An engine that has the code takes it.

        With an `id` this is idempotent: the same id, workflow and arguments give the same run, others raise RunExists.
        A run that has not ended by its `deadline` fails. Raises UnknownWorkflow, InvalidArguments, UnstorableValue.

        With a `connection` of the caller's own to the store's database (asyncpg, psycopg 3, SQLAlchemy 2, sqlite3) the
        run is written by it, in its transaction: it is there with the commit and starts soon after, or never was, after
        a rollback or a crash. Until the commit its handle raises RunNotFound. Raises Misuse if the connection cannot be
        used for that, and what its driver raises; neither Misuse nor RunExists spoils the transaction.
        """
        prepared = await self._prepare(call, input, version, id, tags, deadline, actor)
        if connection is not None:
            return self._inserted(prepared, await insert_async(connection, self._insertion(prepared)))
        return await self._start_prepared(prepared)

    async def run(
        self,
        call: RunCall[R],
        *,
        id: str | None = None,
        tags: Mapping[str, str] | None = None,
        deadline: datetime | Duration | None = None,
    ) -> R:
        """Start a run and wait for its result. As `start`, and raises what `RunHandle.result` does."""
        prepared: PreparedStart[R] = await self._prepare(call, None, None, id, tags, deadline, "api")
        return await (await self._start_prepared(prepared)).result()

    @overload
    async def prepare_start(
        self,
        call: RunCall[R],
        *,
        id: str | None = None,
        tags: Mapping[str, str] | None = None,
        deadline: datetime | Duration | None = None,
        actor: str = "api",
    ) -> PreparedStart[R]: ...

    @overload
    async def prepare_start(
        self,
        call: RunCall[Any] | str,
        input: Mapping[str, Any] | None = None,
        *,
        version: str | None = None,
        id: str | None = None,
        tags: Mapping[str, str] | None = None,
        deadline: datetime | Duration | None = None,
        actor: str = "api",
    ) -> PreparedStart[Any]: ...

    async def prepare_start(
        self,
        call: RunCall[Any] | str,
        input: Mapping[str, Any] | None = None,
        *,
        version: str | None = None,
        id: str | None = None,
        tags: Mapping[str, str] | None = None,
        deadline: datetime | Duration | None = None,
        actor: str = "api",
    ) -> PreparedStart[Any]:
        """The first half of `start`: all checks, and nothing written. For `insert_start`. Raises as `start`."""
        return await self._prepare(call, input, version, id, tags, deadline, actor)

    async def _prepare(
        self,
        call: RunCall[Any] | str,
        input: Mapping[str, Any] | None,
        version: str | None,
        id: str | None,
        tags: Mapping[str, str] | None,
        deadline: datetime | Duration | None,
        actor: str,
    ) -> PreparedStart[Any]:
        """As `prepare_start`, for verbs that have had their arguments checked."""
        self._check_open(to_start=True)
        if actor != "api":
            checked_remark("", actor)
        reader: Reader | None = None
        workflow: Workflow[Any, Any] | None = None
        model = ""  # not known
        if isinstance(call, str):
            name = checked_text(call, "a workflow's name")
            if version:
                checked_text(version, "a workflow's version")
            version = await self._version(name) if version is None else version
            if not (input is None or isinstance(input, Mapping)):
                raise InvalidArguments(f"the input of {name!r} is a mapping of its parameters, not {input!r:.80}")
            given = dict(input or {})
            if (workflow := self._workflows.get((name, version))) is not None:
                model = workflow.model
                text = workflow.signature.write((), given, self._payload_bytes_max)
            else:
                text = to_text(plain(given), f"the input of workflow {name!r}", self._payload_bytes_max)
        else:
            workflow = self._called(call)
            name, version, model = workflow.name, workflow.version, workflow.model
            text = workflow.signature.write(call.args, call.kwargs, self._payload_bytes_max)
            reader = workflow.signature.result
        now = self._clock.now()
        op = ops.Start(
            run_id=self._ids(now) if id is None else checked_text(id, "a run's id"),
            at=now,
            actor=actor,
            workflow=name,
            workflow_version=version,
            model=model,
            input=self._codec.encode(text),
            tags=checked_tags(tags),
            deadline=deadline_at(deadline, now),
            fresh=id is None,
        )
        return PreparedStart(op, text, reader, workflow)

    async def _start_prepared(self, prepared: PreparedStart[R]) -> RunHandle[R]:
        """The second half of `start` without a connection."""
        started: Started = await self._coordinator.submit(prepared.op)
        if not started.created:
            stored = (await self._patient_store.get([started.run.id]))[started.run.id]
            self._check_same(stored.run, stored.input, prepared)
        return self._handle(started.run.id, prepared.reader)

    def insert_start(self, prepared: PreparedStart[R], connection: object) -> RunHandle[R]:
        """The second half of `start` with a connection that blocks, for code that does: asks nobody but the connection,
        and may be called in any thread. Raises as `start` does then."""
        return self._inserted(prepared, insert(connection, self._insertion(prepared)))

    def _insertion(self, prepared: PreparedStart[Any]) -> Insertion:
        return self._patient_store.insertion(drafted(prepared.op, self._coordinator.engine))

    def _inserted(self, prepared: PreparedStart[R], taken: Taken) -> RunHandle[R]:
        if isinstance(taken, TakenRun):
            self._check_same(taken, taken.input, prepared)
        return self._handle(prepared.op.run_id, prepared.reader, in_transaction=True)

    def _check_same(self, run: Run | TakenRun, stored: str, prepared: PreparedStart[Any]) -> None:
        check_same(run, self._codec.decode(stored), prepared.op.workflow, prepared.input, prepared.workflow)

    def _called(self, call: RunCall[Any]) -> Workflow[Any, Any]:
        """The workflow of a call that is to be started. Raises Misuse, UnknownWorkflow."""
        return called(call)

    async def _version(self, name: str) -> str:
        """The version of a workflow that the engine has that came last. Raises UnknownWorkflow, and InvalidArguments if
        it is an operation."""
        catalogue = Catalogue(lambda: self._patient_store, self._workflows)
        hint = "; to start it all the same, and have it wait for one, say which version it is to be: version=''"
        return await catalogue.version(name, hint=hint)
