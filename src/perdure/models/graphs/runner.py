"""Runs a graph on a run's deterministic loop. The runner is a thin shell around the machine, which decides everything.

The journal has the results of nodes, as steps, timers, events and children. A replay computes the tokens, the context
and the joins from the journal. All requests that follow from one completion are made in the same activation, so they
are committed together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from perdure.errors import InvariantViolated, StepFailed
from perdure.models.functions.context import require_loop
from perdure.models.functions.loop import WorkflowLoop
from perdure.models.functions.loop_tasks import StepFuture, WorkflowTask
from perdure.models.graphs.decisions import Decisions, TimerKey
from perdure.models.graphs.kinds.artifact import noted
from perdure.models.graphs.kinds.base import Brought, Done, Ended, Task, Work
from perdure.models.graphs.machine import Machine
from perdure.models.graphs.plan import Plan
from perdure.models.graphs.records import Pins
from perdure.models.graphs.rules_versions import KEYS_RULES, PIECES_RULES, SLICES_RULES
from perdure.models.graphs.spec import GraphLimits
from perdure.models.graphs.timeouts import join_timed_out, out_of_time
from perdure.models.graphs.tokens import Token
from perdure.values.replicas import failure_of

IN_A_ROW_MAX: Final = GraphLimits().in_a_row
# The number of nodes that one activation begins. More nodes would block the process for too long. The remaining nodes
# begin in further activations. Each of these activations needs a timer that is due at once.
BEGUN_AT_ONCE_MAX: Final = 250
_BEGUN_AT_ONCE_BEFORE_MAX: Final = 1_000  # under earlier rules
# About how many tokens one activation creates, moves or ends. The remaining tokens follow in the next activation.
# Results that arrive before the routing is done wait, so that the order is always the same.
ROUTED_AT_ONCE_MAX: Final = 1_000
_AT_ONCE_S: Final = 1e-6


async def interpret(plan: Plan, input: Any) -> Any:
    """Run a graph to its end, and return its output. If the run fails, raises its failure."""
    return await GraphRunner(plan, input, require_loop("a graph")).run()


class GraphRunner:
    """One run of a graph in memory."""

    def __init__(self, plan: Plan, input: Any, loop: WorkflowLoop, machine: Machine | None = None) -> None:
        self._plan = plan
        self._input = input
        self._loop = loop
        self._machine = machine or Machine(plan, input, loop.rules)
        if plan.limits.in_a_row == GraphLimits().in_a_row:
            self._machine.tokens.in_a_row_max = IN_A_ROW_MAX
        self._end: asyncio.Future[Any] = loop.create_future()
        self._busy: dict[int, asyncio.Future[Any]] = {}  # the running work of each token
        self._timers: dict[TimerKey, asyncio.TimerHandle] = {}
        self._next: deque[Callable[[], Decisions]] = deque()
        # tokens whose nodes must begin, each with the id that it had when it was added
        self._waiting: deque[tuple[int, Token]] = deque()
        self._begun_max = BEGUN_AT_ONCE_MAX if loop.rules >= PIECES_RULES else _BEGUN_AT_ONCE_BEFORE_MAX
        self._room = self._begun_max
        self._is_more_due = False
        self._pins = Pins(loop)
        self._visits: dict[str, int] = {}  # how often a node was begun in a branch

    async def run(self) -> Any:
        if self._plan.timeout_s is not None:
            self._loop.call_later(self._plan.timeout_s, self._handle, self._out_of_time)
        self._handle(self._machine.begin)
        # The first activation begins nodes before the store knows by which rules the run began. These nodes are the
        # same in every attempt of the run, so their keys can use the position.
        if self._loop.rules >= KEYS_RULES:
            self._loop.instances = {}
        return await self._end

    def _handle(self, result: Callable[[], Decisions]) -> None:
        """Pass a result to the machine, and carry out its decisions. Nodes that end at once give further results."""
        self._next.append(result)
        if len(self._next) == 1:
            self._route()

    def _route(self) -> None:
        """Pass the waiting results to the machine, up to a bound. The remaining results follow in another
        activation.
        """
        self._room = self._begun_max
        self._machine.set_time(self._loop.now())
        enough = self._machine.tokens.work + ROUTED_AT_ONCE_MAX if self._loop.rules >= SLICES_RULES else None
        try:
            while self._next and not self._end.done():
                if enough is not None and self._machine.tokens.work >= enough:
                    self._loop.call_later(_AT_ONCE_S, self._route)
                    return
                decided = self._next[0]()
                self._perform(decided)
                if self._machine.is_growing:
                    self._next[0] = self._machine.grow
                else:
                    self._next.popleft()
            self._next.clear()
        except Exception as error:  # noqa: BLE001 - in a callback it would only be logged
            self._next.clear()
            if not self._end.done():
                self._end.set_exception(error)

    def _perform(self, decided: Decisions) -> None:
        if self._end.done():
            return
        if decided.ended:
            self._finish(decided)
            return
        for token_id in decided.cancel:
            if (running := self._busy.pop(token_id, None)) is not None:
                running.cancel()
        for key in decided.timers_dropped:
            self._timers.pop(key).cancel()
        for key, seconds in decided.timers:
            self._timers[key] = self._loop.call_later(seconds, self._due, key)
        self._waiting.extend((token.id, token) for token in decided.run)
        if not self._is_more_due:
            self._begin_next()

    def _begin_next(self) -> None:
        tokens = self._machine.tokens.by_id
        while self._waiting and self._room:
            token_id, token = self._waiting.popleft()
            if token_id in tokens:  # The token may have ended before its node began.
                self._room -= 1
                self._begin(token)
        if not self._waiting:
            # Only nodes that begin together are split into pieces, not nodes one after the other.
            self._room = self._begun_max
        else:
            self._is_more_due = True
            self._loop.call_later(_AT_ONCE_S, self._handle, self._more)

    def _more(self) -> Decisions:
        self._is_more_due = False
        return Decisions([], [], [], [])

    def _finish(self, decided: Decisions) -> None:
        failure = decided.failure
        if failure is None:
            self._end.set_result(decided.output)
        # Neither of these exceptions can be raised unchanged.
        elif isinstance(failure, StopIteration | asyncio.CancelledError):
            self._end.set_exception(StepFailed(f"{type(failure).__qualname__}: {failure}"))
        else:
            self._end.set_exception(failure)

    def _begin(self, token: Token) -> None:
        node = self._plan.nodes[token.node]
        work: Work = node.work
        task = Task(self._loop, self._input, token.view(self._input), node.place, self._pins)
        try:
            begun = work.begin(task)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is how the node failed
            self._next.append(partial(self._machine.failed, token.id, error, about(error, token.node)))
            return
        if isinstance(begun, Done):
            self._next.append(partial(self._machine.completed, token.id, begun.value))
        elif isinstance(begun, Ended):
            self._next.append(partial(self._machine.terminate, token.id, begun.failure))
        else:
            future = self._loop.create_task(begun) if isinstance(begun, Coroutine) else begun
            self._busy[token.id] = future
            self._name_instance(token, future)
            future.add_done_callback(partial(self._done, token))

    def _name_instance(self, token: Token, future: asyncio.Future[Any]) -> None:
        """Name a node execution by its node, its branches and its visit. So a retry gives it the same name, in whatever
        order nodes run.
        """
        name = token.path
        self._visits[name] = visit = self._visits.get(name, 0) + 1
        if self._loop.instances is not None and (position := _position_of(future)) is not None:
            self._loop.instances[position] = f"{name}#{visit}"

    def _done(self, token: Token, future: asyncio.Future[Any]) -> None:
        token.in_a_row = 0
        if self._loop.instances:
            self._loop.instances.pop(_position_of(future) or "", None)
        if self._busy.pop(token.id, None) is None or self._end.done():
            if not future.cancelled():
                future.exception()  # The token has ended, so nothing handles the exception.
            return
        if future.cancelled():
            message = f"run {self._loop.run_id}: what ran for token {token.id} was cancelled by nobody"
            self._end.set_exception(InvariantViolated(message, run_id=self._loop.run_id))
        elif (error := future.exception()) is not None:
            self._handle(partial(self._machine.failed, token.id, error, about(error, token.node)))
        else:
            self._handle(partial(self._completed, token, future.result()))

    def _completed(self, token: Token, value: Any) -> Decisions:
        if isinstance(value, Brought):
            noted(token.view(self._input).scope.root, value.staged)
            value = value.value
        return self._machine.completed(token.id, value)

    def _due(self, key: TimerKey) -> None:
        del self._timers[key]
        self._handle(partial(self._join_due, key))

    def _join_due(self, key: TimerKey) -> Decisions:
        decided = self._machine.due(key)
        join_timed_out(decided.failure)
        return decided

    def _out_of_time(self) -> Decisions:
        return self._machine.give_up(out_of_time(self._plan.place, self._plan.timeout_s))


def _position_of(future: asyncio.Future[Any]) -> str | None:
    """Return the position of a node's step, or of the task that does its work."""
    if isinstance(future, StepFuture):
        return future.request.position
    return future.branch.removesuffix(".") if isinstance(future, WorkflowTask) else None


def about(error: BaseException, node: str) -> dict[str, Any]:
    """Return the value of `error` that expressions see after a failure."""
    failure = failure_of(error)
    if failure is not None:
        return {"type": failure.type.rpartition(":")[2].rpartition(".")[2], "message": failure.message, "node": node}
    return {"type": type(error).__name__, "message": str(error), "node": node}
