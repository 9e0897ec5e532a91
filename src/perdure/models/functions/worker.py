"""The code of a worker process, and the messages between a worker process and its engine. A worker process runs one job
at a time.

The process ends when its pipe is closed, even in the middle of a job. A closed pipe means that the engine's process is
gone, or that the engine no longer needs this process.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Final, NoReturn

from msgspec import Struct
from msgspec.json import decode as from_json
from msgspec.json import encode as to_json
from msgspec.structs import replace

from perdure.errors import InvalidDefinition, Misuse, StepFailed
from perdure.kernel.failures import Failure
from perdure.models.common.interrupts import failed_by_exit
from perdure.models.functions.context import CurrentStep, in_step
from perdure.models.functions.define import Step
from perdure.models.functions.unwritten_items import item_text
from perdure.values.failures import to_failure
from perdure.values.json import Signature, to_text

_BEAT_EVERY_S: Final = 0.05
_LOOK_EVERY_S: Final = 1.0


class Job(Struct, frozen=True, kw_only=True):
    """An attempt to run. It has the function to call, the arguments as JSON, and the values for `current_step()`."""

    module: str
    function: str
    name: str
    input: str
    run_id: str
    position: str
    key: str
    attempt: int
    details: str | None
    payload_max: int


class Ready(Struct, frozen=True, tag=True):
    """The process is ready: it has imported everything that it needs before its first job."""


class Began(Struct, frozen=True, tag=True):
    """The function is about to be called."""


class Beat(Struct, frozen=True, tag=True):
    """The job sent a heartbeat."""

    details: str | None


class Item(Struct, frozen=True, tag=True):
    """The job appended an item to a stream. The value is JSON."""

    stream: str
    value: str


class Ended(Struct, frozen=True, tag=True, kw_only=True):
    """The job has ended, with the function's result as JSON or with a failure. `is_final` says that no retry follows.
    `details` are the heartbeat details that were not sent before the end.
    """

    result: str | None = None
    failure: Failure | None = None
    details: str | None = None
    is_final: bool = False


WorkerMessage = Ready | Began | Beat | Item | Ended


def main(connection: Connection, engine_pid: int) -> None:
    """Run a worker process."""
    # This process ignores signals that go to the whole process group. The engine handles these signals, and ends its
    # worker processes in time.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    Worker(connection, engine_pid).run()


class Worker:
    """Runs jobs in the main thread. Another thread listens to the pipe."""

    def __init__(self, connection: Connection, engine_pid: int) -> None:
        self._connection = connection
        self._engine_pid = engine_pid
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._is_busy = False
        self._sending = threading.Lock()
        self._signatures: dict[tuple[str, str], tuple[Callable[..., Any], Signature]] = {}

    def run(self) -> None:
        threading.Thread(target=self._listen, daemon=True, name="perdure-listener").start()
        with suppress(OSError):  # The engine is gone.
            self.send(Ready())
            while (job := self._jobs.get()) is not None:
                end = self._do(job)
                for stream in (sys.stdout, sys.stderr):
                    with suppress(AttributeError, OSError, ValueError):  # The stream may be missing or closed.
                        stream.flush()
                self._is_busy = False
                self.send(end)

    def send(self, message: WorkerMessage) -> None:
        with self._sending:
            self._connection.send_bytes(to_json(message))

    def _listen(self) -> None:
        try:
            while True:
                # If the engine's process has forked a process that still has the pipe open, the pipe does not end.
                while not self._connection.poll(_LOOK_EVERY_S):
                    if os.getppid() != self._engine_pid:
                        raise EOFError
                job = from_json(self._connection.recv_bytes(), type=Job)
                self._is_busy = True
                self._jobs.put(job)
        except (EOFError, OSError):
            pass
        except BaseException:  # noqa: BLE001 - after any error this thread no longer listens, so the process must end
            traceback.print_exc()
            os._exit(1)
        if self._is_busy:
            os._exit(1)  # Another engine runs the step again, so the outcome of this job no longer matters.
        self._jobs.put(None)

    def _do(self, job: Job) -> Ended:
        pulse = _Pulse(self, job)
        try:
            function, signature = self._find(job)
            args, kwargs = signature.read(job.input)
            context = copy_context()
            context.run(in_step.set, pulse)
            self.send(Began())
            value = context.run(function, *args, **kwargs)
            return Ended(result=to_text(value, signature.about_result, job.payload_max), details=pulse.stop())
        except (KeyboardInterrupt, SystemExit) as leaving:  # The engine's process does the same.
            error = StepFailed(failed_by_exit(leaving, f"step {job.name!r}"))
            error.__cause__ = leaving
            return Ended(failure=_as_in_engine(to_failure(error)), details=pulse.stop(), is_final=True)
        except asyncio.CancelledError:  # The engine's process does the same.
            error = StepFailed(f"step {job.name!r} was cancelled from inside")
            return Ended(failure=to_failure(error), details=pulse.stop())
        except StopIteration as stop:  # A step in a thread does the same.
            failed = RuntimeError("the step raised StopIteration")
            failed.__cause__ = stop
            return Ended(failure=to_failure(failed), details=pulse.stop())
        except BaseException as error:  # noqa: BLE001 - however it ended, that is its outcome
            failure = _as_in_engine(to_failure(error))
            return Ended(failure=failure, details=pulse.stop(), is_final=not isinstance(error, Exception))

    def _find(self, job: Job) -> tuple[Callable[..., Any], Signature]:
        key = (job.module, job.function)
        if key not in self._signatures:
            try:
                found: Any = getattr(sys.modules.get(job.module) or importlib.import_module(job.module), job.function)
            except (ImportError, AttributeError) as error:
                raise InvalidDefinition(
                    f"a worker process does not find step {job.name!r} as {job.module}.{job.function} ({error}): "
                    "define it at the top level of a module that every program can import"
                ) from error
            if isinstance(found, Step):
                self._signatures[key] = (found.function, found.signature)
            else:
                self._signatures[key] = (found, Signature(found, f"step {job.name!r}", {}))
        return self._signatures[key]


class _Pulse:
    """The attempt, from the point of view of its body. Heartbeats are sent to the engine at once, but at most twenty
    per second.
    """

    def __init__(self, worker: Worker, job: Job) -> None:
        self._worker = worker
        self._job = job
        self._lock = threading.Lock()
        self._unsent: str | None = None
        self._sent_at = -_BEAT_EVERY_S
        self._is_due = False
        self._is_over = False

    def describe(self) -> CurrentStep:
        job = self._job
        return CurrentStep(
            run_id=job.run_id,
            position=job.position,
            key=job.key,
            name=job.name,
            attempt=job.attempt,
            details=job.details,
            body=self,
        )

    def append(self, stream: str, value: Any) -> None:
        """Send an item to the engine. Waits while the engine has too many items to write."""
        item = Item(stream, item_text(stream, value, self._job.payload_max))
        with self._lock:
            if not self._is_over:
                with suppress(OSError):  # The engine is gone, so this process will end too.
                    self._worker.send(item)

    async def flush(self) -> None:
        """Do nothing: items are sent to the engine as soon as they are appended."""

    def stage(self, *_: Any) -> NoReturn:
        raise Misuse(
            "a step in a worker process cannot stage artifacts: return the value, or a file's path, and let another "
            "step stage it"
        )

    stage_file = stage

    def resource(self, kind: type[Any]) -> NoReturn:
        raise Misuse(
            f"step {self._job.name!r} runs in a process of its own, and resources live in the engine's: make a "
            f"{kind.__qualname__} here, or leave out process=True"
        )

    def beat(self, details: Any) -> None:
        what = f"the details of a heartbeat of step {self._job.name!r}"
        text = None if details is None else to_text(details, what, self._job.payload_max)
        with self._lock:
            if self._is_over:
                return
            if text is not None:
                self._unsent = text
            if self._is_due:
                return
            wait_s = self._sent_at + _BEAT_EVERY_S - time.monotonic()
            if wait_s <= 0:
                self._send()
                return
            self._is_due = True
        timer = threading.Timer(wait_s, self._send_later)
        timer.daemon = True
        timer.start()

    def stop(self) -> str | None:
        """Send nothing more, because the attempt is over. Returns the details that were not sent."""
        with self._lock:
            self._is_over = True
            return self._unsent

    def _send_later(self) -> None:
        with self._lock:
            self._is_due = False
            if not self._is_over:
                self._send()

    def _send(self) -> None:
        beat, self._unsent = Beat(self._unsent), None
        self._sent_at = time.monotonic()
        with suppress(OSError):  # The engine is gone, so this process will end too.
            self._worker.send(beat)


def _as_in_engine(failure: Failure) -> Failure:
    """Return a failure in which the main module has the name that it has in the engine's process. In a worker process,
    the main module has another name.
    """
    return replace(
        failure,
        type=failure.type.replace("__mp_main__:", "__main__:", 1),
        members=[_as_in_engine(one) for one in failure.members],
        cause=None if failure.cause is None else _as_in_engine(failure.cause),
    )
