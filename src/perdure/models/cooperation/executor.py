"""The executor runs the code of operations: steps, rollback functions, handlers of child failures, and finally
functions.

Async functions run on the process's loop (see step_tasks.py), and plain functions run in threads. The scope of a
function notes the function's requests. The executor returns them after the function has returned.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.errors import EngineBug, InvalidArguments, Misuse, NonRetryable, StepFailed, UnstorableValue
from perdure.models.common.crash_blame import Blame
from perdure.models.common.fence_check import FenceCheck, InDoubt
from perdure.models.common.host_parts import HostParts
from perdure.models.common.interrupts import failed_by_exit, is_by_signal
from perdure.models.common.threads import without_stop_iteration
from perdure.models.common.transactions import CodecFailed, Fate
from perdure.models.cooperation.attempts import Effort
from perdure.models.cooperation.cancellation import reasons
from perdure.models.cooperation.cause_reader import CauseReader
from perdure.models.cooperation.context import Context as StepContext
from perdure.models.cooperation.define import Node
from perdure.models.cooperation.failures import Failure, to_failure
from perdure.models.cooperation.live_run import Code, LiveOperation
from perdure.models.cooperation.machine import refused
from perdure.models.cooperation.moves import Handle, Invoke, Outcome, Raised, Returned, Undo
from perdure.models.cooperation.return_values import Returns, readable
from perdure.models.cooperation.scope import NextStep, Scope
from perdure.models.cooperation.step_execution import StepExecution
from perdure.models.cooperation.transactions import Place, Transactions, Work, asked
from perdure.values.json import bytes_of


class AttemptContexts(Protocol):
    """Makes `current_step` work in the code of operations."""

    def enter(self, context: Context, attempt: StepExecution) -> Place:
        """Enter an attempt into a context, so that code in this context can ask for its run, its step and its
        attempt.
        """
        ...


class TryAgain(Struct, frozen=True):
    """The outcome of a failed attempt after which another attempt follows: see the execution's `attempts`."""


