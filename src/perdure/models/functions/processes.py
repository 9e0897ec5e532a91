"""The pool of worker processes for steps with `process=True`. Processes are spawned, never forked, and each has a pipe
of its own.

If a process dies, only its own job is lost. A process whose job is cancelled, or takes too long, is killed. For each
process, the pool has a thread for blocking calls. The thread starts the process, sends jobs and receives messages. The
pool keeps no state that a crash could lose.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Protocol

from msgspec.json import decode as from_json
from msgspec.json import encode as to_json

from perdure.errors import InvalidDefinition, StepProcessDied
from perdure.models.common.fence_check import FenceCheck, InDoubt
from perdure.models.functions import worker
from perdure.models.functions.define import Step
from perdure.models.functions.worker import Beat, Began, Ended, Item, Job, Ready, WorkerMessage

log = logging.getLogger("perdure")

START_MAX_S = 120.0
_EXIT_MAX_S: Final = 5.0
_LOOK_EVERY_S: Final = 1.0


class JobListener(Protocol):
    """Receives the messages of a job."""

    def began(self) -> None:
        """The job has begun in a process. This is called on the loop."""
        ...

    def beat(self, text: str | None, /) -> None:
        """The job sent a heartbeat, with details as JSON. This is called in the thread that listens to the process."""
        ...

    def append(self, stream: str, text: str, /) -> None:
        """The job appended an item to a stream, as JSON. This is called in the thread that listens to the process.
        While this call waits, the process waits too.
        """
        ...


class Task:
    """A job in the pool."""

    __slots__ = ("future", "has_begun", "job", "listener", "member")

    def __init__(self, job: Job, future: asyncio.Future[Ended], listener: JobListener) -> None:
        self.job = job
        self.future = future
        self.listener = listener
        self.has_begun = False
        self.member: Member | None = None


class ProcessPool:
    """At most `processes_max` processes.

    They are started when they are needed. A job waits while no process is free.
    """

    def __init__(self, processes_max: int, fence_check: FenceCheck) -> None:
        """Create a pool without processes. A job that had to wait begins only if `fence_check` confirms that its run
        still belongs to this engine. Otherwise the job's future raises InDoubt."""
        self._loop = asyncio.get_running_loop()
        self._fence_check = fence_check
        self._processes_max = processes_max
        self._members: set[Member] = set()
        self._idle: list[Member] = []
        self._waiting: OrderedDict[Task, None] = OrderedDict()
        self._is_closed = False
        # At exit, the interpreter waits for its child processes. They end only when the pool is closed.
        atexit.register(self.close)

    def submit(self, job: Job, listener: JobListener) -> asyncio.Future[Ended]:
        """Run a job. Cancelling the returned future kills the process that runs the job. The future raises
        StepProcessDied or InDoubt.
        """
        task = Task(job, self._loop.create_future(), listener)
        task.future.add_done_callback(partial(self._settled, task))
        self._waiting[task] = None
        self._go_on()
        return task.future

    def close(self) -> None:
        """End all processes. Processes with a job are killed. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        for member in self._members:
            if member.task is None:
                member.dismiss()
            else:
                member.kill()
        self._waiting.clear()

    def call_on_loop(self, callback: Callable[..., object], *args: Any) -> None:
        """Call a function on the loop. This can be called from any thread. It does nothing once the loop is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)

    def begun(self, task: Task) -> None:
        task.has_begun = True
        if not task.future.done():
            task.listener.began()

    def ended(self, member: Member, task: Task, end: Ended) -> None:
        if member not in self._members:  # The process was killed in the meantime.
            return
        task.member = member.task = None
        member.has_served = True
        self._idle.append(member)
        if not task.future.done():
            task.future.set_result(end)
        self._go_on()

    def gone(self, member: Member, exit_code: int | None, how: str) -> None:
        """Handle a process that has ended, or that could not be started."""
        if member not in self._members:
            return
        self._leave(member)
        task = member.task
        if task is not None and not task.future.done():
            task.member = None
            if task.has_begun or not member.has_served:
                task.future.set_exception(_death(task, exit_code, how))
            else:  # The process died while it was idle. It was given the job before its death was noticed.
                self._waiting[task] = None
                self._waiting.move_to_end(task, last=False)
        self._go_on()

    def _settled(self, task: Task, future: asyncio.Future[Ended]) -> None:
        if not future.cancelled():
            return
        self._waiting.pop(task, None)
        if (member := task.member) is not None and member in self._members:
            self._leave(member)
            member.kill()
            self._go_on()

    def _leave(self, member: Member) -> None:
        self._members.discard(member)
        if member in self._idle:
            self._idle.remove(member)

    def _go_on(self) -> None:
        while self._waiting and not self._is_closed:
            task = next(iter(self._waiting))
            if not task.future.done() and not self._fence_check.is_sure_of(task.job.run_id):
                task.future.set_exception(InDoubt())
            if not task.future.done():
                if self._idle:
                    member = self._idle.pop()
                elif len(self._members) < self._processes_max:
                    member = Member(self)
                    self._members.add(member)
                else:
                    return
                task.member = member
                member.give(task)
            del self._waiting[task]


