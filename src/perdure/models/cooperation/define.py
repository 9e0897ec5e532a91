"""Definitions of operations, their steps, and the ways in which a step names the next step."""

from __future__ import annotations

import hashlib
import inspect
import weakref
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import cached_property
from itertools import count
from typing import Any, Generic, Literal, TypeVar, overload

from msgspec import Struct

from perdure.errors import InvalidArguments, InvalidDefinition
from perdure.kernel.cooperation import stored_version
from perdure.models.cooperation.attempts import ONCE, Effort, effort
from perdure.models.cooperation.failures import Failure
from perdure.models.cooperation.scope import NextStep, Scope
from perdure.models.cooperation.sleeps import lasting, next_round, until
from perdure.models.cooperation.strategies import Registry, Strategy
from perdure.models.cooperation.topics import Topic, caller, checked_name
from perdure.values.arguments import Duration, checked, span_of
from perdure.values.retry import Retry

M = TypeVar("M")

Policy = Literal["halt", "continue"]

# Wrong values of these parameters are refused here, because the error can name the place of the definition.
_OWN = ("topic", "policy", "strategy", "duration", "time")
_VERSION_MAX_CHARS = 100

_NUMBERS = count()
_OPERATIONS: weakref.WeakSet[Operation[Any]] = weakref.WeakSet()


StepReturn = NextStep | None
Invoke = Callable[[Scope, M], Awaitable[StepReturn] | StepReturn]
Rollback = Callable[[Scope, M, Failure], Awaitable[None] | None]
OnChildFailure = Callable[[Scope, M, Failure, int], Awaitable[StepReturn] | StepReturn]
Finally = Callable[[Scope, M], Awaitable[None] | None]