class Executor:
    """Prepares the code of operations, and calls it."""

    def __init__(
        self,
        *,
        parts: HostParts,
        threads: ThreadPoolExecutor,
        attempts: AttemptContexts,
        transactions: Transactions,
        causes: CauseReader,
        blame: Blame,
        fence_check: FenceCheck,
    ) -> None:
        self._now = parts.clock.now
        self._ids = parts.ids
        self._threads = threads
        self._attempts = attempts
        self._transactions = transactions
        self._causes = causes
        self._blame = blame
        self._levels_max = parts.limits.hierarchy_levels_max
        self._payload_max = parts.limits.payload_bytes_max
        self._fence_check = fence_check

    def prepare(self, execution: StepExecution) -> tuple[Any, Context]:
        """Return a coroutine that returns the outcome, and the context to run it in."""
        live, code = execution.live, execution.code
        context = copy_context()
        place = self._attempts.enter(context, execution)
        if not live.plan.nodes[code.index].transactional:
            return self._outcome(execution, partial(self._run, execution)), context
        execution.fate = Fate()
        call = _InTransaction(self, execution)
        work = Work(
            call=call,
            scope=lambda: self._scope(live, code),
            check=lambda returned: self._possible(live, code, returned),
            place=place,
            context=context,
            position=execution.position,
            is_async=call.is_async,
        )
        return self._outcome(execution, partial(self._transacted, execution, work, call)), context

    def _possible(self, live: LiveOperation, code: Code, returned: Returned) -> Outcome:
        """Return the outcome of code. If the outcome cannot be written, return a failure."""
        failure = refused(live.plan, live.view(0), code, returned)
        return within_bounds(live, returned, self._payload_max) if failure is None else Raised(failure=failure)

    def _scope(self, live: LiveOperation, code: Code) -> Scope:
        now = self._now()
        return Scope(
            lineage=live.lineage,
            handler=live.handler,
            step=code.name,
            iteration=code.iteration,
            context=code.context,
            now=now,
            ids=self._new_id,
            rolling_back=code.rolling_back,
            next_step=_next_step(live, code) if type(code) is Handle else None,
            returned=partial(_returns, live),
            reasons=partial(self._reasons, live, code.rolling_back),
            levels_max=self._levels_max,
        )

    def _new_id(self) -> str:
        return self._ids(self._now())

    def _reasons(self, live: LiveOperation, rolling_back: bool, context: StepContext) -> tuple[Failure, ...]:
        return reasons(live.view(self._now()), context, rolling_back=rolling_back)

    @staticmethod
    async def _outcome(execution: StepExecution, work: Callable[[], Awaitable[Returned]]) -> Outcome | TryAgain:
        live, code = execution.live, execution.code
        try:
            return await work()
        except asyncio.CancelledError as cancelled:
            error = _explained(execution, cancelled)
        except CodecFailed:
            raise
        except (KeyboardInterrupt, SystemExit) as exited:
            if is_by_signal(exited):
                raise  # A signal stops the process, so the step has not ended.
            error = _explained(execution, exited)
        except Exception as raised:  # noqa: BLE001 - whatever a step raises is its failure
            error = raised
        if execution.dropped:
            return TryAgain()  # The outcome no longer matters.
        try:
            if execution.is_tried_again(error):
                return TryAgain()
        except Exception as broken:  # noqa: BLE001 - the policy has functions of the user's
            broken.add_note(f"raised by the retry policy of step {code.name!r}")
            broken.__cause__ = error
            error = broken
        failure = to_failure(error, live.source, text_of(code))
        if execution.attempts is not None and execution.attempts.failed > 1:
            failure = replace(failure, attempts=execution.attempts.failed)
        return Raised(failure=failure)

    async def _transacted(self, execution: StepExecution, work: Work, call: _InTransaction) -> Returned:
        execution.is_called = True
        call.code = await self._with_causes(call.code)
        return await self._transactions.run(execution, work)

    async def _with_causes(self, code: Code) -> Code:
        """Return the code's move, with a failure that includes the causes from other rows."""
        if isinstance(code, Handle):
            return replace(code, failure=await self._causes.for_code(code.failure))
        if isinstance(code, Undo):
            return replace(code, cause=await self._causes.for_code(code.cause))
        return code

    async def _run(self, execution: StepExecution) -> Returned:
        code = execution.code
        if type(code) is not Invoke:
            code = await self._with_causes(code)
            # The fence was checked before the causes were read, so it must be checked again. If the run no longer
            # belongs to this engine, or gives up, the execution is dropped and its task is cancelled before the check
            # returns.
            await self._fence_check.check_for(execution.run_id, lambda: execution.dropped)
        scope = self._scope(execution.live, code)
        return asked(scope, await called(execution, code, scope, partial(self.call, execution)))

    async def call(self, execution: StepExecution, node: Node, function: Callable[..., Any], *args: Any) -> Any:
        is_first, execution.is_called, execution.thread = not execution.is_called, True, None
        # This is the check that inspect makes, in a tenth of the time.
        if function.__code__.co_flags & inspect.CO_COROUTINE:
            execution.in_thread = False
            return await function(*args)
        if node.kind in ("sleep", "round"):
            return function(*args)
        loop = asyncio.get_running_loop()
        execution.in_thread = True
        body = partial(without_stop_iteration, function, *args)
        if execution.effort.is_timed:
            body = partial(_announced, loop, execution, body)
        guarded = partial(self._fence_check.guarded, execution.run_id, body)
        while True:
            job = guarded
            if (run_id := execution.run_id) in self._blame.watched:
                self._blame.leave(run_id, execution)
                self._blame.rest(run_id)  # The run does not count as executing until it has a thread.
                job = partial(self._blame.call_in_thread, run_id, execution, execution.is_current, loop, guarded)
            thread = self._threads.submit(copy_context().run, job)
            if is_first:
                execution.thread = thread
            try:
                returned = await asyncio.wrap_future(thread)
            except InDoubt:
                await self._fence_check.check(lambda: execution.dropped)
            else:
                return await returned if inspect.isawaitable(returned) else returned


async def called(
    execution: StepExecution, code: Code, scope: Scope, call: Callable[..., Awaitable[Any]]
) -> NextStep | None:
    """Call all functions of a move, each through `call`. Return the next step that the code has named."""
    live = execution.live
    node, message = live.plan.nodes[code.index], live.message
    match code:
        case Invoke():
            try:
                return live.plan.named(_checked(await call(node, node.invoke, scope, message), node))
            except (Exception, asyncio.CancelledError, KeyboardInterrupt, SystemExit) as error:
                if node.cleanup is None or execution.dropped or is_by_signal(error):
                    raise
                if execution.has_store_failed is not None and await execution.has_store_failed():
                    raise  # The step runs again, so its finally function must not run yet.
                failed = _explained(execution, error)
                if execution.is_tried_again(failed):
                    raise
                await call(node, node.cleanup, scope, message)
                if failed is error:
                    raise
                raise failed from error
        case Handle():
            assert node.handler is not None
            said = await call(node, node.handler, scope, message, code.failure, code.attempt)
            return live.plan.named(_checked(said, node))
        case Undo():
            if code.cleanup and node.cleanup is not None:
                await call(node, node.cleanup, scope, message)
            if node.undo is not None:
                await call(node, node.undo, scope, message, code.cause)
    return None


