"""A world of which an engine is the heart: the same scenarios, on every store, with a process that dies when told.

It runs an event loop of its own, only while a test asks it for something. What steps do is noted with `did`, and counts
once the rows of the step are committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any, TypeVar

from perdure import Engine, current_step
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.lineages import Lineage, read_origin
from perdure.models.cooperation.context import EMPTY, Context
from perdure.models.cooperation.define import Operation
from perdure.models.cooperation.message_events import EventType, Message, MessageEvent
from perdure.models.cooperation.moves import NewRun
from perdure.models.cooperation.return_values import ReturnValue
from perdure.models.cooperation.row_codec import RowCodec
from perdure.models.cooperation.topics import Topic
from perdure.models.functions.define import RunCall, Workflow
from perdure.ports import PlainCodec, Store
from perdure.testing import Environment, VirtualClock
from perdure.testing.environment import StoreSource
from perdure.testing.faults import Fault, Point
from perdure.testing.proxy import StoreProxy
from perdure.testing.readiness import assert_readiness_agrees
from tests.cooperation.world import Seen

T = TypeVar("T")

SOURCES: dict[str, Callable[[], StoreSource]] = {}  # fresh data; see conftest.py
OPEN: list[EngineWorld] = []


class EngineWorld(Seen):
    def __init__(
        self,
        *operations: Operation[Any],
        on: str,
        crash_at: int | None = None,
        point: Point = "before",
        frozen: bool = False,
        workflows: Sequence[Workflow[Any, Any]] = (),
        **_: Any,
    ) -> None:
        """`workflows` are functions and graphs that take part."""
        self.operations = operations
        self.messages: list[Message] = []
        self.events: list[MessageEvent] = []
        self.runs: list[NewRun] = []
        self.values: list[ReturnValue] = []
        self.log: list[str] = []
        self.trouble: list[str] = []
        self.commits = 0
        self.on_commit: list[Callable[[Any], None]] = []
        self.registry = Registered(self)
        self._noted: dict[str, list[str]] = {}
        self._codec = RowCodec(PlainCodec())
        self._loop = asyncio.new_event_loop()
        self._tasks: list[asyncio.Task[Any]] = []
        self._messages = count(1)
        self._fault = Fault("busy", times=0) if crash_at is None else Fault(point, crash_at)
        self._source = SOURCES[on]()
        clock = VirtualClock(datetime.fromtimestamp(1_000, UTC))
        self._environment = Environment(
            [*operations, *workflows],
            self._source,
            clock=clock,
            autojump_s=None if frozen else 20.0,  # No step hangs here, but a busy machine may take its time.
            fault=self._fault,
            watch=self._watching,
        )
        OPEN.append(self)
        self._do(self._environment.__aenter__())

    # -- what tests do

    def did(self, what: str) -> None:
        self._noted.setdefault(current_step().run_id, []).append(what)

    def emit(self, topic: Topic[Any], message: Any, context: Context = EMPTY) -> Lineage:
        id = f"m-{next(self._messages)}"

        async def emit(env: Environment) -> str:
            return (await env.engine.emit(topic, message, id=id, context=context)).id

        return (self._do(self._environment.survive(emit)),)

    def start(self, call: RunCall[Any], id: str) -> None:
        self._insist(lambda engine: engine.start(call, id=id))

    def status(self, id: str) -> str:
        return self._do(self._environment.engine.handle(id).status())

    def run(self) -> Any:
        async def settle(env: Environment) -> None:
            while True:
                await env.settle()
                waiting, self._tasks = self._tasks, []
                if not waiting:
                    return
                await asyncio.wait(waiting)

        self._do(self._environment.survive(settle))
        return self

    def cancel(self, lineage: Lineage, reason: str = "no longer wanted") -> bool:
        return self._ask(lambda: self._environment.engine.handle(lineage[-1]).cancel(reason=reason))

    def roll_back(self, lineage: Lineage, reason: str = "undo") -> bool:
        return self._ask(lambda: self._environment.engine.handle(lineage[-1]).roll_back(reason=reason))

    def complete(self, handler: str) -> None:
        self._settle(handler, lambda engine, run_id: engine.topics.complete(run_id))

    def fail(self, handler: str, reason: str) -> None:
        self._settle(handler, lambda engine, run_id: engine.topics.fail(run_id, reason))

    def complete_rollback(self, handler: str) -> None:
        self._settle(handler, lambda engine, run_id: engine.topics.complete_rollback(run_id))

    def _settle(self, handler: str, settle: Callable[[Engine, str], Coroutine[Any, Any, None]]) -> None:
        run_id = self.run_of(handler).id
        before = self.state(handler)

        async def ask(env: Environment) -> None:
            if self.state(handler) is before:  # What a crash interrupted may be done.
                await settle(env.engine, run_id)

        self._do(self._environment.survive(ask))

    def retire(self, topic: Topic[Any], handler: str, *, release: bool = False) -> None:
        self._insist(lambda engine: engine.topics.retire(topic, handler, release=release))

    def register(self, topic: Topic[Any], handler: str) -> None:
        self._insist(lambda engine: engine.topics.register(topic, handler))

    def _insist(self, request: Callable[[Engine], Coroutine[Any, Any, Any]]) -> None:
        """Whoever asks from outside asks again if the process dies before it has answered."""

        async def ask(env: Environment) -> None:
            await request(env.engine)

        self._do(self._environment.survive(ask))

    def come(self, operation: Operation[Any]) -> None:
        """Its process is stopped, and started again with this operation too."""

        async def restart(env: Environment) -> None:
            if operation not in self.operations:
                self.operations += (operation,)
                assert env._workflows is not None  # pyright: ignore[reportPrivateUsage]
                env._workflows.append(operation)  # pyright: ignore[reportPrivateUsage]
                await env.restart()

        self._do(self._environment.survive(restart))

    def _ask(self, request: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
        if not self._loop.is_running():

            async def ask(_: Environment) -> bool:
                return await request()

            return self._do(self._environment.survive(ask))
        asyncio.run_coroutine_threadsafe(self._ask_from_inside(request), self._loop)
        return True

    async def _ask_from_inside(self, request: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        task = asyncio.ensure_future(request())
        self._tasks.append(task)
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()

    @property
    def now(self) -> int:
        return self._environment.clock.now()

    @property
    def batches(self) -> int:
        return self._fault.commits

    def end(self) -> None:
        """All is done: what is stored must be sound."""
        if self in OPEN:
            OPEN.remove(self)
            try:
                self._do(self._end())
            finally:
                self._loop.close()

    async def _end(self) -> None:
        environment = self._environment
        store: Store = environment._make()  # pyright: ignore[reportPrivateUsage]
        await environment.__aexit__(None, None, None)
        await environment.check()
        await store.open()
        try:
            await assert_readiness_agrees(store, self.operations, now=self.now)
        finally:
            await store.close()

    # -- how it goes on

    def _do(self, request: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(asyncio.wait_for(request, 30))

    def _watching(self, store: Store) -> Store:
        for lost in self._noted.values():
            self.trouble += lost  # A process that died took it with it.
        self._noted.clear()
        return _Watching(store, self)

    def committed(self, batch: Batch) -> None:
        for write in batch.runs.values():
            if write.expected_version is None and write.run.model == "operation":
                message_id, lineage = read_origin(write.run.origin)
                self.runs.append(NewRun(lineage=lineage, handler=write.run.workflow, message_id=message_id))
        added = batch.cooperation
        if added is None or not added.events:
            return
        self.commits += 1
        self.messages += [self._codec.read_message(row) for row in added.messages]
        runs = {run.id: run for run in self.runs}
        self.values += [self._codec.read_value(row, runs[row.scope]) for row in added.values]
        looked_at: set[str] = set()
        for stored in added.events:
            row = self._codec.read_event(stored)
            self.events.append(row)
            if stored.scope in looked_at or stored.scope not in self._noted:
                continue
            looked_at.add(stored.scope)
            if row.type in (EventType.SEEN, EventType.CANCELLATION_REQUESTED):
                looked_at.discard(stored.scope)
                continue
            returned = row.type is EventType.EMITTED or (row.type is EventType.SUSPENDED and row.exception is None)
            (self.log if returned else self.trouble).extend(self._noted.pop(stored.scope))
        for look in list(self.on_commit):
            look(self)


class Registered(dict[str, Any]):
    """`world.registry[topic].add(handler)` registers somebody who has no code."""

    def __init__(self, world: EngineWorld) -> None:
        self._world = world

    def __missing__(self, topic: str) -> Any:
        world = self._world

        class Expected:
            def add(self, name: str) -> None:
                world._insist(lambda engine: engine.topics.register(topic, name))

        return Expected()


class _Watching(StoreProxy):
    def __init__(self, inner: Store, world: EngineWorld) -> None:
        super().__init__(inner)
        self._world = world

    async def commit(self, batch: Batch) -> Committed:
        committed = await self.inner.commit(batch)
        if not committed.landed:
            self._world.committed(batch)
        return committed
