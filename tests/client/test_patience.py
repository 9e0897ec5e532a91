"""A store that is away: every call asks again for 30 s, and then says so. All calls, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import pytest

from perdure import Client, Engine, Limits, NamedEvent, NewArtifact, RunHandle, RunSelection, receive, workflow
from perdure.cooperation import CancellationToken, Operation, RootHandle, Scope, Topic
from perdure.engine import AnyClient
from perdure.errors import StoreBusy, StoreMisconfigured, StoreUnavailable
from perdure.kernel.batch import Batch, Committed
from perdure.ports import Store
from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.testing.proxy import StoreProxy
from perdure.testing.simulate.loop import SimulatedClock, SimulatedLoop
from tests.api.surface import facets, methods

T = TypeVar("T")

PATIENCE_S = Limits().patience_s
TOPIC = Topic("orders", str)
LIFE = {"open", "shutdown", "until_stopped"}
ASKS_NOTHING = {"handle", "engines.stats"}


@workflow
async def waits() -> None:
    await receive("go")


handles = Operation("handles", TOPIC)


@handles.step
async def hears(scope: Scope, message: str) -> None: ...


CALLS: dict[str, Callable[[Any], Any]] = {
    "emit": lambda c: c.emit(TOPIC, "o-1"),
    "prepare_start": lambda c: c.prepare_start("elsewhere"),
    "recover": lambda c: c.recover(),
    "run": lambda c: c.run(waits()),
    "send": lambda c: c.send(NamedEvent("go", None), to="r"),
    "send_many": lambda c: c.send_many([NamedEvent("go", None)]),
    "start": lambda c: c.start(waits()),
    "start_many": lambda c: c.start_many([waits(), waits()]),
    "runs.cancel": lambda c: c.runs.cancel(RunSelection()),
    "runs.count": lambda c: c.runs.count(),
    "runs.get": lambda c: c.runs.get("r"),
    "runs.get_many": lambda c: c.runs.get_many(["r"]),
    "runs.list": lambda c: c.runs.list(),
    "runs.pause": lambda c: c.runs.pause(RunSelection()),
    "runs.resume": lambda c: c.runs.resume(RunSelection()),
    "runs.retry": lambda c: c.runs.retry(RunSelection()),
    "runs.tally": lambda c: c.runs.tally(),
    "runs.timers": lambda c: c.runs.timers(["r"]),
    "tasks.answer": lambda c: c.tasks.answer("t", 1, artifacts=[NewArtifact(name="a", value="x")]),
    "tasks.claim": lambda c: c.tasks.claim("q", "w"),
    "tasks.fail": lambda c: c.tasks.fail("t", "w", "no", retry=True),
    "tasks.get": lambda c: c.tasks.get("t"),
    "tasks.heartbeat": lambda c: c.tasks.heartbeat("t", "w"),
    "tasks.list": lambda c: c.tasks.list(),
    "tasks.release": lambda c: c.tasks.release("t", "w"),
    "artifacts.get": lambda c: c.artifacts.get("a"),
    "artifacts.list": lambda c: c.artifacts.list(),
    "artifacts.open": lambda c: c.artifacts.open("a"),
    "artifacts.read": lambda c: c.artifacts.read("a"),
    "records.get": lambda c: c.records.get("k", "n"),
    "records.list": lambda c: c.records.list("k"),
    "records.put": lambda c: c.records.put("k", "n", 1),
    "events.pending": lambda c: c.events.pending(),
    "events.purge": lambda c: c.events.purge(),
    "dead_letters.get": lambda c: c.dead_letters.get("d"),
    "dead_letters.list": lambda c: c.dead_letters.list(),
    "dead_letters.remove": lambda c: c.dead_letters.remove("d"),
    "dead_letters.replay": lambda c: c.dead_letters.replay("d"),
    "topics.cancel_token": lambda c: c.topics.cancel_token(CancellationToken("t")),
    "topics.complete": lambda c: c.topics.complete("s"),
    "topics.complete_rollback": lambda c: c.topics.complete_rollback("s"),
    "topics.fail": lambda c: c.topics.fail("s", "no"),
    "topics.handlers": lambda c: c.topics.handlers(),
    "topics.message": lambda c: c.topics.message("m"),
    "topics.register": lambda c: c.topics.register(TOPIC, "person"),
    "topics.retire": lambda c: c.topics.retire(TOPIC, "person"),
    "topics.root": lambda c: c.topics.root("s"),
    "engines.list": lambda c: c.engines.list(),
    "engines.mark_dead": lambda c: c.engines.mark_dead(),
    "engines.overdue": lambda c: c.engines.overdue(),
    "audit.export": lambda c: c.audit.export(),
    "handle.audit": lambda c: c.handle("r").audit(),
    "handle.cancel": lambda c: c.handle("r").cancel(),
    "handle.definition": lambda c: c.handle("r").definition(),
    "handle.drawing": lambda c: c.handle("r").drawing(),
    "handle.graph_events": lambda c: c.handle("r").graph_events(),
    "handle.hierarchy": lambda c: c.handle("s").hierarchy(),
    "handle.history": lambda c: c.handle("r").history(),
    "handle.pause": lambda c: c.handle("r").pause(),
    "handle.published": lambda c: c.handle("r").published(),
    "handle.result": lambda c: c.handle("unknown").result(),
    "handle.resume": lambda c: c.handle("r").resume(),
    "handle.retry": lambda c: c.handle("r").retry(),
    "handle.roll_back": lambda c: c.handle("s").roll_back(),
    "handle.send": lambda c: c.handle("r").send(NamedEvent("go", None)),
    "handle.status": lambda c: c.handle("r").status(),
    "handle.stream": lambda c: c.handle("r").stream("log"),
    "handle.streams": lambda c: c.handle("r").streams(),
    "handle.tokens": lambda c: c.handle("r").tokens(),
    "handle.tree": lambda c: c.handle("r").tree(),
    "handle.update": lambda c: c.handle("r").update(tags={"a": "b"}),
    "handle.view": lambda c: c.handle("r").view(),
    "handle.waits": lambda c: c.handle("r").waits(),
    "root.cancel": lambda c: root(c).cancel(),
    "root.finished": lambda c: root(c).finished(),
    "root.hierarchy": lambda c: root(c).hierarchy(),
    "root.returned": lambda c: root(c).returned("n", str),
    "root.roll_back": lambda c: root(c).roll_back(),
    "root.tree": lambda c: root(c).tree(),
}


def root(client: AnyClient) -> RootHandle:
    return RootHandle(client.session, "s", "m", ("x",))


class AwayStore(StoreProxy):
    """Answers nothing while it is `away`: a request takes a while, as a lock or a connection does, and then fails."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.away: Callable[[], Exception] | None = None
        self.request_s = 5.0

    async def _through(self, request: Coroutine[Any, Any, T]) -> T:
        if (error := self.away) is None:
            return await request
        request.close()
        await asyncio.sleep(self.request_s)
        raise error()