class Member:
    """One process of the pool, and the thread that serves it. `_drive` and the methods below it run in that thread. All
    other methods run on the loop.
    """

    def __init__(self, pool: ProcessPool) -> None:
        self.task: Task | None = None
        self.has_served = False
        self._pool = pool
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._process: SpawnProcess | None = None
        self._is_killed = False
        self._lock = threading.Lock()
        threading.Thread(target=self._drive, daemon=True, name="perdure-step-process").start()

    def give(self, task: Task) -> None:
        self.task = task
        self._tasks.put(task)

    def dismiss(self) -> None:
        """Let the process end by itself, because there is no work for it."""
        self._tasks.put(None)

    def kill(self) -> None:
        with self._lock:
            self._is_killed = True
            if self._process is not None:
                self._process.kill()
        self._tasks.put(None)

    def _drive(self) -> None:
        try:
            process, connection = self._start()
        except Exception as error:  # noqa: BLE001 - the pool gets it as the reason
            self._pool.call_on_loop(self._pool.gone, self, None, f"it could not be started: {error!r}")
            return
        how = ""
        try:
            self._serve(process, connection)
        except TimeoutError as error:
            how = str(error)
            process.kill()
        except (EOFError, OSError):
            pass
        except Exception as error:
            log.exception("a worker process sent a message that cannot be read")
            how = f"it sent a message that cannot be read: {error!r}"
            process.kill()
        finally:
            connection.close()  # A healthy process ends when its pipe is closed.
        exit_code = _reap(process)
        self._pool.call_on_loop(self._pool.gone, self, exit_code, how or _describe_exit(exit_code))

    def _start(self) -> tuple[SpawnProcess, Connection]:
        context = multiprocessing.get_context("spawn")
        connection, theirs = context.Pipe()
        try:
            process = context.Process(target=worker.main, args=(theirs, os.getpid()), name="perdure-step-worker")
            process.start()
        except BaseException:
            connection.close()
            raise
        finally:
            theirs.close()
        with self._lock:
            self._process = process
            if self._is_killed:
                process.kill()
        return process, connection

    def _serve(self, process: SpawnProcess, connection: Connection) -> None:
        """Pass jobs to the process until there are no more. Raises EOFError and OSError if the process is gone, and
        TimeoutError if the process does not become ready in time.
        """
        if not connection.poll(START_MAX_S):
            raise TimeoutError(f"it was not ready after {START_MAX_S} s")
        _receive(connection)
        pool = self._pool
        while (task := self._tasks.get()) is not None:
            connection.send_bytes(to_json(task.job))
            while True:
                # If the worker has forked a process that still has the pipe open, the pipe does not end.
                while not connection.poll(_LOOK_EVERY_S):
                    if not process.is_alive():
                        raise EOFError
                match _receive(connection):
                    case Beat(details):
                        task.listener.beat(details)
                    case Item(stream, value):
                        task.listener.append(stream, value)
                    case Began():
                        pool.call_on_loop(pool.begun, task)
                    case Ended() as end:
                        pool.call_on_loop(pool.ended, self, task, end)
                        break
                    case Ready():
                        pass


def _receive(connection: Connection) -> WorkerMessage:
    message: WorkerMessage = from_json(connection.recv_bytes(), type=WorkerMessage)
    return message


def address_of(step: Step[Any, Any]) -> tuple[str, str]:
    """Return the module and the name under which another process finds a step's function. Raises InvalidDefinition."""
    function = step.function
    module, name = function.__module__, function.__qualname__
    found = getattr(sys.modules.get(module), name, None)
    if found is not function and not (isinstance(found, Step) and found.function is function):
        raise InvalidDefinition(
            f"step {step.name!r} has process=True, but {module}.{name} is not it, so a worker process would not find "
            "it: leave the function at the top level of its module, under its own name"
        )
    if module == "__main__" and not _is_importable(sys.modules["__main__"]):
        raise InvalidDefinition(
            f"step {step.name!r} has process=True, but was defined in a program that a worker process cannot import "
            "(an interactive session, python -c, standard input): define it in a module of its own"
        )
    return module, name


def _is_importable(main: Any) -> bool:
    """Return whether multiprocessing will import this main module in processes that it spawns."""
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return not (spec.name == "__main__" or spec.name.endswith(".__main__"))
    file = getattr(main, "__file__", None)
    return file is not None and Path(file).is_file()


def _reap(process: SpawnProcess) -> int | None:
    """Wait until a process that has lost its pipe has ended. If it does not end, kill it. Returns the process's exit
    code.
    """
    if process.is_alive():
        process.join(_EXIT_MAX_S)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode


def _describe_exit(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        with suppress(ValueError):
            return f"it was killed by signal {-exit_code} ({signal.Signals(-exit_code).name})"
    return f"it ended with exit code {exit_code}"


def _death(task: Task, exit_code: int | None, how: str) -> StepProcessDied:
    job = task.job
    if task.has_begun:
        message = f"the process that ran step {job.name!r} died in attempt {job.attempt}: {how}"
    else:
        message = (
            f"no process came up to run step {job.name!r} in attempt {job.attempt}: {how}. It imports the program's "
            'main module, where all but definitions must stand under `if __name__ == "__main__":`; its standard error '
            "may say more"
        )
    return StepProcessDied(message, exit_code=exit_code)
