"""Programs with steps in worker processes: how these come to find the steps, and what becomes of them in the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

HEAD = """
import asyncio, os, socket, sys, threading
from perdure import Engine, Retry, current_step, step, workflow
"""

VISIT = """
@step(process=True)
def visit(port: int) -> str:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(f"{os.getpid()}\\n".encode())
    return connection.makefile().readline().strip()

@workflow
async def flow(port: int) -> str:
    return await visit(port)
"""


@contextmanager
def program(folder: Path, text: str, *arguments: object, name: str = "program.py") -> Iterator[subprocess.Popen[str]]:
    """A program in a file of its own, started."""
    (folder / name).write_text(HEAD + textwrap.dedent(text))
    with started([name, *map(str, arguments)], folder) as process:
        yield process


@contextmanager
def started(arguments: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-W", "error", *arguments],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def output(process: subprocess.Popen[str]) -> list[str]:
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return out.splitlines()


@contextmanager
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        yield server


def port_of(server: socket.socket) -> int:
    port: int = server.getsockname()[1]
    return port


@contextmanager
def arrival(server: socket.socket) -> Iterator[tuple[socket.socket, int]]:
    """A step that showed up, and the id of its process."""
    connection, _ = server.accept()
    with connection, connection.makefile() as lines:
        connection.settimeout(60)
        yield connection, int(lines.readline())


# Finding steps.

SCRIPT = """
class Declined(Exception):
    def __init__(self, card: str) -> None:
        super().__init__(f"{card} was declined")
        self.card = card

@step(process=True, retry=Retry.never())
def pay(card: str) -> int:
    if card == "bad":
        raise Declined(card)
    return os.getpid()

@workflow
async def flow(card: str) -> str:
    try:
        return "elsewhere" if await pay(card) != os.getpid() else "here"
    except Declined as error:
        return f"{type(error).__module__} {error.card}"

async def main() -> None:
    async with Engine("memory://") as engine:
        print(await engine.run(flow("good")), await engine.run(flow("bad")))
"""

GUARDED = '\nif __name__ == "__main__":\n    asyncio.run(main())\n'


def test_steps_and_errors_of_the_main_module_are_found_again(tmp_path: Path) -> None:
    with program(tmp_path, SCRIPT + GUARDED) as process:
        assert output(process) == ["elsewhere __main__ bad"]
    with started(["-m", "program"], tmp_path) as process:
        assert output(process) == ["elsewhere __main__ bad"]


def test_a_main_module_that_runs_when_it_is_imported_is_told_so(tmp_path: Path) -> None:
    with program(tmp_path, SCRIPT + "\nasyncio.run(main())\n") as process:
        _, errors = process.communicate(timeout=60)
        assert process.returncode != 0
        assert "no process came up to run step 'pay' in attempt 1: it ended with exit code 1" in errors
        assert 'only under `if __name__ == "__main__":`' in errors


def test_a_main_module_that_never_ends_its_import_is_given_up(tmp_path: Path) -> None:
    text = """
        if __name__ == "__main__":
            from perdure.models.functions import processes
            processes.START_MAX_S = 0.2
        else:
            threading.Event().wait()
    """
    with program(tmp_path, SCRIPT + textwrap.dedent(text) + GUARDED) as process:
        _, errors = process.communicate(timeout=60)
        assert "no process came up to run step 'pay' in attempt 1: it was not ready after 0.2 s" in errors


@pytest.mark.parametrize("how", ["-c", "-"])
def test_a_step_of_a_program_that_cannot_be_imported_is_refused_with_advice(how: str, tmp_path: Path) -> None:
    text = HEAD + SCRIPT.replace('flow("bad")', 'flow("good")') + GUARDED
    with started(["-c", text] if how == "-c" else ["-"], tmp_path) as process:
        _, errors = process.communicate("" if how == "-c" else text, timeout=60)
        assert "a program that a worker process cannot import" in errors
        assert "InvalidDefinition" in errors
        assert "define it in a module of its own" in errors


def test_the_main_module_of_a_package_is_not_imported_and_its_steps_are_refused(tmp_path: Path) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    with program(package, SCRIPT + GUARDED, name="__main__.py"):
        pass
    with started(["-m", "shop"], tmp_path) as process:
        _, errors = process.communicate(timeout=60)
        assert "define it in a module of its own" in errors


FLEETING = """
@step(process=True)
def work() -> int:
    return 1

@workflow
async def flow() -> int:
    return await work()
