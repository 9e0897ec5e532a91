"""Nothing waits in silence: what holds a run, strands it, or fails in the store is one line in the log, and a count."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from perdure import Limits, NamedEvent, Retry, Workflow, receive, resource, step, workflow
from perdure.cooperation import Failure, Operation, Scope, Topic
from perdure.errors import RunCancelled, ScopeFailed, StoreBusy, StoreUnavailable
from perdure.kernel.cooperation import ScopeRows
from perdure.ports import Offer, Store, WorkFound
from perdure.testing import Environment, Fault, StoreProxy
from perdure.testing.environment import StoreSource

GO = NamedEvent("go")
ORDERS = Topic("notices.orders", int)
SHIPPING = Topic("notices.shipping", int)


class Gate(asyncio.Event):
    """Steps wait here once they have begun."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()


@step
async def works() -> int:
    gate = resource(Gate)
    gate.begun.set()
    await gate.wait()
    return 1


@step
async def prepares() -> int:
    return 1


def asking(prepare: bool) -> Workflow[[], int]:
    @workflow(name="asks")
    async def asks() -> int:
        if prepare:
            await prepares()
        await receive("go")
        return 1

    return asks


@workflow
async def long() -> int:
    return await works()


def lines(caplog: pytest.LogCaptureFixture, part: str, level: int = logging.WARNING) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno >= level]
    return [line for line in found if part in line]


async def until(caplog: pytest.LogCaptureFixture, part: str) -> None:
    async with asyncio.timeout(20):
        while not lines(caplog, part):
            await asyncio.sleep(0.005)


async def test_a_run_that_does_not_fit_its_code_is_told_once_to_the_log_and_to_whoever_waits(
    source: StoreSource, caplog: pytest.LogCaptureFixture
) -> None:
    before, after = asking(prepare=True), asking(prepare=False)
    async with Environment([before], source, autojump_s=None) as env:
        await env.engine.start(before(), id="r")
        await env.quiet()
        await env.restart([after])
        await env.engine.send(GO)
        await env.quiet()
        waiting = asyncio.ensure_future(env.engine.handle("r").result())
        await until(caplog, "is waited for")
        (held,) = lines(caplog, "' is held (")
        assert "run r of 'asks' is held (blocked): the code does not fit the journal" in held
        assert "step 'prepares'" in held  # the difference
        assert "What to do: start an engine with code that fits" in held
        assert env.engine.engines.stats.holds == {"blocked": 1}
        await env.engine.handle("r").cancel()
        with pytest.raises(RunCancelled):
            await waiting
        (waited,) = lines(caplog, "is waited for")
        assert "run r is waited for and does not go on: it is held (blocked): the code does not fit" in waited
        assert "What to do" in waited


async def test_a_pause_is_no_warning_but_whoever_waits_is_told(
    source: StoreSource, caplog: pytest.LogCaptureFixture
) -> None:
    asks = asking(prepare=False)
    caplog.set_level(logging.INFO, "perdure")
    async with Environment([asks], source, autojump_s=None) as env:
        run = await env.engine.start(asks(), id="r")
        waiting = asyncio.ensure_future(run.result())
        await env.quiet()
        await env.engine.handle("r").pause(reason="until Monday")
        await until(caplog, "is waited for")
        assert lines(caplog, "' is held (") == []
        (held,) = lines(caplog, "' is held (", logging.INFO)
        assert "run r of 'asks' is held (paused): until Monday. What to do: perdure runs resume r" in held
        await env.engine.handle("r").resume()
        await env.engine.send(GO, to="r")
        assert await waiting == 1
        assert len(lines(caplog, "is waited for")) == 1