def _returns(live: LiveOperation) -> Returns:
    """Return the values that a run's children have returned.

    They are collected only when a step asks for them. A run may have ten thousand children, and most of its steps do
    not ask. A plain function asks from a thread, so the lists are copied before they are searched.
    """
    children, values = [*live.children], [*live.values.values()]
    topics = live.topics
    return Returns(readable(children, values), {child.id: topics.get(child.message_id, "") for child in children})


def _explained(execution: StepExecution, error: BaseException) -> BaseException:
    """Return the error with which an attempt failed. If the code was cancelled and the engine did not do it, the code
    has cancelled itself. That counts as a failure.
    """
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        exited = NonRetryable(failed_by_exit(error, f"step {execution.code.name!r}"))
        exited.__cause__ = error
        return exited
    if not isinstance(error, asyncio.CancelledError):
        return error
    if execution.timed_out is not None:
        return execution.timed_out
    if execution.verdict is not None:
        return execution.verdict[0]
    failed = StepFailed(f"step {execution.code.name!r} was cancelled from inside")
    failed.__cause__ = error
    return failed


def _announced(loop: asyncio.AbstractEventLoop, execution: StepExecution, body: Callable[[], Any]) -> Any:
    """Call the body in its thread. Its time limits start now, because it may have waited long for the thread."""
    with suppress(RuntimeError):  # Once the loop is closed, the time limits do not matter.
        loop.call_soon_threadsafe(execution.arm)
    return body()


def within_bounds(live: LiveOperation, outcome: Outcome, payload_bytes_max: int) -> Outcome:
    """Return the outcome of code. If a message, a value or a context in it is too long, return a failure. Contexts
    count, because every row has one.
    """
    if not isinstance(outcome, Returned):
        return outcome
    for what, size in _sizes(outcome):
        if size > payload_bytes_max:
            error = UnstorableValue(f"{what} has {size:,} bytes, and may have {payload_bytes_max:,}")
            return Raised(failure=to_failure(error, live.source))
    return outcome


def _sizes(outcome: Returned) -> Iterator[tuple[str, int]]:
    """Yield the values that code wants to store, with the size of each value in bytes."""
    for emission in outcome.emissions:
        yield f"a message on topic {emission.topic!r}", bytes_of(emission.payload)
        if emission.call is not None:
            yield f"the input of workflow {emission.call.workflow!r}", bytes_of(emission.call.input)
    for value in outcome.values:
        yield f"the return value {value.variable!r}", bytes_of(value.value)
    if outcome.context.values:
        yield "the context", len(msgspec.json.encode(outcome.context.values))
    measured = outcome.context
    for emission in outcome.emissions:
        # Successive emissions mostly share one context.
        if emission.context is not measured and emission.context.values:
            measured = emission.context
            yield "the context", len(msgspec.json.encode(measured.values))


def effort_of(live: LiveOperation, code: Code) -> Effort:
    """Return the retry policy and the time limits of code."""
    node = live.plan.nodes[code.index]
    match code:
        case Invoke():
            return node.effort
        case Undo():
            return node.undo_effort
        case Handle():
            return node.handler_effort


def _next_step(live: LiveOperation, code: Handle) -> NextStep | None:
    """Return the next step that the step has named. The step's handler of child failures sees it."""
    return None if code.rolling_back else live.plan.said(code.next_step, code.index)


def text_of(code: Code) -> str:
    """Return the name of a step, or of the phase of a rollback."""
    return code.text if isinstance(code, Undo) else code.name


class _InTransaction:
    """Code that is called in a transaction."""

    def __init__(self, executor: Executor, execution: StepExecution) -> None:
        self._executor = executor
        self._execution = execution
        self.code = execution.code

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self._execution.live.plan.nodes[self.code.index].invoke)

    def plain(self, scope: Scope) -> NextStep | None:
        coroutine = called(self._execution, self.code, scope, _call_here)
        try:
            coroutine.send(None)
        except StopIteration as stop:
            said: NextStep | None = stop.value
            return said
        coroutine.close()
        raise EngineBug(f"step {self.code.name!r} waits for something in its transaction")

    def awaited(self, scope: Scope) -> Coroutine[Any, Any, NextStep | None]:
        return called(self._execution, self.code, scope, partial(self._executor.call, self._execution))


async def _call_here(node: Node, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in the current thread. The function must not wait for anything."""
    said = without_stop_iteration(function, *args)
    if inspect.isawaitable(said):
        if inspect.iscoroutine(said):
            said.close()
        raise Misuse(f"the plain function of step {node.name!r} returned an awaitable, which cannot be awaited here")
    return said


def _checked(said: Any, node: Node) -> NextStep | None:
    if said is None or isinstance(said, NextStep):
        return said
    raise InvalidArguments(
        f"step {node.name!r} returned {said!r:.80}: it may return go_on(), repeat() or go_to(…), or nothing; what its"
        " parent is to read goes into scope.return_value(…)"
    )