@checked(error=InvalidDefinition, constructor=False, own=_OWN)
class OperationStep(Generic[M]):
    """A step of an operation. Decorators add its rollback function, its handler of child failures, and its finally
    function.
    """

    def __init__(
        self,
        operation: Operation[M],
        function: Invoke[M],
        name: str,
        where: str,
        *,
        transactional: bool = False,
        effort: Effort = ONCE,
    ) -> None:
        self.operation = operation
        self.function = function
        self.name = name
        self.where = where
        self.transactional = transactional
        self.effort = effort
        self.undo_effort = self.handler_effort = ONCE
        self.undo: Rollback[M] | None = None
        self.handler: OnChildFailure[M] | None = None
        self.cleanup: Finally[M] | None = None
        self.__doc__ = function.__doc__

    @overload
    def rollback(self, function: Rollback[M], /) -> Rollback[M]: ...
    @overload
    def rollback(
        self,
        /,
        *,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        heartbeat_timeout: Duration | None = None,
    ) -> Callable[[Rollback[M]], Rollback[M]]: ...
    def rollback(
        self,
        function: Rollback[M] | None = None,
        /,
        *,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        heartbeat_timeout: Duration | None = None,
    ) -> Any:
        """Set the function that undoes the step. It is called with (scope, message, cause).

        It is called after the step's children have rolled back. It has the same options as a step. If its last attempt
        fails, the rollback has failed.
        """

        def decorate(function: Rollback[M]) -> Rollback[M]:
            self._check(function, "a rollback", 3, self.undo)
            self.undo_effort = effort(
                f"the rollback of step {self.name!r} at {place(function)}",
                retry=retry,
                timeout=timeout,
                heartbeat_timeout=heartbeat_timeout,
            )
            self.undo = function
            return function

        return decorate if function is None else decorate(function)

    @overload
    def on_child_failure(self, function: OnChildFailure[M], /) -> OnChildFailure[M]: ...
    @overload
    def on_child_failure(
        self,
        /,
        *,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        heartbeat_timeout: Duration | None = None,
    ) -> Callable[[OnChildFailure[M]], OnChildFailure[M]]: ...
    def on_child_failure(
        self,
        function: OnChildFailure[M] | None = None,
        /,
        *,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        heartbeat_timeout: Duration | None = None,
    ) -> Any:
        """Set the function that handles failures of children. It is called with (scope, message, failure, attempt).

        It is called when children have failed and rolled back. If the function returns, the failure is handled. Then
        the run waits for the handlers of the messages that the function has emitted, and goes on. If these handlers
        fail too, the function is called again with the next number as `attempt`. If the function raises, the run rolls
        back.

        `scope.next_step` is the next step that the step has named. The run goes on with this step if the function
        returns nothing. If the function returns a NextStep, the run goes on with that step instead.

        In a rollback (`scope.rolling_back`), the function is called in the same way if children cannot be rolled back.
        The function has the same options as a step. `attempt` counts failures of children, not attempts of this
        function.
        """

        def decorate(function: OnChildFailure[M]) -> OnChildFailure[M]:
            self._check(function, "a handler of child failures", 4, self.handler)
            self.handler_effort = effort(
                f"the handler of child failures of step {self.name!r} at {place(function)}",
                retry=retry,
                timeout=timeout,
                heartbeat_timeout=heartbeat_timeout,
            )
            self.handler = function
            return function

        return decorate if function is None else decorate(function)

    def finally_(self, function: Finally[M]) -> Finally[M]:
        """Set the function that is called exactly once in any case. It is called with (scope, message).

        It is called after the step and its children have succeeded, when the step raises, or while the step is rolled
        back. After this function, the run goes to the next step that the step has named.
        """
        self._check(function, "a finally", 2, self.cleanup)
        self.cleanup = function
        return function

    def _check(self, function: Callable[..., Any], what: str, takes: int, known: Callable[..., Any] | None) -> None:
        self.operation.check_open()
        if known is not None:
            raise InvalidDefinition(
                f"step {self.name!r} at {self.where} has {what} already: {place(known)}; {place(function)} is another"
            )
        _check_function(function, f"{what} of step {self.name!r}", takes)
        is_async = inspect.iscoroutinefunction(self.function)
        if self.transactional and inspect.iscoroutinefunction(function) != is_async:
            form = "an `async def`" if is_async else "a plain `def`"
            raise InvalidDefinition(
                f"step {self.name!r} at {self.where} is transactional and {form}: {what} is called in a transaction"
                f" too, so {place(function)} must be {form} as well"
            )

    def __repr__(self) -> str:
        return f"<step {self.name!r} of operation {self.operation.name!r}>"


class Node(Struct, frozen=True, kw_only=True):
    """One entry of an operation's plan. A step with a finally function has two entries. A scheduled step has two
    entries too.
    """

    index: int
    name: str
    kind: Literal["step", "finally", "sleep", "round"]
    invoke: Callable[[Scope, Any], Any]
    undo: Callable[[Scope, Any, Failure], Any] | None = None
    handler: Callable[[Scope, Any, Failure, int], Any] | None = None
    cleanup: Callable[[Scope, Any], Any] | None = None
    transactional: bool = False
    effort: Effort = ONCE
    undo_effort: Effort = ONCE
    handler_effort: Effort = ONCE


