"""Positions of workflow code, and the requests that the code makes and withdraws.

Each request (a step, a timer, an event, a child) takes the next number in program order. The journal has its result
under that number.

The main task's requests are "1", "2", …. A task takes the next number k of its creator's branch. The task's own
requests are "k.1", "k.2", …. Plain callbacks share the branch "c.". Steps, timers and tasks share one count.
"""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any, Final, TypeVarTuple, Unpack

from perdure.errors import ForbiddenInWorkflow
from perdure.models.functions.commands import Ask, Commands, Output, Outstanding, StepRequest, TimerRequest
from perdure.models.functions.forbidden import forbidden
from perdure.models.functions.generators import GeneratorLoop
from perdure.models.functions.loop_tasks import AskFuture, DurableTimerHandle, StepFuture, TimerFuture, WorkflowFuture

# Code uses `asyncio.sleep(math.inf)` to say "until cancelled". A timer this late (the year 10000) is never requested.
NEVER_US: Final = 253_402_300_800_000_000
REFUSALS_MAX: Final = 1_000

Args = TypeVarTuple("Args")

# Before Python 3.12, `current_task` is a Python function that reads this dict.
_task_of: Final[Callable[[Any], Any]] = (
    asyncio.current_task if sys.version_info >= (3, 12) else vars(asyncio.tasks)["_current_tasks"].get
)


