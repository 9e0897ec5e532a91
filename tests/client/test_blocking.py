"""A client, or an engine, for code that does not await."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from perdure import Blocking, Client, Delivered, Engine, Event, Workflow, receive, step, stream, workflow
from perdure.errors import EngineStopped, ForbiddenInWorkflow, InvalidArguments, Misuse, RunFailed, StoreError
from perdure.ports import Store
from tests.storage.postgres.server import Servers


class Paid(Event):
    amount: int


@workflow
async def pays(order: str) -> int:
    log = stream("log")
    await log.append(f"{order} waits")
    paid = await receive(Paid)
    await log.append(f"{order} is paid")
    return paid.amount


@workflow
async def doubles(number: int) -> int:
    return 2 * number


@workflow
async def fails() -> None:
    raise ValueError("as it should")


ENGINE: list[Blocking[Engine]] = []


@step
async def waits_on_its_own_loop() -> str:
    try:
        ENGINE[0].open()
    except Misuse as error:
        return str(error)
    return "it was let"


@step
def starts_another() -> int:
    wait = ENGINE[0]
    return wait(wait.client.run(doubles(21)))


@workflow
async def asks_in_steps() -> tuple[str, int]:
    return await waits_on_its_own_loop(), await starts_another()


@workflow
async def waits_in_a_workflow() -> None:
    ENGINE[0].open()


WORKFLOWS: list[Workflow[Any, Any]] = [pays, doubles, fails, asks_in_steps, waits_in_a_workflow]


@pytest.fixture
def wait(make_store: Callable[[], Store]) -> Iterator[Blocking[Engine]]:
    with Blocking(Engine(make_store(), workflows=WORKFLOWS)) as wait:
        ENGINE[:] = [wait]
        yield wait


# What it is for.


def test_a_client_is_used_without_awaiting(make_store: Callable[[], Store]) -> None:
    with Blocking(Engine(make_store(), workflows=WORKFLOWS)), Blocking(Client(make_store())) as wait:
        client = wait.client
        run = wait(client.start(pays("o-17"), id="o-17"))
        items = wait.each(run.stream("log"))
        assert next(items).value == "o-17 waits"
        assert isinstance(wait(client.send(Paid(amount=7), to=run.id)), Delivered)
        amount: int = wait(run.result())
        assert amount == 7
        assert [item.value for item in items] == ["o-17 is paid"]


def test_it_opens_when_it_is_first_used(tmp_path: Path) -> None:
    engine = Engine(f"sqlite:///{tmp_path / 'lazy.db'}", workflows=WORKFLOWS)
    wait = Blocking(engine)
    assert list(tmp_path.iterdir()) == []
    run = wait(engine.start(doubles(2)))
    assert wait(run.result()) == 4
    wait.close()
    client = Client(f"sqlite:///{tmp_path / 'lazy.db'}")
    reading = Blocking(client)
    assert [item.value for item in reading.each(client.handle(run.id).stream("log"))] == []
    reading.close()


def test_an_error_is_raised_where_it_is_waited_for(wait: Blocking[Engine]) -> None:
    async def fails_deep_down() -> None:
        await asyncio.sleep(0)
        raise TimeoutError("of its own")

    with pytest.raises(RunFailed, match="as it should"):
        wait(wait.client.run(fails()))
    with pytest.raises(TimeoutError, match="of its own") as found:
        wait(fails_deep_down(), timeout=60)
    frames = [frame.name for frame in traceback.extract_tb(found.value.__traceback__)]
    assert frames[0] == "test_an_error_is_raised_where_it_is_waited_for"
    assert frames[-1] == "fails_deep_down"


def test_an_exit_is_the_callers_and_not_the_loops(wait: Blocking[Engine]) -> None:
    async def leave() -> None:
        sys.exit("enough")

    with pytest.raises(SystemExit, match="enough"):
        wait(leave())
    assert wait(wait.client.run(doubles(1))) == 2


def test_many_threads_share_one_that_none_of_them_has_opened(make_store: Callable[[], Store]) -> None:
    engine = Engine(make_store(), workflows=WORKFLOWS)
    wait = Blocking(engine)
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda number: wait(engine.run(doubles(number))), range(100))) == [*range(0, 200, 2)]
    wait.close()


def test_a_loop_that_runs_in_the_callers_thread_does_not_matter(wait: Blocking[Engine]) -> None:
    async def notebook() -> int:
        return wait(wait.client.run(doubles(4)))

    assert asyncio.run(notebook()) == 8


def test_the_callers_context_goes_with_the_call(wait: Blocking[Engine]) -> None:
    request: ContextVar[str] = ContextVar("request")
    request.set("r-1")

    async def asked_by() -> str:
        return request.get()

    assert wait(asked_by()) == "r-1"


# Giving up.


async def for_ever(ended: threading.Event) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.set()


def test_who_waits_too_long_stops_waiting(wait: Blocking[Engine]) -> None:
    ended = threading.Event()
    with pytest.raises(TimeoutError, match="not done within 1e-05 s; what was asked for may still be done"):
        wait(for_ever(ended), timeout=1e-05)
    assert ended.wait(60)
    run = wait(wait.client.start(pays("o-1")))
    assert next(wait.each(run.stream("log"))).value == "o-1 waits"
    with pytest.raises(TimeoutError):
        next(wait.each(run.stream("log", after=1), timeout=0.01))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Who starts a program in the background may have it ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_caller_stops_waiting(wait: Blocking[Engine]) -> None:
    ended = threading.Event()

    async def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await for_ever(ended)

    with pytest.raises(KeyboardInterrupt):
        wait(interrupt())
    assert ended.wait(60)
    assert wait(wait.client.run(doubles(3))) == 6


def test_closing_tells_who_waits(make_store: Callable[[], Store]) -> None:
    wait = Blocking(Engine(make_store(), workflows=WORKFLOWS))
    run = wait(wait.client.start(pays("o-1")))
    begun, ended = threading.Event(), threading.Event()

    async def begin() -> None:
        begun.set()
        await for_ever(ended)

    with ThreadPoolExecutor(2) as pool:
        own = pool.submit(wait, begin())
        result = pool.submit(wait, run.result())
        assert begun.wait(60)
        wait.close()
        for waiting in (own, result):
            assert isinstance(waiting.exception(60), EngineStopped)
    assert ended.is_set()


# What is refused.


@pytest.mark.parametrize("was_used", [True, False])
def test_a_closed_one_says_so(make_store: Callable[[], Store], was_used: bool) -> None:
    wait = Blocking(Client(make_store()))
    if was_used:
        wait(wait.client.runs.list())
    wait.close()
    wait.close()
    with pytest.raises(EngineStopped, match="it is closed, and so is its client"):
        wait(wait.client.runs.list())
    with pytest.raises(EngineStopped):
        next(wait.each(wait.client.handle("r").stream("log")))
    with pytest.raises(EngineStopped):
        wait.open()


def test_its_own_thread_may_not_wait_but_steps_in_threads_may(wait: Blocking[Engine]) -> None:
    refused, number = wait(wait.client.run(asks_in_steps()))
    assert "where waiting would never end" in refused
    assert number == 42


def test_a_workflow_may_not_wait(wait: Blocking[Engine]) -> None:
    with pytest.raises(RunFailed) as found:
        wait(wait.client.run(waits_in_a_workflow()))
    assert isinstance(found.value.__cause__, ForbiddenInWorkflow)


def test_only_coroutines_are_waited_for(wait: Blocking[Engine]) -> None:
    not_awaitable: Any = 5
    with pytest.raises(InvalidArguments, match="not for 5"):
        wait(not_awaitable)
    with pytest.raises(InvalidArguments, match=r"<call of workflow 'doubles'> is not started: wait for client.start"):
        wait(doubles(1))


def test_opening_that_failed_is_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "not there yet"
    client = Client(f"sqlite:///{folder / 'shop.db'}")
    wait = Blocking(client)
    with pytest.raises(StoreError):
        wait(client.runs.list())
    folder.mkdir()
    assert wait(client.runs.list()).runs == []
    wait.close()


# Processes.


def run_script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text("from perdure import Blocking, Client, Engine, step, stream, workflow\n" + textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, "-W", "error", script], cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_opens_its_own_and_is_told_if_it_cannot(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        import os

        client = Client("sqlite:///shop.db")
        wait = Blocking(client)

        def in_child(work):
            if not (child := os.fork()):
                work()
                raise SystemExit(0)
            assert os.waitpid(child, 0)[1] == 0

        def look():
            print("child", len(wait(client.engines.list())), flush=True)

        def refused():
            try:
                wait(client.engines.list())
            except Exception as error:
                print(type(error).__name__, error, flush=True)
            wait.close()

        in_child(look)
        in_child(look)
        print("parent", len(wait(client.engines.list())), flush=True)
        in_child(refused)
        print("parent", len(wait(client.engines.list())), flush=True)
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["child", "child", "parent", "Misuse", "parent"]
    assert "is a fork, and threads are not forked: open it after the fork" in lines[3]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_program_that_does_not_close_its_engine_ends_and_its_runs_go_on_elsewhere(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    url = store_url(kind, tmp_path, request)
    done = run_script(
        tmp_path,
        f"""
        import threading

        @step
        def tick(number):
            return number + 1

        @workflow
        async def ticks():
            number, log = 0, stream("log")
            while True:
                number = await tick(number)
                await log.append(number)

        engine = Engine({url!r}, workflows=[ticks])
        wait = Blocking(engine)
        run = wait(engine.start(ticks(), id="t"))
        next(wait.each(run.stream("log", after=9)))

        def look():
            threading.main_thread().join()
            try:
                wait.open()
            except Exception as error:
                print(type(error).__name__, flush=True)

        threading.Thread(target=look).start()
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "EngineStopped\n", "")
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".lock"] == []
    with Blocking(Client(url)) as wait:
        assert len(wait(wait.client.engines.list())) == 1
        run = wait(wait.client.runs.get("t"))
        assert run is not None
        assert (run.status, run.owner) == ("running", None)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_client_is_there_until_the_last_thread_has_ended(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    url = store_url(kind, tmp_path, request)
    done = run_script(
        tmp_path,
        f"""
        import threading

        client = Client({url!r})
        wait = Blocking(client)
        wait.open()

        def look():
            threading.main_thread().join()
            print(len(wait(client.engines.list())), "engine", flush=True)

        threading.Thread(target=look).start()
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 engine\n", "")
    with Blocking(Client(url)) as wait:
        assert len(wait(wait.client.engines.list())) == 1


def store_url(kind: str, folder: Path, request: pytest.FixtureRequest) -> str:
    if kind == "sqlite":
        return f"sqlite:///{folder / 'shop.db'}"
    servers: Servers = request.getfixturevalue("postgres_servers")
    return servers.fresh()