class Plan(Struct, frozen=True, kw_only=True):
    """An operation in the form that the machine uses."""

    handler: str
    policy: Policy
    strategy: Strategy
    nodes: tuple[Node, ...]
    entries: tuple[int, ...]  # the index at which each declared step begins

    def index_of(self, name: str) -> int:
        """Return the index of the entry with this name. Raises LookupError."""
        for node in self.nodes:
            if node.name == name:
                return node.index
        raise LookupError(name)

    def said(self, target: int | None, index: int) -> NextStep:
        """Return the NextStep that names an index in the plan. This is the reverse of `target`."""
        if target is None:
            return NextStep("go_on")
        if target == index:
            return NextStep("repeat")
        if target >= len(self.nodes):
            return NextStep("go_to", target)
        name = self.nodes[target].name
        is_scheduled = target + 1 < len(self.nodes) and name == f"{self.nodes[target + 1].name} (scheduled)"
        return NextStep("go_to", self.nodes[target + 1].name if is_scheduled else name)

    def named(self, said: NextStep | None) -> NextStep | None:
        """Return a NextStep with a name instead of a number. After a change of the code, a number may mean another
        step.
        """
        if said is None or type(said.target) is not int or not 0 <= said.target < len(self.entries):
            return said
        return self.said(self.entries[said.target], -1)

    def target(self, said: NextStep | None, index: int) -> int | None:
        """Return the index in the plan that a NextStep names. Return None for the following step. Raises
        InvalidArguments.
        """
        if said is None or said.kind == "go_on":
            return None
        if said.kind == "repeat":
            return index
        if type(said.target) is int and 0 <= said.target < len(self.entries):  # `True` does not count as a number.
            return self.entries[said.target]
        for entry in self.entries:
            # A scheduled step begins with the entry of its sleep, but is named by the name of the step.
            scheduled = entry + 1 if self.nodes[entry].name == f"{said.target} (scheduled)" else entry
            if self.nodes[scheduled].name == said.target:
                return entry
        names = ", ".join(repr(self.nodes[entry].name) for entry in self.entries)
        raise InvalidArguments(f"operation {self.handler!r} has no step {said.target!r} to go to; it has {names}")