"""


def test_a_module_that_a_worker_process_cannot_import_is_named(tmp_path: Path) -> None:
    (tmp_path / "fleeting.py").write_text(HEAD + FLEETING)
    text = """
        async def main() -> None:
            import fleeting
            os.unlink("fleeting.py")
            async with Engine("memory://") as engine:
                run = await engine.start(fleeting.flow())
                try:
                    await run.result()
                except Exception as error:
                    print(error.__cause__)
                print((await run.history()).journal[0].attempts)

        if __name__ == "__main__":
            asyncio.run(main())
    """
    with program(tmp_path, text) as process:
        said, attempts = output(process)
        assert "does not find step 'work' as fleeting.work (No module named 'fleeting')" in said
        assert attempts == "1"


def test_who_has_no_process_steps_does_not_pay_for_them(tmp_path: Path) -> None:
    text = """
        @step
        def work() -> int:
            return 1

        @workflow
        async def flow() -> int:
            return await work()

        async def main() -> None:
            async with Engine("memory://") as engine:
                print(await engine.run(flow()))
            print([name for name in sys.modules if name.startswith("multiprocessing")])

        if __name__ == "__main__":
            asyncio.run(main())
    """
    with program(tmp_path, text) as process:
        assert output(process) == ["1", "[]"]


# Ends.

RUNNING = (
    VISIT
    + """
async def main() -> None:
    async with Engine("sqlite:///runs.db") as engine:
        run = await engine.start(flow(int(sys.argv[1])), id="r")
        print(await run.result())

if __name__ == "__main__":
    asyncio.run(main())
"""
)


def test_killing_the_engines_process_ends_its_workers_and_the_run_goes_on_in_the_next(tmp_path: Path) -> None:
    with listener() as server:
        with program(tmp_path, RUNNING, port_of(server)) as process, arrival(server) as (connection, pid):
            assert pid != process.pid
            process.send_signal(signal.SIGKILL)
            process.wait(60)
            assert connection.recv(1) == b""  # The worker has ended.
        with program(tmp_path, RUNNING, port_of(server)) as process, arrival(server) as (connection, _):
            connection.sendall(b"hello\n")
            assert output(process) == ["hello"]


FORKING = RUNNING.replace(
    "        print(await run.result())",
    """        await asyncio.to_thread(sys.stdin.readline)
        if os.fork() == 0:
            sys.stdin.read()
            os._exit(0)
        print("forked", flush=True)
        await run.result()""",
)


def test_workers_notice_the_end_of_their_engine_though_a_fork_of_it_lives_on(tmp_path: Path) -> None:
    with (
        listener() as server,
        program(tmp_path, FORKING, port_of(server)) as process,
        arrival(server) as (connection, _),
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("fork\n")
        process.stdin.flush()
        assert process.stdout.readline() == "forked\n"
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        assert connection.recv(1) == b""


REPORTING = """
from perdure.storage.sqlite import SqliteStore

class Watched(SqliteStore):
    async def commit(self, batch):
        committed = await super().commit(batch)
        if any(wait.kind == "beat" for wait in batch.waits.values()):
            print("stored", flush=True)
        return committed

async def report() -> str:
    me = current_step()
    if me.heartbeat_details is None:
        me.heartbeat({"pid": os.getpid()})
        await asyncio.Event().wait()
    return f"{me.attempt} {me.heartbeat_details['pid']}"

def report_in_process() -> str:
    me = current_step()
    if me.heartbeat_details is None:
        me.heartbeat({"pid": os.getppid()})
        threading.Event().wait()
    return f"{me.attempt} {me.heartbeat_details['pid']}"

STEPS = {"loop": step(report), "process": step(process=True)(report_in_process)}

@workflow
async def flow(where: str) -> str:
    return await STEPS[where]()

async def main() -> None:
    async with Engine(Watched("runs.db")) as engine:
        print(await (await engine.start(flow(sys.argv[1]), id="r")).result())
"""


@pytest.mark.parametrize("where", ["loop", "process"])
def test_what_a_step_said_survives_the_kill_of_its_engine(where: str, tmp_path: Path) -> None:
    with program(tmp_path, REPORTING + GUARDED, where) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stored\n"
        process.send_signal(signal.SIGKILL)
        killed = process.pid
    with program(tmp_path, REPORTING + GUARDED, where) as process:
        assert output(process) == [f"1 {killed}"]


NEGLIGENT = (
    VISIT
    + """
async def main() -> None:
    engine = Engine("memory://")
    await engine.open()
    run = await engine.start(flow(int(sys.argv[1])))
    if sys.argv[2] == "idle":
        await run.result()
    else:
        await asyncio.to_thread(sys.stdin.readline)

if __name__ == "__main__":
    asyncio.run(main())
"""
)


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_a_program_that_forgets_to_shut_its_engine_down_ends_all_the_same(state: str, tmp_path: Path) -> None:
    with (
        listener() as server,
        program(tmp_path, NEGLIGENT, port_of(server), state) as process,
        arrival(server) as (connection, _),
    ):
        if state == "idle":
            connection.sendall(b"hello\n")
        else:
            assert process.stdin is not None
            process.stdin.write("end\n")
            process.stdin.flush()
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert connection.recv(1) == b""
