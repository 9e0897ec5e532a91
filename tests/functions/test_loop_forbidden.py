"""Real I/O, threads and foreign futures in workflow code: caught, with an error that says to put it into a step."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import ForbiddenInWorkflow
from perdure.models.functions import forbidden
from perdure.values.failures import mark
from tests.functions.loop_driver import Driver, step


def refused(do: Callable[[], Any]) -> str:
    async def program() -> Any:
        result = do()
        if asyncio.iscoroutine(result):
            result = await result
        return result

    with Driver(program) as run:
        assert isinstance(run.error, ForbiddenInWorkflow), repr(run.error)
        assert "put this into a step" in str(run.error)
        return str(run.error)


def in_loop(name: str, *args: Any) -> Callable[[], Any]:
    return lambda: getattr(asyncio.get_running_loop(), name)(*args)


@pytest.mark.parametrize(
    "name",
    [
        "add_reader",
        "add_signal_handler",
        "add_writer",
        "connect_read_pipe",
        "create_connection",
        "create_datagram_endpoint",
        "create_server",
        "create_unix_connection",
        "getaddrinfo",
        "run_forever",
        "run_in_executor",
        "run_until_complete",
        "sendfile",
        "set_default_executor",
        "set_task_factory",
        "shutdown_asyncgens",
        "sock_connect",
        "sock_recv",
        "start_tls",
        "stop",
        "subprocess_exec",
        "subprocess_shell",
    ],
)
def test_methods_of_a_loop_that_reach_outside_are_refused(name: str) -> None:
    assert f"loop.{name}()" in refused(in_loop(name))


def test_asyncio_functions_that_reach_outside_are_refused() -> None:
    assert "run_in_executor" in refused(lambda: asyncio.to_thread(time.time))
    assert "create_connection" in refused(lambda: asyncio.open_connection("127.0.0.1", 1))
    assert "subprocess_exec" in refused(lambda: asyncio.create_subprocess_exec("true"))


def test_blocking_io_is_refused(tmp_path: Path) -> None:
    sock = socket.socket()
    with sock:
        assert "socket.connect" in refused(lambda: sock.connect(("127.0.0.1", 1)))
        assert "socket.bind" in refused(lambda: sock.bind(("127.0.0.1", 0)))
        assert "socket.sendto" in refused(lambda: sock.sendto(b"", ("127.0.0.1", 1)))
    assert "getaddrinfo" in refused(lambda: socket.getaddrinfo("localhost", 80))
    assert "subprocess" in refused(lambda: subprocess.run(["true"], check=False))
    assert "os.system" in refused(lambda: os.system("true"))
    assert "os.fork" in refused(os.fork)
    assert "sqlite3.connect" in refused(lambda: sqlite3.connect(":memory:"))
    assert "time.sleep" in refused(lambda: time.sleep(0))
    assert "file.txt' for writing" in refused(lambda: (tmp_path / "file.txt").write_text("x"))
    assert "for writing" in refused(lambda: (tmp_path / "file.txt").open("a"))
    assert not list(tmp_path.iterdir())


def test_threads_are_refused() -> None:
    assert "thread" in refused(threading.Thread(target=print).start)
    with ThreadPoolExecutor(1) as pool:
        assert "thread" in refused(lambda: pool.submit(print))


def test_reading_and_computing_are_allowed(tmp_path: Path) -> None:
    file = tmp_path / "file.txt"
    file.write_text("text")

    async def program() -> Any:
        with open(os.devnull, "w"):  # noqa: PTH123
            return file.read_text()

    with Driver(program) as run:
        assert run.result == "text"


def test_an_import_may_write_its_byte_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_in_a_workflow.py").write_text("import sqlite3\nconnection = sqlite3.connect(':memory:')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)

    async def program() -> None:
        importlib.import_module("imported_in_a_workflow").connection.close()

    with Driver(program) as run:
        assert run.result is None


def test_a_log_handler_may_open_its_file(tmp_path: Path) -> None:
    handler = logging.FileHandler(tmp_path / "log", delay=True)
    logger = logging.getLogger("a workflow's")
    logger.addHandler(handler)

    async def program() -> None:
        logger.warning("written")

    try:
        with Driver(program) as run:
            assert run.result is None
        assert (tmp_path / "log").read_text() == "written\n"
    finally:
        logger.removeHandler(handler)
        handler.close()


def test_outside_activations_nothing_is_refused(tmp_path: Path) -> None:
    with Driver(lambda: step("a")):
        (tmp_path / "file").write_text("x")
        subprocess.run(["true"], check=True)
        sqlite3.connect(":memory:").close()
        time.sleep(0)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(int).result() == 0


def test_other_threads_go_on_during_an_activation(tmp_path: Path) -> None:
    asked, answered = threading.Event(), threading.Event()

    def other() -> None:
        asked.wait(5)
        (tmp_path / "file").write_text("x")
        answered.set()

    async def program() -> bool:
        asked.set()
        return answered.wait(5)

    thread = threading.Thread(target=other)
    thread.start()
    with Driver(program) as run:
        thread.join()
        assert run.result is True


def test_waking_a_workflow_from_another_thread_is_refused() -> None:
    errors = []

    def other(loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.call_soon_threadsafe(print)
        except ForbiddenInWorkflow as error:
            errors.append(str(error))

    with Driver(lambda: step("a")) as run:
        thread = threading.Thread(target=other, args=(run.loop,))
        thread.start()
        thread.join()
    assert "call_soon_threadsafe" in errors[0]


def test_call_soon_threadsafe_in_the_activation_is_call_soon() -> None:
    async def program() -> list[str]:
        order: list[str] = []
        asyncio.get_running_loop().call_soon_threadsafe(order.append, "called")
        await asyncio.sleep(0)
        return order

    with Driver(program) as run:
        assert run.result == ["called"]


def test_a_future_of_another_loop_is_refused_where_it_is_awaited() -> None:
    other = asyncio.new_event_loop()
    future: asyncio.Future[None] = other.create_future()

    async def program() -> str:
        try:
            await future
        except ForbiddenInWorkflow as error:
            await step("a")
            return str(error)
        return "no error"

    try:
        with Driver(program) as run:
            run.complete("a")
            assert "<Future pending" in run.result
            assert "another event loop" in run.result
    finally:
        other.close()


def test_a_foreign_future_in_a_task_is_refused_too() -> None:
    other = asyncio.new_event_loop()
    future: asyncio.Future[None] = other.create_future()

    async def wait() -> None:
        await future

    async def program() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(wait())

    try:
        with Driver(program) as run:
            assert isinstance(run.error, ExceptionGroup)
            assert isinstance(run.error.exceptions[0], ForbiddenInWorkflow)
    finally:
        other.close()


def test_a_queue_of_another_loop_is_refused() -> None:
    queue: asyncio.Queue[int] = asyncio.Queue(1)

    async def elsewhere() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.get(), 0.001)

    asyncio.run(elsewhere())

    async def program() -> None:
        await queue.get()

    with Driver(program) as run:
        assert isinstance(run.error, ForbiddenInWorkflow)
        assert "Queue" in str(run.error)


def test_awaiting_what_is_not_of_asyncio_is_refused() -> None:
    class Foreign:
        def __await__(self) -> Any:
            yield "something of another library"

    async def program() -> None:
        await Foreign()

    with Driver(program) as run:
        assert "something of another library" in str(run.error)
        assert isinstance(run.error, ForbiddenInWorkflow)


def test_other_runtime_errors_are_left_alone() -> None:
    async def program() -> None:
        await step("a")

    with Driver(program) as run:
        run.complete("a", error=RuntimeError("its own"))
        assert type(run.error) is RuntimeError


def test_a_long_message_is_looked_at_once() -> None:
    """A search that looks again from each character would take days."""
    for text in ("x" * 5_000_000, "Task " + " got Future " * 400_000, " is bound to a different event loop " * 150_000):
        assert forbidden.foreign_await(RuntimeError(text)) is None
    long = forbidden.foreign_await(RuntimeError("x" * 5_000_000 + " is bound to a different event loop"))
    assert long is not None
    assert len(str(long)) < 2_000


def test_what_a_step_says_about_loops_is_the_steps_own_failure() -> None:
    error = RuntimeError("the queue is bound to a different event loop")
    assert forbidden.foreign_await(error) is not None
    mark(error, 1)
    assert forbidden.foreign_await(error) is None