@checked(error=InvalidDefinition, own=_OWN)
class Operation(Generic[M]):
    """Handles the messages of a topic in steps.

    A step begins when all handlers of the previous step's messages have ended. If a handler fails, all work is undone
    in reverse order, through the whole hierarchy.

    `policy` says what happens if some work cannot be undone. "halt" stops the rollback there, and "continue" goes on
    with the remaining steps. In both cases the run ends as rollback_failed. `strategy` says which handlers the run
    waits for.

    A run stays with the `version` that began it. Only an engine with that version goes on with the run. All versions of
    an operation are the same handler. Any version may begin new runs. If an engine has several versions, the version
    that is listed last begins new runs.
    """

    def __init__(
        self,
        name: str,
        topic: Topic[M],
        *,
        version: str = "",
        policy: Policy = "halt",
        strategy: Strategy | None = None,
    ) -> None:
        self.where = caller()
        self.name = checked_name(name, "operation", self.where)
        self.version = _checked_version(version, name, self.where)
        if not isinstance(topic, Topic):
            raise InvalidDefinition(f"operation {name!r} at {self.where} handles a Topic, not {topic!r:.80}")
        if policy not in ("halt", "continue"):
            raise InvalidDefinition(
                f'operation {name!r} at {self.where}: policy is "halt" or "continue", not {policy!r}'
            )
        if strategy is not None and not isinstance(strategy, Strategy):
            raise InvalidDefinition(
                f"operation {name!r} at {self.where}: a strategy is an object of a subclass of Strategy, "
                f"not {strategy!r:.80}"
            )
        self.topic = topic
        self.policy: Policy = policy
        self.strategy = strategy or Registry()
        self._declared: list[tuple[OperationStep[M] | None, list[_Draft]]] = []
        self._number = next(_NUMBERS)
        _OPERATIONS.add(self)

    @overload
    def step(self, function: Invoke[M], /) -> OperationStep[M]: ...
    @overload
    def step(
        self,
        /,
        *,
        name: str | None = None,
        at: datetime | Callable[[M], datetime] | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        heartbeat_timeout: Duration | None = None,
        transactional: bool = False,
    ) -> Callable[[Invoke[M]], OperationStep[M]]: ...
    def step(
        self,
        function: Invoke[M] | None = None,
        /,
        *,
        name: str | None = None,
        at: datetime | Callable[[M], datetime] | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        heartbeat_timeout: Duration | None = None,
        transactional: bool = False,
    ) -> Any:
        """Make a function the operation's next step. The function gets the scope and the message, and may return a
        NextStep.

        With a `retry` policy, a step that raises is tried again. Without a policy, the run rolls back at once.
        `timeout` bounds each attempt, beginning when its body begins. `heartbeat_timeout` bounds the time without a
        heartbeat (`current_step().heartbeat()`). All attempts have the same idempotency key. A step that raises
        InfrastructureFailed is always tried again.

        With `at`, the step does not begin before that time. The time may depend on the message. A `transactional` step
        writes through `current_step().connection`. These writes, and everything that the step asks of its scope, are
        committed together once, or not at all. The same applies to the step's rollback function, its finally function,
        and its handler of child failures.
        """

        def decorate(function: Invoke[M]) -> OperationStep[M]:
            self.check_open()
            _check_function(function, f"a step of operation {self.name!r}", 2)
            called = self._unused(name or str(getattr(function, "__name__", "")), place(function))
            tried = effort(
                f"step {called!r} at {place(function)}",
                retry=retry,
                timeout=timeout,
                heartbeat_timeout=heartbeat_timeout,
            )
            step = OperationStep(self, function, called, place(function), transactional=transactional, effort=tried)
            before = [] if at is None else [_sleeping(f"{called} (scheduled)", until(at))]
            self._declared.append((step, before))
            return step

        return decorate if function is None else decorate(function)

    def sleep(self, duration: Duration | Callable[[M], Duration], *, name: str | None = None) -> None:
        """Let the operation wait here before the next step. The duration may depend on the message."""
        if not callable(duration):
            span_of(
                duration, f"operation {self.name!r} at {caller()}: the duration of sleep()", error=InvalidDefinition
            )
        self._declare(_sleeping(self._name_for("sleep", name, caller()), lasting(duration)))

    def sleep_until(self, time: datetime | Callable[[M], datetime], *, name: str | None = None) -> None:
        """Let the operation wait here until a time. The time may depend on the message."""
        self._declare(_sleeping(self._name_for("sleep", name, caller()), until(time)))

    def periodic(self, every: Duration, *, count: int) -> None:
        """Let the operation run `count` times.

        Each run waits here for `every`. Then it emits its message again on the global scope, unless it is the last run.
        After that it does its own work.

        So a run starts the next run before its own work. Runs may overlap, and a run that fails does not end the
        series.
        """
        where = caller()
        if not span_of(every, "every", error=InvalidDefinition) or count < 1:
            raise InvalidDefinition(
                f"operation {self.name!r} at {where}: periodic takes a duration longer than nothing and a count of at "
                f"least 1, not {every!r} and {count!r}"
            )
        self._declare(_sleeping(self._name_for("period", None, where), lasting(every)))
        self._declare(
            _Draft(self._name_for("next round", None, where), "round", next_round(self.topic, self.name, count))
        )

    def _declare(self, draft: _Draft) -> None:
        self.check_open()
        self._declared.append((None, [draft]))

    def _names(self) -> set[str]:
        return {step.name if step is not None else drafts[0].name for step, drafts in self._declared}

    def _name_for(self, kind: str, name: str | None, where: str) -> str:
        if name is not None:
            return self._unused(name, where)
        taken, number = self._names(), 1
        while (found := kind if number == 1 else f"{kind} {number}") in taken:
            number += 1
        return found

    def _unused(self, name: str, where: str) -> str:
        checked_name(name, f"step of operation {self.name!r}", where)
        if name in self._names():
            raise InvalidDefinition(f"operation {self.name!r} has two steps {name!r}; the second is at {where}")
        return name

    model = "operation"

    @property
    def stored_version(self) -> str:
        """The topic and the version, in the form that runs and engines store beside the name."""
        return stored_version(self.topic.name, self.version)

    @cached_property
    def fingerprint(self) -> str:
        """A hash that changes when the steps or the schema of the messages change."""
        names = "/".join(f"{node.kind}:{node.name}" for node in self.plan.nodes)
        names += f"/{self.topic.schema}"
        return hashlib.sha256(names.encode()).hexdigest()[:16]

    def check_open(self) -> None:
        if "plan" in self.__dict__:
            raise InvalidDefinition(
                f"operation {self.name!r} at {self.where} is in use already: define all of it before an engine takes it"
            )

    @cached_property
    def plan(self) -> Plan:
        """The steps in order, in the form that the machine uses. After the first read the operation cannot be
        changed.
        """
        if not self._declared:
            raise InvalidDefinition(f"operation {self.name!r} at {self.where} has no steps")
        taken = self._names()
        nodes: list[Node] = []
        entries: list[int] = []

        def add(draft: _Draft, step: OperationStep[M] | None = None, *, is_transactional: bool = False) -> None:
            nodes.append(
                Node(
                    index=len(nodes),
                    name=draft.name,
                    kind=draft.kind,
                    invoke=draft.invoke,
                    undo=step.undo if step else None,
                    handler=step.handler if step else None,
                    cleanup=step.cleanup if step else None,
                    transactional=is_transactional,
                    effort=step.effort if step else ONCE,
                    undo_effort=step.undo_effort if step else ONCE,
                    handler_effort=step.handler_effort if step else ONCE,
                )
            )

        for step, drafts in self._declared:
            entries.append(len(nodes))
            for draft in drafts:
                add(draft)
            if step is not None:
                add(_Draft(step.name, "step", step.function), step, is_transactional=step.transactional)
                if step.cleanup is not None:
                    name = f"{step.name} (finally)"
                    while name in taken:
                        name += "$"
                    add(_Draft(name, "finally", step.cleanup), is_transactional=step.transactional)
        return Plan(
            handler=self.name, policy=self.policy, strategy=self.strategy, nodes=tuple(nodes), entries=tuple(entries)
        )

    def __repr__(self) -> str:
        version = f" version {self.version!r}" if self.version else ""
        return f"<operation {self.name!r}{version} at {self.where}>"


