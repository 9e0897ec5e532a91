"""Transactional steps: a body that writes to tables of its own, in the transaction that stages its result.

What the store itself could not do (it is busy, a connection broke) is done again and is no attempt: a transaction that
may have been committed is found out about by that. What the body raises is a failure like any other.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from asyncio import (
    _get_running_loop,  # pyright: ignore[reportPrivateUsage]
    _set_running_loop,  # pyright: ignore[reportPrivateUsage]
)
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, NoReturn

from msgspec import Struct

from perdure.errors import CommitRefused, Fenced, Misuse, OutcomeUnknown, StoreError, UnstorableValue
from perdure.kernel.records import Engine, Staged
from perdure.models.functions.context import holds_writer
from perdure.models.functions.values import to_text
from perdure.ports import Codec, PlainCodec, StepPlace, Store

if TYPE_CHECKING:
    from perdure.models.functions.heartbeats import Pulse
    from perdure.models.functions.steps import Execution

log = logging.getLogger("perdure")

_AGAIN_FIRST_S: Final = 0.01
_AGAIN_MAX_S: Final = 1.0
_LOOK_S: Final = 1.0  # how often a thread that waits for the loop sees whether there still is one


class Fate:
    """Whether what an attempt wrote is to be committed. Whoever is first decides: the body that has come to its end, or
    whoever gives the attempt up. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = "open"

    def settle(self) -> bool:
        """It is to be committed; False if it was given up before."""
        with self._lock:
            if self._state == "open":
                self._state = "settled"
            return self._state == "settled"

    def give_up(self) -> bool:
        """It is not to be committed; False if it may have been."""
        with self._lock:
            if self._state == "open":
                self._state = "given up"
            return self._state == "given up"

    def reopen(self) -> bool:
        """Nothing was committed, and nothing is decided; False if it was given up."""
        with self._lock:
            if self._state == "settled":
                self._state = "open"
            return self._state == "open"


class Concluded(Struct, frozen=True, kw_only=True):
    """How an attempt ended. An error that is `final` is not one of the body's, and no reason to try again."""

    staged: Staged | None = None
    error: BaseException | None = None
    is_final: bool = False


class GivenUp(Exception):
    """Rolls back what an attempt wrote that nobody waits for any more."""


class _Body:
    """One call of a step's function. `error` is what it raised, `is_final` if its result cannot be stored."""

    def __init__(self, transactions: Transactions, execution: Execution, pulse: Pulse, fate: Fate) -> None:
        self.error: BaseException | None = None
        self.is_final = False
        self.is_called = False
        self._is_running = False
        self._transactions = transactions
        self._execution = execution
        self._pulse = pulse
        self._fate = fate

    def plain(self, context: Context, connection: Any) -> Staged:
        """In the store's own thread."""
        self._is_running = True
        try:
            return context.run(self._plain, connection)
        except BaseException as error:
            self.error = error
            raise
        finally:
            self._is_running = False

    def _plain(self, connection: Any) -> Staged:
        execution = self._execution
        self._begin(connection)
        execution.runner.tell(execution.began, self._pulse)
        step, call = execution.step, execution.request.call
        holds_writer.set(lambda: step.name if self._is_running else "")
        with _without_loop(step.name):
            value = step.function(*call.args, **call.kwargs)
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            self.is_final = True
            raise Misuse(f"the plain function of step {step.name!r} gave something to be awaited, which nobody can")
        text = self._text(value)
        return self._staged(self._transactions.encode_elsewhere(execution.runner.loop, text, self._refuse))

    async def awaited(self, connection: Any) -> Staged:
        """On the loop, in a task of the step's own."""
        execution = self._execution
        try:
            self._begin(connection)
            execution.suspended()
            call = execution.request.call
            text = self._text(await execution.step.function(*call.args, **call.kwargs))
            return self._staged(self._transactions.encode(text, self._refuse))
        except BaseException as error:
            self.error = error
            raise

    def _begin(self, connection: Any) -> None:
        """Nothing was committed so far, or this would not be called."""
        self.is_called = True
        execution = self._execution
        if not self._fate.reopen():
            raise GivenUp
        execution.check_deadline()
        self._pulse.connection = connection

    def _text(self, value: Any) -> str:
        """What it came to, as JSON that reads as its annotation says."""
        signature = self._execution.step.signature
        try:
            text = to_text(value, signature.about_result, self._execution.runner.payload_max)
            signature.result.read(text, signature.about_result)
        except UnstorableValue:
            self.is_final = True
            raise
        return text

    def _refuse(self, error: BaseException) -> NoReturn:
        self.is_final = True
        raise CodecFailed(error) from error

    def _staged(self, text: str) -> Staged:
        execution = self._execution
        staged = Staged(
            run_id=execution.live.id,
            position=execution.request.position,
            name=execution.request.name,
            claim=execution.live.claim,
            attempt=execution.attempt,
            value=text,
            started_at=execution.started_at,
            at=execution.runner.clock.now(),
        )
        if not self._fate.settle():
            raise GivenUp
        return staged


