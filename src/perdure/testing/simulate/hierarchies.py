"""A seeded mix of hierarchies of operations, with faults. The engines of the fleet have different handlers.

Hierarchies are emitted, cancelled (one by one or by tokens), and undone. Operations call functions. A service and a
person register late. The person may be released again. Then the faults stop. After that, every hierarchy must end as a
whole. After the reply to a cancellation, no further step of the cancelled runs may begin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any, Final, NoReturn, TypeVar

from msgspec import Struct, field

from perdure.cooperation import CancellationToken, Failure, Operation, Scope, Topic, go_on
from perdure.engine import Engine
from perdure.errors import EngineBug, EngineStopped, InvariantViolated, Misuse, RunOwnedElsewhere, StoreError
from perdure.kernel.ops import Op
from perdure.kernel.status import Status
from perdure.models.cooperation.handler_registry import HandlerRegistry
from perdure.models.cooperation.message_events import EventType, MessageEvent, State, state_of
from perdure.models.cooperation.row_codec import RowCodec, StoredScopes
from perdure.models.functions.compensation import compensate
from perdure.models.functions.define import step, workflow
from perdure.ports import PlainCodec, new_id
from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.testing.invariants import check_store
from perdure.testing.readiness import assert_readiness_agrees
from perdure.testing.simulate.loop import Stuck
from perdure.testing.simulate.mix import MIX, Mix
from perdure.testing.simulate.network import FINE
from perdure.testing.simulate.scenario import Report
from perdure.testing.simulate.simulation import Member, Simulation
from perdure.testing.simulate.transactions import Bug
from perdure.values.limits import Limits

__all__ = ["OPERATIONS", "simulate_hierarchies"]

T = TypeVar("T")

_REST_S: Final = 300.0
_ANNOUNCED_WITHIN_S: Final = 30
_TOPICS: Final = [Topic(f"simulate.level.{level}", dict[str, Any]) for level in range(3)]
_LEVELS: Final = {"order": 0, "stock": 1, "money": 1, "shelf": 2, "bank": 2}
_LATE: Final = {"audit": 1, "seal": 2}  # the services that register late, and their levels
_PERSON: Final = "simulate.person"


@step(name="simulate.count")
async def _count(takes_s: float) -> None:
    await asyncio.sleep(takes_s)


@workflow(name="simulate.called")
async def _called(takes_s: float, fails: bool) -> None:
    """A function that an operation calls. It is undone with the operation, even after it has succeeded."""
    await compensate(_count(takes_s))
    await _count(takes_s)
    if fails:
        raise ValueError("called")


def _operation(name: str, level: int) -> Operation[dict[str, Any]]:
    """Return an operation. Its message says how often it emits, how long it sleeps, where it fails, and whether it
    tolerates failures of its children.
    """
    made = Operation(f"simulate.{name}", _TOPICS[level])

    @made.step
    async def ask(scope: Scope, message: dict[str, Any]) -> None:
        _begins(scope)
        await asyncio.sleep(message["takes_s"])
        if level < len(_TOPICS) - 1:
            tokens = [CancellationToken(token) for token in message["tokens"].get(name, ())]
            for _ in range(message["emits"]):
                await scope.emit(_TOPICS[level + 1], message, tokens=tokens)
        if name in message["calls"]:
            await scope.start(_called(message["takes_s"], message["calls"][name]))
        if name in message["deadlines"]:
            scope.deadline(timedelta(seconds=message["deadlines"][name]))

    @ask.rollback
    async def take_back(_: Scope, message: dict[str, Any], __: Failure) -> None:
        await asyncio.sleep(message["takes_s"])

    @ask.on_child_failure
    async def answer(scope: Scope, message: dict[str, Any], failure: Failure, _: int) -> Any:
        if not scope.rolling_back:
            _begins(scope)
        if name not in message["forgiving"] or scope.rolling_back:
            raise failure.error()
        return go_on()

    @made.step
    async def sleep(scope: Scope, message: dict[str, Any]) -> None:
        _begins(scope)
        if name in message["sleeps"]:
            scope.sleep(timedelta(seconds=message["sleeps"][name]))

    @made.step
    async def end(scope: Scope, message: dict[str, Any]) -> None:
        _begins(scope)
        await asyncio.sleep(message["takes_s"])
        if message["fails"] == name:
            raise ValueError(name)

    @end.rollback
    async def undo_end(_: Scope, __: dict[str, Any], ___: Failure) -> None: ...

    return made


class _Cancelled(Struct):
    """The cancellations that were replied to: hierarchies and runs by their ids, and tokens by their names. It also has
    the steps that began although they were cancelled.
    """

    ids: set[str] = field(default_factory=set[str])
    tokens: set[str] = field(default_factory=set[str])
    begun: list[str] = field(default_factory=list[str])


_cancelled: ContextVar[_Cancelled | None] = ContextVar("cancelled", default=None)


def _begins(scope: Scope) -> None:
    """Check that a step that begins does not belong to a cancelled run."""
    cancelled = _cancelled.get()
    if cancelled is None:
        return
    of = [id for id in scope.lineage if id in cancelled.ids]
    of += [f"token {token.name}" for token in scope.tokens if token.name in cancelled.tokens]
    if of:
        cancelled.begun.append(f"{scope.step} of {scope.handler} {scope.run_id} began after {of} had been cancelled")


OPERATIONS: Final = {name: _operation(name, level) for name, level in (_LEVELS | _LATE).items()}


class _Root(Struct):
    """A message that was emitted, and all requests about it."""

    message: dict[str, Any]
    is_cancelled: bool = False
    is_undone: bool = False
    tokens: list[str] = field(default_factory=list[str])


def simulate_hierarchies(seed: int, *, bugs: Iterable[Bug] = (), mix: Mix = MIX) -> Report:
    """Run the scenario of a seed. The same seed gives the same trace."""
    scenario = _Scenario(seed, frozenset(bugs), mix)
    simulation = scenario.simulation
    problem = ""
    cancelled = _cancelled.set(scenario.cancelled)
    try:
        simulation.run(scenario.run())
    except Exception as error:  # noqa: BLE001 - whatever the error is, the report must have the seed and its trace
        problem = f"{type(error).__name__}: {error}"
    finally:
        _cancelled.reset(cancelled)
    loop = simulation.loop
    return Report(
        seed=seed, problem=problem, trace=simulation.trace, virtual_s=loop.now_us / 1_000_000, turns=loop.turns
    )


class _Scenario:
    def __init__(self, seed: int, bugs: frozenset[Bug], mix: Mix) -> None:
        self.mix = mix
        self.lot = lot = Random(f"{seed}/hierarchies")
        self.simulation = Simulation(
            seed,
            weather=mix.weather(lot),
            bugs=bugs,
            limits=Limits(live_runs_max=lot.choice(mix.live_runs_max)),
        )
        self.roots: dict[str, _Root] = {}
        self.cancelled = _Cancelled()
        self.tokens = [f"simulate.{number}" for number in range(lot.randint(*mix.tokens))]
        self.has_person = False

    async def run(self) -> None:
        simulation, lot = self.simulation, self.lot
        for index in range(lot.randint(*self.mix.engines)):
            names = list(_LEVELS) if index == 0 else lot.sample(list(_LEVELS), lot.randint(1, 4))
            if index == 0 and lot.random() < 0.5:
                names = names[:3]
                simulation.member("z", [OPERATIONS["shelf"], OPERATIONS["bank"]])
            called = [_called] if index == 0 or lot.random() < 0.5 else []
            simulation.member("abcdefgh"[index], [*(OPERATIONS[name] for name in names), *called])
        await asyncio.gather(*[self._tasked(member.open()) for member in simulation.members.values()])
        tasks = [self._tasked(self._hierarchy(f"m{index}")) for index in range(lot.randint(*self.mix.runs))]
        tasks += [self._tasked(self._cancel_token(token)) for token in self.tokens]
        tasks += [self._tasked(self._pause()) for _ in range(lot.randint(*self.mix.pauses))]
        tasks += [self._tasked(self._kill()) for _ in range(lot.randint(*self.mix.kills))]
        tasks.append(self._tasked(self._latecomer()))
        await asyncio.sleep(self.mix.within_s)
        simulation.note("the faults stop")
        simulation.network.weather = FINE
        await self._rest(tasks)
        await self._announce()
        for member in simulation.members.values():
            member.kill()
        await asyncio.sleep(5)  # Wait until the remaining faults have ended.
        if simulation.errors:
            raise InvariantViolated("\n".join(f"an engine logged: {text}" for text in simulation.errors))
        await self._check(simulation.database.memory)

    @staticmethod
    def _tasked(coroutine: Any) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(coroutine)

    async def _rest(self, tasks: list[asyncio.Task[Any]]) -> None:
        memory = self.simulation.database.memory
        until = self.simulation.loop.time() + _REST_S
        while memory.active or memory.mail or not all(task.done() for task in tasks):
            if self.simulation.loop.time() > until:
                runs = [memory.runs[run_id].run for run_id in sorted(memory.active)]
                names = self.simulation.database.processes
                lines = [
                    f"{run.id} {run.workflow} {run.status} {names.get(run.owner or '')} {run.hold}" for run in runs
                ]
                lines += [f"mail for {mail.run_id}: {mail.op[:200]}" for mail in memory.mail.values()]
                raise Stuck("\n".join(["these are stuck:", *lines, *self.simulation.errors]))
            if self.has_person:
                await self._act()
            await asyncio.sleep(1)
        for task in tasks:
            task.result()

    async def _announce(self) -> None:
        """Wait until all emitters are notified of the handlers. A request that was sent during faults may take long."""
        store = MemoryStore(self.simulation.database.memory)
        await store.open()
        registry = HandlerRegistry(store, _refuse, new_id)
        for _ in range(_ANNOUNCED_WITHIN_S):
            await asyncio.sleep(1)
            await registry.load(again=True)
            if not registry.unannounced:
                return

    # Requests of callers.

    def _message(self) -> dict[str, Any]:
        lot, names = self.lot, list(_LEVELS)
        return {
            "emits": lot.choice((0, 1, 1, 2)),
            "takes_s": lot.choice((0, 0, 0.01, 1.0)),
            "sleeps": {name: lot.choice((0.5, 5, 20)) for name in names if lot.random() < 0.15},
            "deadlines": {name: lot.choice((1, 5, 15)) for name in names if lot.random() < 0.05},
            "forgiving": [name for name in names if lot.random() < 0.2],
            "fails": lot.choice([*names, None, None, None]),
            "tokens": {name: [token] for token in self.tokens for name in names if lot.random() < 0.15},
            "calls": {
                name: lot.random() < 0.2 for name in (*names, *_LATE) if lot.random() < 0.15
            },  # whether the operation fails
        }

    async def _hierarchy(self, message_id: str) -> None:
        lot = self.lot
        root = self.roots[message_id] = _Root(self._message())
        root.tokens = [token for token in self.tokens if lot.random() < 0.3]
        tokens = [CancellationToken(token) for token in root.tokens]
        await asyncio.sleep(lot.random() * self.mix.within_s / 2)
        handle = await self._insist(lambda engine: engine.emit(_TOPICS[0], root.message, id=message_id, tokens=tokens))
        if lot.random() < 0.25:
            root.is_cancelled = True
            await asyncio.sleep(lot.random() * lot.choice((0.1, 5, 20)))
            target = lot.choice([handle.id, *handle.run_ids])
            if await self._insist(lambda engine: engine.handle(target).cancel()):
                self.cancelled.ids.add(target)
        elif lot.random() < 0.25:
            root.is_undone = True
            await asyncio.sleep(lot.random() * 30)
            target = lot.choice([handle.id, *handle.run_ids])
            await self._insist(lambda engine: engine.handle(target).roll_back())

    async def _cancel_token(self, name: str) -> None:
        """Cancel a token at some time, perhaps while a message is emitted with it. Some tokens are never cancelled."""
        lot = self.lot
        if lot.random() < 0.2:
            return
        await asyncio.sleep(lot.random() * self.mix.within_s / 2)
        await self._insist(lambda engine: engine.topics.cancel_token(CancellationToken(name)))
        self.cancelled.tokens.add(name)
        self.simulation.note(f"token {name} is cancelled")

    async def _insist(self, request: Callable[[Engine], Awaitable[T]]) -> T:
        while True:
            able = [member for member in self.simulation.members.values() if member.is_open]
            if able:
                with suppress(EngineStopped, StoreError, RunOwnedElsewhere):
                    return await self.lot.choice(able).call(request)
            await asyncio.sleep(0.1 + self.lot.random())

    # Handlers that register late.

    async def _latecomer(self) -> None:
        """Add a late service, or a person, or nothing."""
        lot = self.lot
        await asyncio.sleep(lot.random() * self.mix.within_s)
        name = lot.choice([*_LATE, _PERSON, ""])
        if name in _LATE:
            await self.simulation.member("y", [OPERATIONS[name]]).open()
        elif name:
            await self._person(lot.choice(_TOPICS[1:]))

    async def _person(self, topic: Topic[Any]) -> None:
        """A handler without an engine. It registers, handles its messages, and may be released."""
        lot, self.has_person = self.lot, True
        await self._insist(lambda engine: engine.topics.register(topic, _PERSON))
        for _ in range(lot.randint(0, 5)):
            await asyncio.sleep(lot.random() * 3)
            await self._act()
        if lot.random() < 0.5:
            await self._insist(lambda engine: engine.topics.retire(topic, _PERSON, release=True))

    async def _act(self) -> None:
        """Complete the runs of the person. Undo the runs that must be undone."""
        found = await self._insist(lambda engine: engine.runs.list(workflow=_PERSON))
        for run in found.runs:
            # The emitter has given up in the meantime, or a request that seemed lost has arrived.
            with suppress(Misuse):
                await self._insist(partial(_answer, run_id=run.id, status=run.status))

    # Faults.

    async def _pause(self) -> None:
        lot = self.lot
        await asyncio.sleep(lot.random() * self.mix.within_s)
        member = self._member()
        if member.is_open and not member.is_paused:
            life = member.lives
            member.pause()
            await asyncio.sleep(lot.uniform(*lot.choice(self.mix.pauses_s)))
            if member.lives == life and member.is_open:
                member.wake()

    async def _kill(self) -> None:
        lot = self.lot
        await asyncio.sleep(lot.random() * self.mix.within_s)
        member = self._member()
        if member.is_open:
            member.kill()
            await asyncio.sleep(lot.random() * lot.choice((0.1, 15)))
            await member.open()

    def _member(self) -> Member:
        return self.lot.choice(list(self.simulation.members.values()))

    # Checks of the result.

    async def _check(self, database: MemoryDatabase) -> None:
        store = MemoryStore(database)
        await store.open()
        now = self.simulation.clock.now()
        await assert_readiness_agrees(store, OPERATIONS.values(), now=now)
        await check_store(store, now=now)
        registry = HandlerRegistry(store, _refuse, new_id)
        await registry.load()
        wrong = [f"not all know of {name} on {topic}" for topic, name, _ in sorted(registry.unannounced)]
        wrong += self.cancelled.begun
        for message_id, root in self.roots.items():
            emitted = await store.emitted(message_id)
            if emitted is None:
                wrong.append(f"message {message_id} was never emitted")
                continue
            scopes = RowCodec(PlainCodec()).read(await store.hierarchy(emitted.scope))
            hierarchy = scopes.hierarchy()
            rows = {run.lineage: hierarchy.own(run.lineage) for run in scopes.runs.values() if not run.is_call}
            wrong += [f"{message_id}: {problem}" for problem in (*_problems(rows, root), *_problems_of_calls(scopes))]
        if wrong:
            raise InvariantViolated("\n".join(wrong))


async def _answer(engine: Engine, run_id: str, status: str) -> None:
    if status == Status.CREATED:
        await engine.topics.complete(run_id)
    elif status == Status.ROLLING_BACK:
        await engine.topics.complete_rollback(run_id)


def _problems(rows: dict[tuple[str, ...], Any], root: _Root) -> Iterator[str]:
    states = {lineage: state_of(own) for lineage, own in rows.items()}
    for lineage, state in states.items():
        above = states.get(lineage[:-1], State.COMMITTED)
        if state not in (State.COMMITTED, State.ROLLED_BACK, State.DISMISSED):
            yield f"{lineage} is {state}"
        if state is State.COMMITTED and above is not State.COMMITTED:
            yield f"{lineage} is committed, and its emitter {above}"
        yield from _problems_of_steps(lineage, rows[lineage], state)
    asked = root.is_cancelled or root.is_undone or root.tokens or root.message["tokens"]
    is_plain = not asked and not root.message["deadlines"] and not any(root.message["calls"].values())
    tops = {state for lineage, state in states.items() if len(lineage) == 2}
    if is_plain and root.message["fails"] is None and tops != {State.COMMITTED}:
        yield f"nothing fails, and it is {tops}"
    if root.message["fails"] == "order" and tops != {State.ROLLED_BACK}:
        yield f"its root fails, and is {tops}"


def _problems_of_steps(lineage: tuple[str, ...], own: Iterable[MessageEvent], state: State) -> Iterator[str]:
    """Check that each execution of a step is undone at most once, and in reverse order."""
    steps = [row for row in own if row.type is EventType.SUSPENDED]
    done = [row.step or "" for row in steps if not (row.step or "").startswith("Rollback of")]
    calls = [row for row in steps if row.child_failure_handler_iteration is not None]
    undone = [row.step or "" for row in steps if (row.step or "").endswith(",]")]
    expected = [f"Rollback of {step}[0,]" for step in reversed(done)] if state is State.ROLLED_BACK else []
    if not calls and undone != expected:
        yield f"{lineage} did {done}, and undid {undone}"


def _problems_of_calls(scopes: StoredScopes) -> Iterator[str]:
    """Check that the called runs of a committed run have ended, and that the called runs of an undone run are
    undone.
    """
    for run in scopes.runs.values():
        if run.is_call:
            caller, status = scopes.statuses[run.lineage[-2]], scopes.statuses[run.id]
            if caller == Status.ROLLED_BACK and status == Status.SUCCEEDED:
                yield f"{run.lineage} has succeeded, and its caller is {caller}"


async def _refuse(op: Op) -> NoReturn:
    raise EngineBug(f"nothing is written here, but {op} was asked for")
