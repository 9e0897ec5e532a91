"""Transactional steps: a body that writes to tables of its own, in the transaction that stages its result."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any, NoReturn

from perdure.errors import Misuse, UnstorableValue
from perdure.kernel.records import Engine, Staged
from perdure.models.common.transactions import (
    CodecFailed,
    Concluded,
    Fate,
    GivenUp,
    Spot,
    check_form,
    encoded,
    encoded_elsewhere,
    holds_writer,
    transacted,
    without_loop,
)
from perdure.models.functions.artifacts import marked
from perdure.ports import Codec, Store
from perdure.values.json import to_text

if TYPE_CHECKING:
    from perdure.models.functions.heartbeats import Pulse
    from perdure.models.functions.steps import Execution


class _Body:
    """One call of a step's function. `error` is what it raised, `is_final` if its result cannot be stored."""

    def __init__(
        self, transactions: Transactions, execution: Execution, pulse: Pulse, fate: Fate, context: Context
    ) -> None:
        self.error: BaseException | None = None
        self.is_final = False
        self.is_called = False
        self._is_running = False
        self._transactions = transactions
        self._execution = execution
        self._pulse = pulse
        self._fate = fate
        self._context = context

    def plain(self, connection: Any, /) -> Staged:
        """In the store's own thread."""
        self._is_running = True
        try:
            return self._context.copy().run(self._plain, connection)
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
        with without_loop(step.name):
            value = step.function(*call.args, **call.kwargs)
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            self.is_final = True
            raise Misuse(f"the plain function of step {step.name!r} gave something to be awaited, which nobody can")
        text = self._text(value)
        codec = self._transactions.codec
        return self._staged(encoded_elsewhere(codec, execution.runner.loop, text, self._refuse))

    async def awaited(self, connection: Any, /) -> Staged:
        """On the loop, in a task of the step's own."""
        execution = self._execution
        try:
            self._begin(connection)
            execution.suspended()
            call = execution.request.call
            text = self._text(await execution.step.function(*call.args, **call.kwargs))
            return self._staged(encoded(self._transactions.codec, text, self._refuse))
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
        if signature.tells_staged:
            value = marked(value)
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


class Transactions:
    """The transactions of an engine's steps. `broken` is told of a step whose result the codec cannot take."""

    def __init__(
        self,
        store: Store,
        codec: Codec,
        me: Callable[[], Engine],
        check_fence: Callable[[], Awaitable[object]],
        broken: Callable[[Execution, BaseException], None],
    ) -> None:
        self._store = store
        self.codec = codec
        self._me = me
        self._prove = check_fence
        self._broken = broken
        self._tasks: set[asyncio.Task[Concluded]] = set()

    def begin(self, execution: Execution, pulse: Pulse, context: Context) -> asyncio.Task[Concluded]:
        """Start an attempt. Raises Misuse if there are no transactions for such functions on this store."""
        check_form(self._store.transacts, execution.step.name, is_async=execution.step.is_async)
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

    async def _transact(self, execution: Execution, pulse: Pulse, fate: Fate, context: Context) -> Concluded:
        def ended() -> None:
            pulse.connection = None

        return await transacted(
            store=self._store,
            me=self._me,
            spot=Spot(execution.live.id, execution.live.claim, execution.request.position, execution.step.name),
            fate=fate,
            body=lambda: _Body(self, execution, pulse, fate, context),
            check_fence=self._prove,
            is_dropped=lambda: execution.dropped,
            ended=ended,
            again=execution.interrupted,
        )

    def conclude(self, execution: Execution, error: BaseException) -> None:
        """A step ended with what cannot be stored."""
        if isinstance(error, CodecFailed):
            self._broken(execution, error.error)
        else:
            execution.runner.finished(execution, None, error)


__all__ = ["Concluded", "Fate", "Transactions"]