class AskingLoop(GeneratorLoop):
    """Gives out positions and futures, and collects the requests that become the commands of an activation."""

    __slots__ = (
        "_asks",
        "_asks_withdrawn",
        "_callback_count",
        "_fresh",
        "_new_asks",
        "_new_steps",
        "_new_timers",
        "_number",
        "_only_steps",
        "_outputs",
        "_ready",
        "_refusals",
        "_steps",
        "_steps_cancelled",
        "_timers",
        "_timers_dropped",
        "at",
        "elapsed",
        "has_compensations",
        "has_digests",
        "instances",
        "keys",
        "life",
        "output_chars",
        "payload_max",
        "rules",
    )

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.at = 0  # Microseconds since the epoch: the time of the last completion.
        # Tasks are hashed by number. asyncio keeps the tasks of all loops in one set, so each run begins to count at
        # its own number. The low bits start at zero, so that iterating over a set of a run's tasks mostly follows the
        # order of creation.
        self._number = zlib.crc32(run_id.encode()) << 16
        self._fresh = self._number  # Objects with a greater number were created in this activation.
        # Set only during an activation, because an empty deque takes 600 bytes.
        self._ready: deque[asyncio.Handle] | None = None
        self._callback_count = 0
        self._refusals = 0
        self._steps: dict[str, Any] = {}
        self._timers: dict[str, TimerFuture | DurableTimerHandle] = {}
        self._new_steps: list[StepRequest] | None = None
        self._new_timers: list[TimerRequest] | None = None
        self._steps_cancelled: list[str] | None = None
        self._timers_dropped: list[str] | None = None
        self._only_steps = True  # True as long as this activation has requested only steps and has withdrawn nothing.
        self.elapsed = 0  # The number of the last journal entry at which a timeout had elapsed.
        self.has_compensations = False
        self.has_digests = False  # Whether replays compare the arguments of calls. The run sets this.
        self._asks: dict[str, AskFuture] = {}
        self._new_asks: list[Ask] | None = None
        self._asks_withdrawn: list[str] | None = None
        self._outputs: list[Output] | None = None
        self.keys: set[str] | None = None  # the keys under which the workflow has published
        self.output_chars = 0  # characters in the outputs of this activation
        self.payload_max = 0  # How many bytes a value may have. The engine sets this.
        # The names of a graph's node executions, by position. Positions of plain callbacks are counted in the order in
        # which the callbacks run. So after a retry by hand, a position may belong to another node execution.
        self.instances: dict[str, str] | None = None
        self.awaited_by: str | None = None  # The parent that waits for this run's end. The run sets this.
        self.life = 0  # How often the run has continued as another call. The run sets this.
        self.rules = 0  # The version of the graph rules with which the run began.

    def pending(self, position: str) -> tuple[str, str] | None:
        """Return the kind and the name of the outstanding request at `position`, or None."""
        if (ask := self._asks.get(position)) is not None:
            return ask.request.kind, ask.request.name
        if (step := self._steps.get(position)) is not None:
            return "step", step.request.name
        if (timer := self._timers.get(position)) is not None:
            return "timer", timer.request.name
        return None

    def instance_of(self, position: str) -> str:
        """Return the name of the node execution at `position` in this life of the run. In a function, the name is the
        position.
        """
        if self.instances is None:
            return position
        if (instance := self.instances.get(position)) is not None:
            return instance
        # A task that does a node's work makes this request, for example "c.7.1" of the task at "c.7".
        parts = position.split(".", 2)
        outer = self.instances.get(".".join(parts[:2])) if len(parts) == 3 else None
        return position if outer is None else f"{outer}.{parts[2]}"

    def is_timeout(self, position: str) -> bool:
        """Return whether the timer at `position` is a timeout, that is, a timer of asyncio that is not a sleep."""
        timer = self._timers.get(position)
        return isinstance(timer, DurableTimerHandle) and timer.is_timeout

    @property
    def outstanding_steps(self) -> Outstanding[StepRequest]:
        return Outstanding(self._steps)

    @property
    def outstanding_timers(self) -> Outstanding[TimerRequest]:
        return Outstanding(self._timers)

    @property
    def outstanding_asks(self) -> Outstanding[Ask]:
        return Outstanding(self._asks)

    def now(self) -> int:
        """Return the time of the last completion, in microseconds since the epoch."""
        return self.at

    def time(self) -> float:
        return self.at / 1e6

    def request_step(self, name: str, call: object) -> asyncio.Future[Any]:
        """Return a future for the result of a step. Cancelling it withdraws the step."""
        if self._refusal is not None:
            return self._refused()
        position = self._next_position()
        future = StepFuture(loop=self)
        future.number = self._number = self._number + 1
        future.request = request = StepRequest(position, name, call, self.at)
        self._steps[position] = future
        if self._new_steps is None:
            self._new_steps = [request]
        else:
            self._new_steps.append(request)
        return future

    def request_timer(self, due_at: int, name: str) -> asyncio.Future[Any]:
        """Return a future for a timer. Its result is the pair (due_at, fired_at). Cancelling it drops the timer."""
        if self._refusal is not None:
            return self._refused()
        future = TimerFuture(loop=self)
        future.number = self.next_number()
        future.request = TimerRequest(self._next_position(), name, due_at, self.at)
        self._keep_timer(future)
        return future

    def ask(self, kind: str, name: str, what: object) -> asyncio.Future[Any]:
        """Return a future for any request other than a step or a timer. Cancelling it withdraws the request."""
        if self._refusal is not None:
            return self._refused()
        future = AskFuture(loop=self)
        future.number = self.next_number()
        future.request = request = Ask(self._next_position(), kind, name, what, self.at)
        self._asks[request.position] = future
        self._only_steps = False
        if kind == "compensate":
            self.has_compensations = True
        if self._new_asks is None:
            self._new_asks = [request]
        else:
            self._new_asks.append(request)
        return future

    def add_output(self, output: Output) -> asyncio.Future[Any] | None:
        """Add an output to the outputs of this activation. If requests are refused now, raises the same error as a
        request would, or returns a future that never ends.
        """
        if self._refusal is not None:
            return self._refused()
        self._only_steps = False
        if self._outputs is None:
            self._outputs = [output]
            self.output_chars = len(output.value)
        else:
            self._outputs.append(output)
            self.output_chars += len(output.value)
        return None

    @property
    def outputs(self) -> Sequence[Output]:
        """The outputs of this activation so far."""
        return self._outputs or ()

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self._call_at(self.at + _microseconds(delay), self.time() + delay, callback, args, context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self._call_at(_microseconds(when), when, callback, args, context)

    def create_future(self) -> asyncio.Future[Any]:
        future = WorkflowFuture(loop=self)
        future.number = self._number = self._number + 1
        return future

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def step_cancelled(self, future: StepFuture) -> None:
        position = future.request.position
        if self._steps.pop(position, None) is None:
            return
        self._only_steps = False
        if future.number > self._fresh:
            return
        if self._steps_cancelled is None:
            self._steps_cancelled = [position]
        else:
            self._steps_cancelled.append(position)

    def ask_cancelled(self, future: AskFuture) -> None:
        position = future.request.position
        if self._asks.pop(position, None) is None or future.number > self._fresh:
            return
        self._only_steps = False
        if self._asks_withdrawn is None:
            self._asks_withdrawn = [position]
        else:
            self._asks_withdrawn.append(position)

    def timer_cancelled(self, timer: TimerFuture | DurableTimerHandle) -> None:
        position = timer.request.position
        if self._timers.pop(position, None) is None or timer.number > self._fresh:
            return
        self._only_steps = False
        if self._timers_dropped is None:
            self._timers_dropped = [position]
        else:
            self._timers_dropped.append(position)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if isinstance(handle, DurableTimerHandle):
            self.timer_cancelled(handle)

    def _commands(self) -> Commands:
        """Return the requests that were collected since the last call."""
        steps, self._new_steps = self._new_steps, None
        if self._only_steps:
            return Commands(steps or (), True)
        self._only_steps = True
        commands = Commands()
        if steps is not None:
            commands.steps = [request for request in steps if request.position in self._steps]
        if self._new_timers is not None:
            commands.timers = [request for request in self._new_timers if request.position in self._timers]
            self._new_timers = None
        if self._new_asks is not None:
            commands.asks = [request for request in self._new_asks if request.position in self._asks]
            self._new_asks = None
        if self._asks_withdrawn is not None:
            commands.asks_withdrawn = self._asks_withdrawn
            self._asks_withdrawn = None
        if self._steps_cancelled is not None:
            commands.steps_cancelled = self._steps_cancelled
            self._steps_cancelled = None
        if self._timers_dropped is not None:
            commands.timers_dropped = self._timers_dropped
            self._timers_dropped = None
        if self._outputs is not None:
            commands.outputs = self._outputs
            self._outputs = None
            self.output_chars = 0
        return commands

    def _next_position(self) -> str:
        task: Any = _task_of(self)
        try:
            task.count = count = task.count + 1
        except AttributeError:  # This is a plain callback, or a task that this loop did not create.
            self._callback_count += 1
            return f"c.{self._callback_count}"
        return f"{task.branch}{count}"

    def _call_at(
        self, due_at: int, when: float, callback: Callable[..., object], args: Any, context: Context | None
    ) -> asyncio.TimerHandle:
        if due_at <= self.at:
            at_once = asyncio.TimerHandle(when, callback, args, self, context)
            self._make_ready(at_once)
            return at_once
        handle = DurableTimerHandle(when, callback, args, self, context)
        handle.number = self.next_number()
        if self._refusal is not None:
            self._raise_refusal()
            handle.request = TimerRequest("", "timer", due_at, self.at)
            return handle
        handle.request = TimerRequest(self._next_position(), "timer", due_at, self.at)
        if due_at < NEVER_US:
            self._keep_timer(handle)
        return handle

    def _make_ready(self, handle: asyncio.Handle) -> None:
        if self._ready is not None:
            self._ready.append(handle)
        elif not self.closed:
            raise forbidden("waking a workflow from outside (another thread, or a callback of another loop)")

    def _keep_timer(self, timer: TimerFuture | DurableTimerHandle) -> None:
        self._timers[timer.request.position] = timer
        self._only_steps = False
        if self._new_timers is None:
            self._new_timers = [timer.request]
        else:
            self._new_timers.append(timer.request)

    def _refused(self) -> asyncio.Future[Any]:
        self._raise_refusal()
        return self.create_future()

    def _raise_refusal(self) -> None:
        """Raise the error that refuses a request. After REFUSALS_MAX times return instead. Code that catches everything
        and retries forever then waits for a future that never ends.
        """
        self._refusals += 1
        if self._refusals <= REFUSALS_MAX:
            raise ForbiddenInWorkflow(self._refusal or "", run_id=self.run_id)


def _microseconds(seconds: float) -> int:
    if abs(seconds) < NEVER_US / 1e6:
        return round(seconds * 1e6)
    if seconds != seconds:
        raise ValueError("a timer needs a number of seconds, not NaN")
    return NEVER_US if seconds > 0 else -NEVER_US
