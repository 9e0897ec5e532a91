"""Runs the code of operations: steps, their rollbacks, their answers to child failures, and what is done in any case.

Async functions run on the process's loop (see carriers.py), plain ones in threads. All that they ask for is noted by
their scope, and given back when they return.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from perdure.errors import EngineBug, InvalidArguments, Misuse, StepFailed
from perdure.models.cooperation.context import Context as StepContext
from perdure.models.cooperation.define import NextStep, Node
from perdure.models.cooperation.failures import Failure, to_failure
from perdure.models.cooperation.live import Code, LiveOperation, StepExecution
from perdure.models.cooperation.moves import Handle, Invoke, Outcome, Raised, Returned, Undo
from perdure.models.cooperation.rules import readable, reasons
from perdure.models.cooperation.scope import Scope
from perdure.models.cooperation.transactions import Place, Transactions, Work, asked
from perdure.models.transacting import CodecFailed

# What runs in a step's context knows where it is: the run, the step, and which execution of it.
Enter = Callable[[Context, str, str, str], Place]


class Executor:
    """Prepares code to be run."""

    def __init__(
        self,
        *,
        now: Callable[[], int],
        ids: Callable[[int], str],
        threads: ThreadPoolExecutor,
        enter: Enter,
        transactions: Transactions,
        check: Callable[[LiveOperation, Code, Returned], Outcome],
    ) -> None:
        self._now = now
        self._ids = ids
        self._threads = threads
        self._enter = enter
        self._transactions = transactions
        self._check = check

    def prepare(self, execution: StepExecution) -> tuple[Any, Context]:
        """A coroutine that gives the outcome, and the context to run it in."""
        live, code = execution.live, execution.code
        context = copy_context()
        position = f"{code.name}[{live.progress.next_seq - 1}]"
        place = self._enter(context, live.id, position, code.name)
        if not live.plan.nodes[code.index].transactional:
            return self._outcome(live, code, partial(self._run, live, code)), context
        call = _InTransaction(self, live, code)
        work = Work(
            call=call,
            scope=lambda: self._scope(live, code),
            check=lambda returned: self._check(live, code, returned),
            place=place,
            context=context,
            position=position,
            is_async=call.is_async,
        )
        return self._outcome(live, code, partial(self._transactions.run, execution, work)), context

    def _scope(self, live: LiveOperation, code: Code) -> Scope:
        rolling_back = isinstance(code, Undo) or (isinstance(code, Handle) and code.rolling_back)
        now = self._now()
        return Scope(
            lineage=live.lineage,
            handler=live.handler,
            step=code.name,
            iteration=code.iteration,
            context=code.context,
            now=now,
            ids=self._new_id,
            rolling_back=rolling_back,
            returned=readable(live.view(now), tuple(live.values)) if live.values else (),
            reasons=partial(self._reasons, live, rolling_back),
        )

    def _new_id(self) -> str:
        return self._ids(self._now())

    def _reasons(self, live: LiveOperation, rolling_back: bool, context: StepContext) -> tuple[Failure, ...]:
        return reasons(live.view(self._now()), context, rolling_back=rolling_back)

    @staticmethod
    async def _outcome(live: LiveOperation, code: Code, work: Callable[[], Awaitable[Returned]]) -> Outcome:
        try:
            return await work()
        except asyncio.CancelledError as error:
            # If its engine did not do that, the code itself did: to a rollback it is a failure like any other.
            failed = StepFailed(f"step {code.name!r} was cancelled from inside")
            failed.__cause__ = error
            return Raised(failure=to_failure(failed, live.source))
        except CodecFailed:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a step raises is its failure
            return Raised(failure=to_failure(error, live.source))

    async def _run(self, live: LiveOperation, code: Code) -> Returned:
        scope = self._scope(live, code)
        return asked(scope, await called(live, code, scope, self.call))

    async def call(self, node: Node, function: Callable[..., Any], *args: Any) -> Any:
        if function.__code__.co_flags & inspect.CO_COROUTINE:  # As inspect says, in a tenth of the time.
            return await function(*args)
        if node.kind in ("sleep", "round"):
            return function(*args)
        loop = asyncio.get_running_loop()
        call = partial(copy_context().run, _without_stop_iteration, function, *args)
        returned = await loop.run_in_executor(self._threads, call)
        return await returned if inspect.isawaitable(returned) else returned


async def called(live: LiveOperation, code: Code, scope: Scope, call: Callable[..., Awaitable[Any]]) -> NextStep | None:
    """Call all functions that a move names. `call` is how one is called."""
    node, message = live.plan.nodes[code.index], live.message
    match code:
        case Invoke():
            try:
                return _checked(await call(node, node.invoke, scope, message), node)
            except Exception:
                if node.cleanup is not None:
                    await call(node, node.cleanup, scope, message)
                raise
        case Handle():
            assert node.handler is not None
            return _checked(await call(node, node.handler, scope, message, code.failure, code.attempt), node)
        case Undo():
            if code.cleanup and node.cleanup is not None:
                await call(node, node.cleanup, scope, message)
            if node.undo is not None:
                await call(node, node.undo, scope, message, code.cause)
    return None


class _InTransaction:
    """Code that is called in a transaction."""

    def __init__(self, executor: Executor, live: LiveOperation, code: Code) -> None:
        self._executor = executor
        self._live = live
        self._code = code

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self._live.plan.nodes[self._code.index].invoke)

    def plain(self, scope: Scope) -> NextStep | None:
        coroutine = called(self._live, self._code, scope, _call_here)
        try:
            coroutine.send(None)
        except StopIteration as stop:
            said: NextStep | None = stop.value
            return said
        coroutine.close()
        raise EngineBug(f"step {self._code.name!r} waits for something in its transaction")

    def awaited(self, scope: Scope) -> Coroutine[Any, Any, NextStep | None]:
        return called(self._live, self._code, scope, self._executor.call)


async def _call_here(node: Node, function: Callable[..., Any], *args: Any) -> Any:
    """In the thread that this is called in, which waits for nothing."""
    said = _without_stop_iteration(function, *args)
    if inspect.isawaitable(said):
        if inspect.iscoroutine(said):
            said.close()
        raise Misuse(f"the plain function of step {node.name!r} gave something to be awaited, which nobody can")
    return said


def _checked(said: Any, node: Node) -> NextStep | None:
    if said is None or isinstance(said, NextStep):
        return said
    raise InvalidArguments(
        f"step {node.name!r} returned {said!r:.80}: it may return go_on(), repeat() or go_to(…), or nothing; what its"
        " parent is to read goes into scope.return_value(…)"
    )


def _without_stop_iteration(function: Callable[..., Any], *args: Any) -> Any:
    """No future can hold a StopIteration."""
    try:
        return function(*args)
    except StopIteration as error:
        raise RuntimeError("the step raised StopIteration") from error