class FullStore(AwayStore):
    """Reads, and does not write while it is `away`."""

    async def _through(self, request: Coroutine[Any, Any, T]) -> T:
        return await request

    async def commit(self, batch: Batch) -> Committed:
        return await AwayStore._through(self, self.inner.commit(batch))


def in_virtual_time(scenario: Callable[[], Coroutine[Any, Any, T]]) -> T:
    loop = SimulatedLoop(0)
    try:
        result: T = loop.run_until_complete(scenario())
    finally:
        loop.run_out()
        loop.close()
    return result


def opened(kind: type[AnyClient], store: Store, **options: Any) -> AnyClient:
    loop: Any = asyncio.get_running_loop()
    options = {"clock": SimulatedClock(loop), "poll_s": None, **options}
    if kind is Engine:
        options["workflows"] = [waits, handles]
    return kind(store, **options)


async def ended(call: Any) -> BaseException:
    """What a call ends with, or the first item of a stream."""
    try:
        await (anext(call) if isinstance(call, AsyncIterator) else call)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at
        return error
    raise AssertionError("it has ended well")


def public() -> set[str]:
    """Verbs, methods of facets and of handles. The credentials are the server's, which has tests of its own."""
    owners = {"handle": RunHandle, "root": RootHandle, **facets()}
    found = {f"{owner}.{name}" for owner, kind in owners.items() if owner != "credentials" for name in methods(kind)}
    return found | set(methods(Engine)) | set(methods(Client))


def test_every_public_call_is_among_those_that_are_tried() -> None:
    assert public() == LIFE | ASKS_NOTHING | set(CALLS)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", [Engine, Client])
def test_a_call_asks_again_for_as_long_as_it_is_patient_and_then_says_that_the_store_is_away(
    kind: type[AnyClient], name: str
) -> None:
    if kind is Client and name == "recover":
        return

    async def scenario() -> tuple[BaseException, float]:
        loop = asyncio.get_running_loop()
        store = AwayStore(MemoryStore(MemoryDatabase()))
        async with opened(kind, store) as client:
            if kind is Engine:
                await client.start(waits(), id="r")
            store.away = lambda: StoreBusy("the way to the database is broken")
            began = loop.time()
            error = await ended(CALLS[name](client))
            waited = loop.time() - began
            store.away = None
        return error, waited

    error, waited = in_virtual_time(scenario)
    assert isinstance(error, StoreUnavailable), repr(error)
    assert "the way to the database is broken" in str(error)
    assert "What to do" in str(error)
    assert PATIENCE_S <= waited <= PATIENCE_S + 1  # Callers of the coordinator are looked at once a second.