async def test_poison_is_a_line_in_the_log(source: StoreSource, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    options: dict[str, Any] = {
        "autojump_s": None,
        "limits": Limits(recoveries_max=0),
        "resources": {Gate: lambda: gate},
    }
    async with Environment([long], source, **options) as env:
        await env.engine.start(long(), id="r")
        await gate.begun.wait()
        await env.restart()
        await env.quiet()
        (held,) = lines(caplog, "' is held (")
        assert "run r of 'long' is held (poison): its process died" in held
        assert "perdure runs show r" in held
        assert env.engine.engines.stats.holds == {"poison": 1}


async def test_a_child_that_is_held_names_its_parent(source: StoreSource, caplog: pytest.LogCaptureFixture) -> None:
    before, after = asking(prepare=True), asking(prepare=False)

    @workflow(name="parent")
    async def parent() -> int:
        return await before()

    async with Environment([before, parent], source, autojump_s=None) as env:
        await env.engine.start(parent(), id="p")
        await env.quiet()
        await env.restart([after, parent])
        await env.engine.send(GO)
        await env.quiet()
        (held,) = lines(caplog, ", is held (")
        assert "of 'asks', a child of run p, is held (blocked)" in held


def shop(*names: str) -> Operation[int]:
    """An operation whose steps wait."""
    place = Operation[int]("place", ORDERS)

    async def invoke(scope: Scope, number: int) -> None:
        gate = resource(Gate)
        gate.begun.set()
        await gate.wait()

    for name in names:
        place.step(name=name)(invoke)
    return place


async def test_a_run_of_an_operation_that_does_not_fit_its_code(
    source: StoreSource, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever waits for the hierarchy learns which run is held, and why."""
    gate = Gate()
    gate.set()
    before, after = shop("take", "sleeps", "ship"), shop("other", "ship")

    @before.step(name="asks")
    async def asks(scope: Scope, number: int) -> None:
        scope.sleep(timedelta(hours=1))

    async with Environment([before], source, autojump_s=None, resources={Gate: lambda: gate}) as env:
        root = await env.engine.emit(ORDERS, 1, id="m")
        await env.quiet()
        await env.restart([after])
        await env.advance(timedelta(hours=2))
        await env.quiet()
        waiting = asyncio.ensure_future((await env.engine.emit(ORDERS, 1, id="m")).finished())
        await until(caplog, "is waited for")
        (held,) = [line for line in lines(caplog, "is held (") if "is waited for" not in line]
        (run_id,) = root.run_ids
        assert f"run {run_id} of 'place'" in held
        assert "is held (blocked)" in held
        assert "What to do: start an engine with code that fits" in held
        assert env.engine.engines.stats.holds == {"blocked": 1}
        (waited,) = lines(caplog, "is waited for")
        assert f"run {run_id} is waited for and does not go on: it is held (blocked)" in waited
        assert "What to do" in waited
        waiting.cancel()
        await asyncio.wait({waiting})


# ---------------------------------------------------------------------------------------------------------------------
# Nobody has the code


async def test_whoever_waits_for_a_run_that_nobody_can_take_is_told(
    source: StoreSource, caplog: pytest.LogCaptureFixture
) -> None:
    asks = asking(prepare=False)
    async with Environment([asks], source, autojump_s=None, poll_s=1.0) as env:
        await env.engine.start(asks(), id="r")
        await env.quiet()
        await env.restart([long])
        await env.advance(timedelta(seconds=5))  # Somebody notices that the first engine is gone.
        waiting = asyncio.ensure_future(env.engine.handle("r").result())
        await until(caplog, "is waited for")
        await env.advance(timedelta(seconds=61))
        await env.advance(timedelta(seconds=61))
        await until(caplog, "runs wait for it")
        (waited,) = lines(caplog, "is waited for")
        assert "run r is waited for and does not go on: no engine has workflow 'asks'" in waited
        assert "perdure worker MODULE" in waited
        # Engines say it too, whether somebody waits or not, and once.
        (stranded,) = lines(caplog, "runs wait for it")
        assert "no engine has workflow 'asks', and 1 runs wait for it (r" in stranded
        assert "perdure runs cancel" in stranded
        await env.engine.handle("r").cancel()
        with pytest.raises(RunCancelled):
            await waiting


async def test_whoever_waits_for_a_hierarchy_that_nobody_handles_is_told(
    source: StoreSource, caplog: pytest.LogCaptureFixture
) -> None:
    place = Operation("place", ORDERS)
    other = Operation("other", SHIPPING)

    @place.step
    async def wait(scope: Scope, number: int) -> None:
        gate = resource(Gate)
        gate.begun.set()
        await gate.wait()

    @other.step
    async def ship(scope: Scope, number: int) -> None: ...

    gate = Gate()
    async with Environment([place], source, autojump_s=None, resources={Gate: lambda: gate}) as env:
        root = await env.engine.emit(ORDERS, 1, id="m")
        await gate.begun.wait()
        await env.restart([other])
        await env.advance(timedelta(seconds=5))
        again = await env.engine.emit(ORDERS, 1, id="m")
        assert again.id == root.id
        waiting = asyncio.ensure_future(again.finished())
        await until(caplog, "is waited for")
        (waited,) = lines(caplog, "is waited for")
        assert "no engine has operation 'place' on topic 'notices.orders'" in waited
        gate.set()
        await env.restart([place, other])
        await (await env.engine.emit(ORDERS, 1, id="m")).finished()
        with pytest.raises(Exception):  # noqa: B017, PT011 - its engine was killed
            await waiting


# ---------------------------------------------------------------------------------------------------------------------
# The store fails


async def test_an_outage_is_one_line_however_often_a_batch_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "perdure")
    fault = Fault("busy", 2, times=9)
    gate = Gate()
    gate.set()
    async with Environment([long], fault=fault, resources={Gate: lambda: gate}) as env:
        assert await env.engine.run(long()) == 1
        assert env.engine.engines.stats.resends == fault.struck == 9
        assert env.engine.engines.stats.outages == {"commit": 1}
    (failed,) = lines(caplog, "is sent again")
    assert "What to do: check the database" in failed
    assert lines(caplog, "the store answers again (commit), after 9 failures", logging.INFO)


class Blind(StoreProxy):
    """Cannot be looked around in for a while."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.failures = 0
        self.left = 0
        self.sees = asyncio.Event()

    async def look(self, *, engine_id: str, offers: Sequence[Offer], at: int) -> WorkFound:
        if self.left:
            self.left -= 1
            self.failures += 1
            raise StoreBusy("the way is broken")
        self.sees.set()
        return await super().look(engine_id=engine_id, offers=offers, at=at)


async def test_looking_around_in_vain_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "perdure")
    stores: list[Blind] = []

    def blind(store: Store) -> Store:
        stores.append(Blind(store))
        return stores[-1]

    async with Environment([long], watch=blind, autojump_s=None, poll_s=1.0) as env:
        stores[0].left = 5  # An engine that opens may look too.
        stores[0].sees.clear()
        while not stores[0].sees.is_set():
            await env.advance(timedelta(seconds=1))
        await env.advance(timedelta(seconds=1))
        assert stores[0].failures == 5
        assert env.engine.engines.stats.outages == {"look": 1}
        assert len(lines(caplog, "looking for what others left is tried again")) == 1
        assert len(lines(caplog, "answers again (look), after 5 failures", logging.INFO)) == 1


class Trials:
    def __init__(self) -> None:
        self.failures = 0
        self.numbers: list[int] = []


@pytest.mark.parametrize("error", [StoreBusy("busy"), StoreUnavailable("away")])
async def test_a_step_that_the_store_failed_runs_again_and_that_is_no_attempt(
    source: StoreSource, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """It had asked its engine for something."""
    trials = Trials()

    @step(name="asks_engine", retry=Retry(attempts=2, initial=timedelta(milliseconds=1)))
    async def asks_engine() -> int:
        trials.numbers.append(1)
        if len(trials.numbers) <= 5:
            raise error
        return 1

    @workflow(name="asking")
    async def asking_engine() -> int:
        return await asks_engine()

    async with Environment([asking_engine], source) as env:
        assert await env.engine.run(asking_engine(), id="r") == 1
        (entry,) = (await env.engine.handle("r").history()).journal
        assert entry.attempts == 1
        await env.check()
    assert len(trials.numbers) == 6
    (line,) = lines(caplog, "the store failed, so the step runs again")
    assert "step 'asks_engine' of run 'r'" in line


@pytest.mark.parametrize("error", [StoreBusy("busy"), StoreUnavailable("away")])
@pytest.mark.parametrize("where", ["step", "rollback", "answer"])
async def test_code_of_an_operation_that_the_store_failed_runs_again_and_that_is_no_attempt(
    source: StoreSource, caplog: pytest.LogCaptureFixture, error: Exception, where: str
) -> None:
    """It fails twice, and may fail once. Nothing is rolled back for that, and no rollback fails."""
    failing, done = Counter[str]({where: 2}), list[str]()
    place, ship = Operation[int]("place", ORDERS), Operation[int]("ship", SHIPPING)

    def works(what: str) -> None:
        if failing[what]:
            failing[what] -= 1
            raise error
        done.append(what)

    @place.step(retry=Retry.never())
    async def takes(scope: Scope, number: int) -> None:
        works("step")
        await scope.emit(SHIPPING, 1)

    @takes.rollback(retry=Retry.never())
    async def undo(scope: Scope, number: int, cause: Failure) -> None:
        works("rollback")

    @takes.on_child_failure(retry=Retry.never())
    async def answer(scope: Scope, number: int, failure: Failure, attempt: int) -> None:
        works("answer")
        raise ValueError("no other way")

    @ship.step
    async def ships(scope: Scope, number: int) -> None:
        raise ValueError("no ship")

    async with Environment([place, ship], source) as env:
        root = await env.engine.emit(ORDERS, 1)
        with pytest.raises(ScopeFailed, match="no other way"):
            await root.finished()
        assert await env.engine.handle(root.run_ids[0]).status() == "rolled_back"
        await env.check()
    assert done == ["step", "answer", "rollback"]
    found = lines(caplog, "failed and is tried again")
    assert len(found) == 2
    assert all("What to do: check the database (perdure doctor)" in line for line in found)


class Away(StoreProxy):
    """Rows of operations cannot be read for a while."""

    left = 0

    async def scopes(self, ids: Sequence[str]) -> ScopeRows:
        if Away.left:
            Away.left -= 1
            raise StoreBusy("the way is broken")
        return await super().scopes(ids)


async def test_runs_of_operations_that_cannot_be_read_are_one_line(
    source: StoreSource, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "perdure")
    gate = Gate()
    place = shop("take", "ship")
    async with Environment([place], source, watch=Away, resources={Gate: lambda: gate}) as env:
        await env.engine.emit(ORDERS, 1, id="m")
        await gate.begun.wait()
        Away.left = 4
        await env.restart()
        gate.set()
        await env.settle()
        assert Away.left == 0
        await (await env.engine.emit(ORDERS, 1, id="m")).finished()
        assert env.engine.engines.stats.outages == {"runs of operations": 1}
    assert len(lines(caplog, "could not be read and are tried again")) == 1
    assert len(lines(caplog, "answers again (runs of operations), after 4 failures", logging.INFO)) == 1


async def test_a_store_that_fails_under_a_step_does_not_outlast_the_time_for_all_attempts() -> None:
    @step(total_timeout=timedelta(minutes=1))
    async def never() -> int:
        raise StoreUnavailable("away")

    @workflow(name="gives_up")
    async def gives_up() -> str:
        try:
            await never()
        except TimeoutError:
            return "too late"
        return "in time"

    async with Environment([gives_up]) as env:
        assert await env.engine.run(gives_up()) == "too late"