class CodecFailed(Exception):
    """The codec raised this."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class Transactions:
    """The transactions of an engine's steps. `broken` is told of a step whose result the codec cannot take."""

    def __init__(
        self,
        store: Store,
        codec: Codec,
        me: Callable[[], Engine],
        prove: Callable[[], Awaitable[object]],
        broken: Callable[[Execution, BaseException], None],
    ) -> None:
        self._store = store
        self._codec = codec
        self._me = me
        self._prove = prove
        self._broken = broken
        self._tasks: set[asyncio.Task[Concluded]] = set()

    def begin(self, execution: Execution, pulse: Pulse, context: Context) -> asyncio.Task[Concluded]:
        """Start an attempt. Raises Misuse if there are no transactions for such functions on this store."""
        self._check(execution)
        fate = execution.fate = Fate()
        work = self._transact(execution, pulse, fate, context)
        task = asyncio.get_running_loop().create_task(work, name="perdure-transaction", context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close(self) -> None:
        """Wait for nothing any more. What is being committed is found by whoever goes on with the run."""
        for task in self._tasks:
            task.cancel()

    def _check(self, execution: Execution) -> None:
        step, takes = execution.step, self._store.transacts
        if takes == "no":
            raise Misuse(
                f"step {step.name!r} is transactional, and this engine's store has no transactions for steps: use a "
                "store on SQLite (sqlite:///…) or Postgres (postgresql://…), in tests too"
            )
        if takes == "plain" and step.is_async:
            raise Misuse(
                f"step {step.name!r} is transactional and async, and on SQLite nothing else is written before its "
                "transaction ends: make it a plain `def`, which uses sqlite3"
            )
        if takes == "async" and not step.is_async:
            raise Misuse(
                f"step {step.name!r} is transactional and a plain function, and on Postgres its connection is "
                "asyncpg's: make it an `async def`"
            )

    async def _transact(self, execution: Execution, pulse: Pulse, fate: Fate, context: Context) -> Concluded:
        """Until it is known how it ended. Never raises, since whatever a body raises is only its outcome."""
        pause_s = _AGAIN_FIRST_S
        is_unknown = False  # Then nobody can give the attempt up until the store has told.
        while True:
            body = _Body(self, execution, pulse, fate)
            try:
                return Concluded(staged=await self._once(execution, body, context))
            except BaseException as error:  # noqa: BLE001 - see above
                if body.error is not None or not isinstance(error, StoreError) or isinstance(error, CommitRefused):
                    is_final = body.is_final or (body.error is None and isinstance(error, Misuse))
                    return Concluded(error=error, is_final=is_final)
                log.warning(
                    "the transaction of step %r of run %s is begun again: %s",
                    execution.step.name, execution.live.id, error,
                )  # fmt: skip
                is_fenced = isinstance(error, Fenced)
                is_unknown = isinstance(error, OutcomeUnknown) or (is_unknown and not body.is_called)
            finally:
                pulse.connection = None
            if not is_unknown:
                fate.reopen()
            if is_fenced:
                await self._prove()
            if not execution.dropped:
                await asyncio.sleep(pause_s)
            if execution.dropped:
                return Concluded(error=GivenUp())
            pause_s = min(pause_s * 2, _AGAIN_MAX_S)

    async def _once(self, execution: Execution, body: _Body, context: Context) -> Staged:
        me = self._me()
        is_plain = self._store.transacts == "plain"
        place = StepPlace(
            engine_id=me.id,
            epoch=me.epoch,
            run_id=execution.live.id,
            claim=execution.live.claim,
            position=execution.request.position,
        )
        call = (lambda connection: body.plain(context.copy(), connection)) if is_plain else body.awaited
        return await self._store.transact(place, call)

    def conclude(self, execution: Execution, error: BaseException) -> None:
        """A step ended with what cannot be stored."""
        if isinstance(error, CodecFailed):
            self._broken(execution, error.error)
        else:
            execution.runner.finished(execution, None, error)

    def encode(self, text: str, refuse: Callable[[BaseException], NoReturn]) -> str:
        """What is stored for a text. On the loop: a codec need not know of threads."""
        try:
            return self._codec.encode(text)
        except Exception as error:  # noqa: BLE001 - users' codecs may raise anything
            refuse(error)

    def encode_elsewhere(
        self, loop: asyncio.AbstractEventLoop, text: str, refuse: Callable[[BaseException], NoReturn]
    ) -> str:
        """The same from another thread, which waits for the loop."""
        if type(self._codec) is PlainCodec:
            return text
        encoded: Future[str] = Future()

        def encode() -> None:
            try:
                encoded.set_result(self._codec.encode(text))
            except Exception as error:  # noqa: BLE001 - as above
                encoded.set_exception(error)

        loop.call_soon_threadsafe(encode)
        while not loop.is_closed():
            if wait([encoded], _LOOK_S).done:
                if (error := encoded.exception()) is not None:
                    refuse(error)
                return encoded.result()
        raise GivenUp


class _NoLoop:
    """Stands where the running loop would, in a thread that must not wait for any."""

    def __init__(self, step: str) -> None:
        self._step = step

    def __getattr__(self, name: str) -> Any:
        raise Misuse(
            f"nothing can be awaited in the transactional step {self._step!r}, on which all else waits that is to be "
            "written: do that in another step"
        )


@contextmanager
def _without_loop(step: str) -> Generator[None]:
    """Have asyncio refuse to run anything here."""
    before = _get_running_loop()
    _set_running_loop(_NoLoop(step))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        _set_running_loop(before)


__all__ = ["Concluded", "Fate", "Transactions"]
