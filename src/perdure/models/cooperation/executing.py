"""Runs the code of operations: steps, their rollbacks, their answers to child failures, and what is done in any case.

Async functions run on the process's loop (see carriers.py), plain ones in threads. All that they ask for is noted by
their scope, and given back when they return.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from perdure.errors import InvalidArguments, StepFailed
from perdure.models.cooperation.context import Context as StepContext
from perdure.models.cooperation.define import NextStep, Node
from perdure.models.cooperation.failures import Failure, to_failure
from perdure.models.cooperation.live import Code, LiveOperation
from perdure.models.cooperation.moves import Handle, Invoke, Outcome, Raised, Returned, Undo
from perdure.models.cooperation.rules import readable, reasons
from perdure.models.cooperation.scope import Scope

# What runs in a step's context knows where it is: the run, the step, and which execution of it.
Enter = Callable[[Context, str, str, str], None]


class Executor:
    """Prepares code to be run."""

    def __init__(
        self, *, now: Callable[[], int], ids: Callable[[int], str], threads: ThreadPoolExecutor, enter: Enter
    ) -> None:
        self._now = now
        self._ids = ids
        self._threads = threads
        self._enter = enter

    def prepare(self, live: LiveOperation, code: Code) -> tuple[Any, Context]:
        """A coroutine that gives the outcome, and the context to run it in."""
        rolling_back = isinstance(code, Undo) or (isinstance(code, Handle) and code.rolling_back)
        now = self._now()
        scope = Scope(
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
        context = copy_context()
        self._enter(context, live.id, f"{code.name}[{len(live.events)}]", code.name)
        return self._run(live, code, scope), context

    def _new_id(self) -> str:
        return self._ids(self._now())

    def _reasons(self, live: LiveOperation, rolling_back: bool, context: StepContext) -> tuple[Failure, ...]:
        return reasons(live.view(self._now()), context, rolling_back=rolling_back)

    async def _run(self, live: LiveOperation, code: Code, scope: Scope) -> Outcome:
        try:
            said = await self._called(live.plan.nodes[code.index], live.message, code, scope)
        except asyncio.CancelledError as error:
            # If its engine did not do that, the code itself did: to a rollback it is a failure like any other.
            failed = StepFailed(f"step {code.name!r} was cancelled from inside")
            failed.__cause__ = error
            return Raised(failure=to_failure(failed, live.source))
        except Exception as error:  # noqa: BLE001 - whatever a step raises is its failure
            return Raised(failure=to_failure(error, live.source))
        return Returned(said=said, context=scope.context, emissions=tuple(scope.emissions), values=tuple(scope.values))

    async def _called(self, node: Node, message: Any, code: Code, scope: Scope) -> NextStep | None:
        match code:
            case Invoke():
                try:
                    return _checked(await self._call(node, node.invoke, scope, message), node)
                except Exception:
                    if node.cleanup is not None:
                        await self._call(node, node.cleanup, scope, message)
                    raise
            case Handle():
                assert node.handler is not None
                return _checked(await self._call(node, node.handler, scope, message, code.failure, code.attempt), node)
            case Undo():
                if code.cleanup and node.cleanup is not None:
                    await self._call(node, node.cleanup, scope, message)
                if node.undo is not None:
                    await self._call(node, node.undo, scope, message, code.cause)
        return None

    async def _call(self, node: Node, function: Callable[..., Any], *args: Any) -> Any:
        if function.__code__.co_flags & inspect.CO_COROUTINE:  # As inspect says, in a tenth of the time.
            return await function(*args)
        if node.kind in ("sleep", "round"):
            return function(*args)
        loop = asyncio.get_running_loop()
        call = partial(copy_context().run, _without_stop_iteration, function, *args)
        returned = await loop.run_in_executor(self._threads, call)
        return await returned if inspect.isawaitable(returned) else returned


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