def decorated_operations() -> list[Operation[Any]]:
    """Return all operations that were defined and still exist, in the order of their definitions."""
    return sorted(_OPERATIONS, key=lambda operation: operation._number)  # pyright: ignore[reportPrivateUsage]


class _Draft:
    __slots__ = ("invoke", "kind", "name")

    def __init__(
        self, name: str, kind: Literal["step", "finally", "sleep", "round"], invoke: Callable[[Scope, Any], Any]
    ) -> None:
        self.name = name
        self.kind: Literal["step", "finally", "sleep", "round"] = kind
        self.invoke = invoke


def _sleeping(name: str, sleep: Callable[[Scope, Any], None]) -> _Draft:
    return _Draft(name, "sleep", sleep)


def place(function: Callable[..., Any]) -> str:
    """Return the file and the line of a function."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(function)


def _check_function(function: Any, what: str, takes: int) -> None:
    if not inspect.isfunction(function):
        raise InvalidDefinition(f"{what} is a function, not {function!r:.80}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidDefinition(f"{what} cannot be the generator {function.__qualname__!r} at {place(function)}")
    try:
        inspect.signature(function).bind(*[None] * takes)
    except TypeError as error:
        names = ", ".join(("scope", "message", "failure", "attempt")[:takes])
        raise InvalidDefinition(
            f"{what} takes ({names}), which {function.__qualname__!r} at {place(function)} does not: {error}"
        ) from None


def _checked_version(version: str, name: str, where: str) -> str:
    given: object = version
    if not isinstance(given, str) or len(given) > _VERSION_MAX_CHARS:
        raise InvalidDefinition(
            f"the version of operation {name!r} is a text of up to {_VERSION_MAX_CHARS} characters, "
            f"not {version!r:.80} ({where})"
        )
    return checked_name(given, f"version of operation {name!r}", where) if given else ""
