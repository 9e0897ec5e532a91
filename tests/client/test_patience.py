"""A store that is away: every call asks again for 30 s, and then says so. All calls, in virtual time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import pytest

from perdure import Client, Engine, Limits, NamedEvent, NewArtifact, receive, workflow
from perdure.api.root_handle import RootHandle
from perdure.cooperation import CancellationToken, Operation, Scope, Topic
from perdure.engine import AnyClient
from perdure.errors import StoreBusy, StoreMisconfigured, StoreUnavailable
from perdure.ports import Store
from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.testing.proxy import StoreProxy
from perdure.testing.simulate.loop import SimulatedClock, SimulatedLoop

T = TypeVar("T")

PATIENCE_S = Limits().patience_s
TOPIC = Topic("orders", str)
LIFE = {"open", "shutdown", "kill", "until_stopped"}
ASKS_NOTHING = {"handle", "read_result", "insert_start"}  # insert_start asks the caller's own connection
SAYS_WHAT_IT_HAS = {"with_causes"}  # shows a failure as far as it can be read


@workflow
async def waits() -> None:
    await receive("go")


handles = Operation("handles", TOPIC)


@handles.step
async def hears(scope: Scope, message: str) -> None: ...


CALLS: dict[str, Callable[[Any], Any]] = {
    "answer": lambda c: c.answer("t", 1, artifacts=[NewArtifact(name="a", value="x")]),
    "artifact": lambda c: c.artifact("a"),
    "artifacts": lambda c: c.artifacts(),
    "audit": lambda c: c.audit("r"),
    "beat_task": lambda c: c.beat_task("t", "w"),
    "cancel": lambda c: c.cancel("r"),
    "cancel_scope": lambda c: c.cancel_scope("s"),
    "cancel_token": lambda c: c.cancel_token(CancellationToken("t")),
    "claim_tasks": lambda c: c.claim_tasks("q", "w"),
    "complete_handler": lambda c: c.complete_handler("s"),
    "complete_rollback": lambda c: c.complete_rollback("s"),
    "dead_letter": lambda c: c.dead_letter("d"),
    "dead_letters": lambda c: c.dead_letters(),
    "definition": lambda c: c.definition("r"),
    "drawing": lambda c: c.drawing("r"),
    "emit": lambda c: c.emit(TOPIC, "o-1"),
    "engines": lambda c: c.engines(),
    "events": lambda c: c.events(),
    "export_audit": lambda c: c.export_audit(),
    "fail_handler": lambda c: c.fail_handler("s", "no"),
    "fail_task": lambda c: c.fail_task("t", "w", "no", retry=True),
    "get": lambda c: c.get("r"),
    "get_many": lambda c: c.get_many(["r"]),
    "graph_events": lambda c: c.graph_events("r"),
    "handlers": lambda c: c.handlers(),
    "hierarchy": lambda c: c.hierarchy("s"),
    "history": lambda c: c.history("r"),
    "hold_back": lambda c: c.hold_back(TOPIC, "m"),
    "mark_dead_engines": lambda c: c.mark_dead_engines(),
    "message": lambda c: c.message("m"),
    "open_artifact": lambda c: c.open_artifact("a"),
    "outcome": lambda c: c.outcome("unknown"),
    "overdue": lambda c: c.overdue(),
    "pause": lambda c: c.pause("r"),
    "prepare_start": lambda c: c.prepare_start("elsewhere"),
    "published": lambda c: c.published("r"),
    "purge": lambda c: c.purge(),
    "put_record": lambda c: c.put_record("k", "n", 1),
    "read_artifact": lambda c: c.read_artifact("a"),
    "record": lambda c: c.record("k", "n"),
    "records": lambda c: c.records("k"),
    "recover": lambda c: c.recover(),
    "register_handler": lambda c: c.register_handler(TOPIC, "person"),
    "release_task": lambda c: c.release_task("t", "w"),
    "remove_dead_letter": lambda c: c.remove_dead_letter("d"),
    "replay_dead_letter": lambda c: c.replay_dead_letter("d"),
    "resume": lambda c: c.resume("r"),
    "retire_handler": lambda c: c.retire_handler(TOPIC, "person"),
    "retry": lambda c: c.retry("r"),
    "roll_back": lambda c: c.roll_back("s"),
    "root_scopes": lambda c: c.root_scopes("s"),
    "run": lambda c: c.run(waits()),
    "runs": lambda c: c.runs(),
    "scopes": lambda c: c.scopes("s"),
    "send": lambda c: c.send(NamedEvent("go", None), to="r"),
    "send_many": lambda c: c.send_many([NamedEvent("go", None)]),
    "start": lambda c: c.start(waits()),
    "stream": lambda c: c.stream("r", "log"),
    "streams": lambda c: c.streams("r"),
    "tally": lambda c: c.tally(),
    "task": lambda c: c.task("t"),
    "tasks": lambda c: c.tasks(),
    "timers": lambda c: c.timers(["r"]),
    "tokens": lambda c: c.tokens("r"),
    "tree": lambda c: c.tree("r"),
    "update": lambda c: c.update("r", tags={"a": "b"}),
    "waits": lambda c: c.waits("r"),
    "emit.cancel": lambda c: RootHandle(c, "s", "m", ("x",)).cancel(),
    "emit.finished": lambda c: RootHandle(c, "s", "m", ("x",)).finished(),
    "emit.returned": lambda c: RootHandle(c, "s", "m", ("x",)).returned("n", str),
    "emit.roll_back": lambda c: RootHandle(c, "s", "m", ("x",)).roll_back(),
    "handle.cancel": lambda c: c.handle("r").cancel(),
    "handle.published": lambda c: c.handle("r").published(),
    "handle.result": lambda c: c.handle("unknown").result(),
    "handle.status": lambda c: c.handle("r").status(),
    "handle.stream": lambda c: c.handle("r").stream("log"),
}


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


def public(kind: type[Any]) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}


def test_every_public_call_is_among_those_that_are_tried() -> None:
    assert public(Engine) | public(Client) == LIFE | ASKS_NOTHING | SAYS_WHAT_IT_HAS | {
        name for name in CALLS if "." not in name
    }


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", [Engine, Client])
def test_a_call_asks_again_for_as_long_as_it_is_patient_and_then_says_that_the_store_is_away(
    kind: type[AnyClient], name: str
) -> None:
    if not hasattr(kind, name.partition(".")[0]):
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
@pytest.mark.parametrize("name", ["get", "start", "send", "emit", "claim_tasks", "recover"])
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


def test_each_caller_has_its_own_time_and_what_it_gave_up_is_not_written() -> None:
    async def scenario() -> list[Any]:
        loop = asyncio.get_running_loop()
        store = AwayStore(MemoryStore(MemoryDatabase()))
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
