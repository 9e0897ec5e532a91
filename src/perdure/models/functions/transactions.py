"""Transactional steps: the body writes to the user's own tables in the transaction that stages the step's result."""

from __future__ import annotations

import asyncio
import inspect
from contextvars import Context
from functools import partial
from typing import Any, NoReturn

from perdure.errors import Misuse, UnstorableValue
from perdure.kernel.rows import Staged
from perdure.models.common.host_parts import HostParts
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
from perdure.models.functions.step_protocols import AttemptInFlight, StepInFlight
from perdure.values.json import to_text


class _Body:
    """One call of a step's function. `error` is the error that it raised. `is_final` says that the result cannot be
    stored.
    """

    def __init__(
        self, transactions: Transactions, execution: StepInFlight, pulse: AttemptInFlight, fate: Fate, context: Context
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
        """Call the function in the store's own thread."""
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
        execution.call_on_loop(execution.began, self._pulse)
        step, call = execution.step, execution.request.call
        holds_writer.set(lambda: step.name if self._is_running else "")
        with without_loop(step.name):
            value = step.function(*call.args, **call.kwargs)
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            self.is_final = True
            raise Misuse(
                f"the plain function of step {step.name!r} returned an awaitable, which cannot be awaited here"
            )
        text = self._text(value)
        codec = self._transactions.codec
        return self._staged(encoded_elsewhere(codec, self._transactions.loop, text, self._refuse))

    async def awaited(self, connection: Any, /) -> Staged:
        """Call the function on the loop, in the step's own task."""
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
        """Prepare a call of the function. The store calls the function only if the attempt has not committed anything.
        Raises GivenUp, StepTimedOut.
        """
        self.is_called = True
        execution = self._execution
        if not self._fate.reopen():
            raise GivenUp
        execution.check_deadline()
        self._pulse.connection = connection

    def _text(self, value: Any) -> str:
        """Return the result as JSON. Raises UnstorableValue if the JSON does not fit the annotation of the result."""
        signature = self._execution.step.signature
        if signature.tells_staged:
            value = marked(value)
        try:
            text = to_text(value, signature.about_result, self._transactions.payload_max)
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
            at=self._transactions.clock.now(),
        )
        if not self._fate.settle():
            raise GivenUp
        return staged


class Transactions:
    """The transactions of an engine's steps."""

    def __init__(self, parts: HostParts) -> None:
        self.clock = parts.clock
        self.codec = parts.codec
        self.payload_max = parts.limits.payload_bytes_max
        self.loop = asyncio.get_running_loop()
        self._store = parts.store
        self._coordinator = parts.coordinator
        self._tasks: set[asyncio.Task[Concluded]] = set()

    def begin(self, execution: StepInFlight, pulse: AttemptInFlight, context: Context) -> None:
        """Start an attempt.

        Raises Misuse if this store has no transactions for this form of function (plain or async).
        """
        check_form(self._store.transacts, execution.step.name, is_async=execution.step.is_async)
        fate = execution.fate = Fate()
        work = self._transact(execution, pulse, fate, context)
        task = self.loop.create_task(work, name="perdure-transaction", context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(partial(_ended, execution))
        execution.task = task

    def close(self) -> None:
        """Stop waiting for transactions. If a transaction is being committed, the engine that continues the run finds
        the step's result.
        """
        for task in self._tasks:
            task.cancel()

    async def _transact(
        self, execution: StepInFlight, pulse: AttemptInFlight, fate: Fate, context: Context
    ) -> Concluded:
        def ended() -> None:
            pulse.connection = None

        return await transacted(
            store=self._store,
            coordinator=self._coordinator,
            spot=Spot(execution.live.id, execution.live.claim, execution.request.position, execution.step.name),
            fate=fate,
            body=lambda: _Body(self, execution, pulse, fate, context),
            is_dropped=lambda: execution.dropped,
            ended=ended,
            again=execution.interrupted,
        )


def _ended(execution: StepInFlight, future: asyncio.Future[Concluded]) -> None:
    if future.cancelled():
        execution.ended(None, asyncio.CancelledError())
        return
    end = future.result()
    if end.is_final and end.error is not None:
        execution.cannot_be_stored(end.error)
    else:
        execution.ended(end.staged, end.error)


__all__ = ["Transactions"]