@pytest.mark.parametrize("name", CALLS)
def test_a_call_does_not_notice_that_the_store_was_away_for_a_moment(name: str) -> None:
    async def scenario(away_s: float) -> tuple[str, float]:
        loop = asyncio.get_running_loop()
        store = AwayStore(MemoryStore(MemoryDatabase()))
        async with opened(Engine, store) as client:
            await client.start(waits(), id="r")
            store.away = lambda: StoreBusy("not now")
            loop.call_later(away_s, lambda: setattr(store, "away", None))
            if not away_s:
                store.away = None
            done = asyncio.ensure_future(_shown(CALLS[name](client)))
            await asyncio.wait([done], timeout=PATIENCE_S)
            done.cancel()
            return (done.result() if done.done() else "waits"), loop.time()

    undisturbed, _ = in_virtual_time(lambda: scenario(0))
    disturbed, _ = in_virtual_time(lambda: scenario(12))
    assert disturbed == undisturbed


async def _shown(call: Any) -> str:
    """What a call comes to, without what is different each time."""
    try:
        found = await (anext(call) if isinstance(call, AsyncIterator) else call)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at
        return type(error).__name__
    return type(found).__name__


@pytest.mark.parametrize("request_s", [0.0, 100.0])
@pytest.mark.parametrize("name", ["runs.get", "start", "send", "emit", "tasks.claim", "recover"])
def test_the_time_counts_that_passes_within_a_request(name: str, request_s: float) -> None:
    async def scenario() -> float:
        loop = asyncio.get_running_loop()
        store = AwayStore(MemoryStore(MemoryDatabase()))
        store.request_s = request_s
        async with opened(Engine, store) as client:
            store.away = lambda: StoreBusy("not now")
            began = loop.time()
            assert isinstance(await ended(CALLS[name](client)), StoreUnavailable)
            waited = loop.time() - began
            store.away = None
        return waited

    waited = in_virtual_time(scenario)
    if name == "recover" and request_s:  # It must not be cut short: what it claims would be nobody's.
        assert waited == request_s
    else:
        assert PATIENCE_S <= waited <= PATIENCE_S + 1


@pytest.mark.parametrize("kind", [AwayStore, FullStore])
def test_each_caller_has_its_own_time_and_what_it_gave_up_is_not_written(kind: type[AwayStore]) -> None:
    async def scenario() -> list[Any]:
        loop = asyncio.get_running_loop()
        store = kind(MemoryStore(MemoryDatabase()))
        store.request_s = 0.5
        began = loop.time()

        async def timed(client: AnyClient, id: str) -> float:
            assert isinstance(await ended(client.start(waits(), id=id)), StoreUnavailable)
            return round(loop.time() - began)

        async with opened(Engine, store, limits=Limits(inbox_max=2)) as client:
            store.away = lambda: StoreBusy("not now")
            calls = []
            for number in range(5):  # Only two of them find room in the queue.
                calls.append(asyncio.ensure_future(timed(client, f"r-{number}")))
                await asyncio.sleep(5)
            told = await asyncio.gather(*calls)
            store.away = None
            await client.start(waits(), id="later")
            runs = (await client.runs.list()).runs
        return [*told, [run.id for run in runs]]

    *told, runs = in_virtual_time(scenario)
    assert told == [30, 35, 40, 45, 50]
    assert runs == ["later"]


def test_a_store_that_is_unfit_is_asked_again_too() -> None:
    async def scenario() -> tuple[str, str]:
        store = AwayStore(MemoryStore(MemoryDatabase()))
        store.request_s = 0.0
        async with opened(Engine, store) as client:
            store.away = lambda: StoreMisconfigured("there is no table runs; restore it")
            read, write = await asyncio.gather(ended(client.runs.get("r")), ended(client.start(waits())))
            store.away = None
            assert (await client.start(waits(), id="later")).id == "later"
        assert isinstance(read, StoreUnavailable)
        assert isinstance(write, StoreUnavailable)
        return str(read), str(write)

    for told in in_virtual_time(scenario):
        assert "there is no table runs; restore it" in told


