"""A client or an engine for code without `await`: scripts, notebooks, Django and Flask.

This is not a second API. One thread runs an event loop with the coroutines of the client or the engine, and callers
wait for the results.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Generic, Self, TypeVar
from weakref import WeakMethod

from perdure.client import Client
from perdure.engine import Engine
from perdure.errors import EngineStopped, InvalidArguments, Misuse
from perdure.models.functions.define import RunCall, StepCall
from perdure.models.functions.forbidden import forbidden, in_workflow
from perdure.values.arguments import Duration, checked, span_of

C = TypeVar("C", bound=Client | Engine)
T = TypeVar("T")

_Outcome = tuple[T] | BaseException


@checked(own=("coroutine", "items", "timeout"))
class Blocking(Generic[C]):
    """Runs a client or an engine in a thread of its own, and waits for the results of its coroutines.

        client = Client("sqlite:///shop.db")
        wait = Blocking(client)

        run = wait(client.start(checkout("o-17"), id="o-17"))
        total = wait(run.result(), timeout=30)

    Any number of threads may use one Blocking at the same time, even threads in which an event loop runs. It opens at
    its first use, at `open()`, or at the start of a `with` block. It closes at `close()` or at the end of the `with`
    block. If a Blocking with a client is still open when the program ends, it closes then. A Blocking with an engine
    closes when the main thread ends. A process that is forked after the Blocking was opened cannot use the Blocking. If
    you fork before you open it, each process opens a client of its own.
    """

    def __init__(self, client: C) -> None:
        self.client = client
        self._lock = threading.Lock()
        self._state = "new"
        self._pid: int | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Open the client, unless it is already open.

        Raises the errors of the client's `open`. After an error, you may call this again.
        """
        self._check_caller()
        with self._lock:
            self._ensure_open()

    def close(self) -> None:
        """Shut the client down, and end the thread.

        Idempotent. Calls that still wait in other threads raise EngineStopped.

        In a process that was forked after the client was opened, this does nothing, because the client belongs to the
        process that opened it.
        """
        if self._is_foreign():
            return
        self._check_caller()
        with self._lock:
            was, self._state = self._state, "closed"
        if was == "open":
            atexit.unregister(self.close)
            try:
                if not self._loop.is_closed():
                    self._result(self._submit(self.client.shutdown()), None)
            finally:
                self._end()
        elif self._thread is not None:
            self._thread.join()

    def __call__(self, coroutine: Coroutine[Any, Any, T], *, timeout: Duration | None = None) -> T:
        """Wait for a coroutine of the client, or of a run's handle, and return its result. Raises the error that the
        coroutine raises.

        Raises TimeoutError after `timeout`. The time that opening the client takes does not count. After a timeout or
        Ctrl-C the request may still be carried out. If the request has an id or a key, you can send it again.
        """
        try:
            _check_waitable(coroutine)
            self._check_caller()
            with self._lock:
                self._ensure_open()
                future = self._submit(coroutine)
        except BaseException:
            if asyncio.iscoroutine(coroutine):
                coroutine.close()  # Without this, Python warns of a coroutine that was never awaited.
            raise
        return self._result(future, timeout)

    def each(self, items: AsyncIterator[T], *, timeout: Duration | None = None) -> Iterator[T]:
        """Return the items of a stream: `for item in wait.each(client.handle("o-17").stream("log"))`.

        `timeout` is the time limit for each item. You may leave the loop early.
        """
        while (found := self(_next(items), timeout=timeout)) is not None:
            yield found[0]

    # The thread.

    def _ensure_open(self) -> None:
        if self._state == "closed" or (self._state == "open" and self._loop.is_closed()):
            raise EngineStopped("it is closed, and so is its client; make new ones")
        if self._state == "new":
            self._pid = os.getpid()
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._live, name="perdure-blocking", daemon=True)
            self._thread.start()
            try:
                self._result(self._submit(self.client.open()), None)
            except BaseException:
                self._end()
                self._pid = self._thread = None
                raise
            self._state = "open"
            if isinstance(self.client, Engine):
                _before_pools(WeakMethod(self.close))
            else:
                atexit.register(self.close)

    def _live(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(_tidy(self._loop))
            self._loop.close()

    def _end(self) -> None:
        assert self._thread is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[_Outcome[T]]:
        return asyncio.run_coroutine_threadsafe(_outcome(coroutine), self._loop)

    def _result(self, future: Future[_Outcome[T]], timeout: Duration | None) -> T:
        try:
            outcome = future.result(None if timeout is None else span_of(timeout, "timeout").total_seconds())
        except TimeoutError:
            if future.cancel():
                message = f"it was not done within {timeout} s; what was asked for may still be done"
                raise TimeoutError(message) from None
            outcome = future.result()  # The coroutine has just ended.
        except CancelledError:
            if self._state != "closed":
                raise
            raise EngineStopped("it was closed in the meantime; the request may still be carried out") from None
        except BaseException:
            future.cancel()
            raise
        if isinstance(outcome, BaseException):
            try:
                raise outcome
            finally:
                # The error's traceback refers to this frame, so the frame must not refer to the error.
                del outcome, future
        return outcome[0]

    # Callers that may not wait here.

    def _is_foreign(self) -> bool:
        return self._pid is not None and self._pid != os.getpid()

    def _check_caller(self) -> None:
        if in_workflow():
            raise forbidden("waiting with Blocking")
        if self._is_foreign():
            raise Misuse(
                f"this was opened in process {self._pid}, of which this process, {os.getpid()}, is a fork, and threads "
                "are not forked: open it after the fork. Nothing but its first use, open() and `with` opens it"
            )
        if threading.current_thread() is self._thread:
            raise Misuse("this is the client's own thread, where waiting would never end: await the coroutine instead")


def _before_pools(close: WeakMethod[Callable[[], None]]) -> None:
    """Register a function that is called at the end of the program, before Python closes all thread pools. If an engine
    closed after that, its steps that need a thread pool would fail. Of Python's hooks, only a private hook of
    `threading` is called early enough.
    """
    register: Callable[[Callable[[], object]], object] = getattr(threading, "_register_atexit", atexit.register)
    register(lambda: found() if (found := close()) is not None else None)


def _check_waitable(coroutine: object) -> None:
    if isinstance(coroutine, (RunCall, StepCall)):
        raise InvalidArguments(f"{coroutine!r} is not started: wait for client.start(…) or client.run(…) with it")
    if not asyncio.iscoroutine(coroutine):
        raise InvalidArguments(
            f"it waits for coroutines, such as those of client.start(…) or run.result(), not for {coroutine!r:.80}"
        )


async def _outcome(coroutine: Coroutine[Any, Any, T]) -> _Outcome[T]:
    """Return the outcome of a coroutine as a value. The waiting thread raises the coroutine's error; the event loop
    never raises it.
    """
    try:
        return (await coroutine,)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever the error is, the caller gets it
        return error


async def _next(items: AsyncIterator[T]) -> tuple[T] | None:
    try:
        return (await anext(items),)
    except StopAsyncIteration:
        return None


async def _tidy(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await loop.shutdown_asyncgens()


__all__ = ["Blocking"]