class LeavingStore(AwayStore):
    """Answers a few more requests, and is away then."""

    answers_left: int | None = None

    async def _through(self, request: Coroutine[Any, Any, T]) -> T:
        if self.answers_left is not None:
            if not self.answers_left:
                self.away = lambda: StoreBusy("not now")
            self.answers_left = max(self.answers_left - 1, 0)
        return await super()._through(request)


@pytest.mark.parametrize("request_s", [0.5, 100.0])
@pytest.mark.parametrize("kind", [Engine, Client])
def test_who_cancels_a_token_is_told_in_time_wherever_the_store_goes_away(
    kind: type[AnyClient], request_s: float
) -> None:
    async def scenario(answers: int) -> bool:
        loop = asyncio.get_running_loop()
        store = LeavingStore(MemoryStore(MemoryDatabase()))
        store.request_s = request_s
        async with opened(kind, store) as client:
            await client.topics.register(TOPIC, "person")
            emitted = await client.emit(TOPIC, "o-1", tokens=[CancellationToken("t")])
            runs = await client.runs.get_many(emitted.run_ids)
            (person,) = [run.id for run in runs.values() if run.workflow == "person"]
            store.answers_left, began = answers, loop.time()
            error: Exception | None = None
            try:
                await client.topics.cancel_token(CancellationToken("t"))
            except StoreUnavailable as unavailable:
                error = unavailable
            waited = loop.time() - began
            store.away = store.answers_left = None
            await asyncio.sleep(request_s)
            assert error is None or PATIENCE_S <= waited <= PATIENCE_S + 2, (answers, waited)
            await client.topics.cancel_token(CancellationToken("t"))  # once more, whatever has become of it
            assert (await client.runs.get_many([person]))[person].status == "rolled_back", answers
        return error is None

    done = [in_virtual_time(partial(scenario, answers)) for answers in range(30)]
    assert not any(done[:6])
    assert done[-1]


class FlappingStore(AwayStore):
    """Fails for a while, answers one request, and fails again."""

    failing_s = 25.0
    answered_at: float | None = None  # None while it answers everything

    async def _through(self, request: Coroutine[Any, Any, T]) -> T:
        now = asyncio.get_running_loop().time()
        if self.answered_at is not None:
            if now - self.answered_at < self.failing_s:
                request.close()
                await asyncio.sleep(1)
                raise StoreBusy("not now")
            self.answered_at = now
        return await request


# These wait for more than the store, or give one page after the other, each of which is a request of its own.
LASTING = {"run", "handle.result", "root.finished", "handle.stream", "audit.export"}


@pytest.mark.parametrize("name", sorted(CALLS.keys() - LASTING))
@pytest.mark.parametrize("kind", [Engine, Client])
def test_all_requests_of_a_call_share_its_patience(kind: type[AnyClient], name: str) -> None:
    if kind is Client and name == "recover":
        return

    async def scenario() -> float:
        loop = asyncio.get_running_loop()
        store = FlappingStore(MemoryStore(MemoryDatabase()))
        async with opened(kind, store) as client:
            if kind is Engine:
                await client.start(waits(), id="r")
            store.answered_at = began = loop.time()
            await _shown(CALLS[name](client))
            waited = loop.time() - began
            store.answered_at = None
        return waited

    assert in_virtual_time(scenario) <= PATIENCE_S + 1  # Callers of the coordinator are looked at once a second.


def test_a_call_that_was_answered_leaves_the_next_one_its_whole_patience() -> None:
    async def scenario() -> list[float]:
        loop = asyncio.get_running_loop()
        store = FlappingStore(MemoryStore(MemoryDatabase()))
        async with opened(Client, store) as client:  # Nothing of its own asks the store.
            times = [loop.time()]
            store.answered_at = loop.time()
            for _ in range(3):
                assert await client.records.list("k") == []
                times.append(loop.time())
            store.answered_at = None
        return [after - before for before, after in pairwise(times)]

    assert all(25 <= waited < PATIENCE_S for waited in in_virtual_time(scenario))


def test_whoever_waits_for_a_run_goes_on_waiting_through_many_short_outages() -> None:
    async def scenario() -> Any:
        database = MemoryDatabase()
        store = AwayStore(MemoryStore(database))
        store.request_s = 1.0
        async with (
            opened(Engine, MemoryStore(database), poll_s=0.5) as engine,
            opened(Client, store, poll_s=0.5) as client,
        ):
            await engine.start(waits(), id="r")
            result = asyncio.ensure_future(client.handle("r").result())
            for _ in range(10):
                store.away = lambda: StoreBusy("not now")
                await asyncio.sleep(10)
                store.away = None
                await asyncio.sleep(10)
            await engine.send(NamedEvent("go", None), to="r")
            return await result

    assert in_virtual_time(scenario) is None
