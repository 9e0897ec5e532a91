"""The scope of a step. The step sees its run through the scope, and makes its requests with it: emissions, context,
deadlines and return values.

A scope only notes the requests. All requests of a step are written in one commit after the step has returned. If the
step raises, none of its requests are written.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar

import msgspec
from msgspec import Struct

from perdure.errors import HierarchyTooDeep, InvalidArguments, Misuse
from perdure.kernel.lineages import Lineage, depth_of
from perdure.models.cooperation.context import (
    EMPTY,
    TOKENS,
    CancellationToken,
    Context,
    Key,
    ReadableKey,
    check_name,
    levels_above,
    token_names,
)
from perdure.models.cooperation.deadlines import bounded, independent, time_of
from perdure.models.cooperation.failures import Failure, gave_up, source_of
from perdure.models.cooperation.message_events import CALL_TOPIC, SLEEP_TOPIC
from perdure.models.cooperation.return_values import Returns, ReturnValue, read_value
from perdure.values.arguments import Duration, checked, span_of
from perdure.values.json import ANY_SIZE, to_text

if TYPE_CHECKING:
    from perdure.models.cooperation.topics import Topic

M = TypeVar("M")
V = TypeVar("V")

HIERARCHY_LEVELS_MAX: Final = 1_000  # the default; an engine may allow fewer or more

_NAME_CHARS_MAX: Final = 500


def allowed_levels(levels_max: int, *, rolling_back: bool) -> int:
    """Return how many levels a hierarchy may have. Messages of a rollback may be a tenth further down. Without this,
    the last level could not be undone.
    """
    return levels_max + (levels_max // 10 + 1 if rolling_back else 0)


class Callee(Protocol):
    """A function or a graph."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def model(self) -> str: ...


class WorkflowCall(Protocol):
    """A call of a workflow: the workflow with its arguments."""

    @property
    def workflow(self) -> Callee: ...

    def input(self, payload_max: int) -> str:
        """Return the arguments as JSON of at most `payload_max` bytes."""
        ...


class Call(Struct, frozen=True, kw_only=True, gc=False):
    """A function or a graph that a step starts."""

    workflow: str
    version: str
    model: str
    input: str


class NextStep(Struct, frozen=True):
    """The choice of the next step: the following step, this step again, or another step.

    Another step is given by its number, counted from 0, or by its name.
    """

    kind: Literal["go_on", "repeat", "go_to"]
    target: int | str | None = None


class Emission(Struct, frozen=True, kw_only=True, gc=False):
    """A message to emit, with the context with which its handlers begin.

    `root` is set for an emission on the global scope. It is a new id, which is the lineage of the emission. The message
    of a `call` has no handlers. It has one run, whose id is the message's id.
    """

    message_id: str
    topic: str
    payload: str
    context: Context
    root: str | None = None
    call: Call | None = None

    def __await__(self) -> Generator[Any, Any, str]:
        """Return the message's id at once, because emitting waits for nothing. In a plain function, you do not need to
        await it.
        """
        yield from ()
        return self.message_id


@checked(constructor=False)
class Scope:
    """One step's view of its run. Each call of a step, a rollback function or a handler of child failures gets a new
    scope.
    """

    def __init__(
        self,
        *,
        lineage: Lineage,
        handler: str,
        step: str,
        iteration: int,
        context: Context,
        now: int,
        ids: Callable[[], str],
        rolling_back: bool = False,
        next_step: NextStep | None = None,
        returned: Callable[[], Returns] = Returns,
        reasons: Callable[[Context], Sequence[Failure]] = lambda _: (),
        levels_max: int = HIERARCHY_LEVELS_MAX,
    ) -> None:
        self.lineage = lineage
        self.handler = handler
        self.step = step
        self.iteration = iteration  # how many times in a row this step has run before
        self.context = context
        self.rolling_back = rolling_back
        self.next_step = next_step  # the step that the step has named, for its handler of child failures
        self.emissions: list[Emission] = []
        self.values: list[ReturnValue] = []
        self.is_over = False  # whether the requests of the step are being written
        self._now = now
        self._ids = ids
        self._names: set[str] = set()  # the names of the values that it has returned
        self._returned = returned
        self._reasons = reasons
        self._levels_max = levels_max

    @property
    def run_id(self) -> str:
        return self.lineage[-1]

    @property
    def now(self) -> int:
        """The time at which the step began, in microseconds since the epoch."""
        return self._now

    @property
    def tokens(self) -> tuple[CancellationToken, ...]:
        """The cancellation tokens of this run.

        They are the tokens of the emitter, and the tokens that the message got when it was emitted.
        """
        return tuple(CancellationToken(name) for name in token_names(self.context))

    def emit(
        self,
        topic: Topic[M],
        message: M,
        *,
        context: Context = EMPTY,
        deadline: datetime | Duration | None = None,
        rollback_deadline: datetime | Duration | None = None,
        delay: Duration | None = None,
        tokens: Iterable[CancellationToken] = (),
    ) -> Emission:
        """Emit a message in this scope. Its handlers become this run's children, and the next step waits for them.

        The handlers, and all runs below them, must end by the `deadline`. If they are rolled back, the rollback must
        end by the `rollback_deadline`. If there are several deadlines, the earliest counts. The handlers do not begin
        before the `delay` has passed. The handlers have these `tokens` and the tokens of this run. They give up when
        one of the tokens is cancelled.

        Raises InvalidArguments, UnstorableValue. Raises HierarchyTooDeep if the handlers would be more than
        `hierarchy_levels_max` levels below the root.
        """
        limits = self._bounded(context, deadline, rollback_deadline, delay, tokens)
        return self._emit(topic, message, limits, None)

    def emit_globally(
        self,
        topic: Topic[M],
        message: M,
        *,
        context: Context = EMPTY,
        deadline: datetime | Duration | None = None,
        rollback_deadline: datetime | Duration | None = None,
        delay: Duration | None = None,
        tokens: Iterable[CancellationToken] = (),
    ) -> Emission:
        """Emit a message as the root of a hierarchy of its own.

        This run does not wait for the hierarchy, and the hierarchy is not rolled back with this run. The message is
        emitted in the commit that has all requests of the step, or not at all.

        The hierarchy has only the given `tokens`. Pass `scope.tokens` if the hierarchy must be cancelled together with
        this run. All other options, and the errors, are as for `emit`.
        """
        limits = self._bounded(context, deadline, rollback_deadline, delay, tokens)
        return self._emit(topic, message, limits, self._ids())

    def _bounded(
        self,
        context: Context,
        deadline: datetime | Duration | None,
        rollback_deadline: datetime | Duration | None,
        delay: Duration | None,
        tokens: Iterable[CancellationToken] = (),
    ) -> Context:
        if deadline is None and rollback_deadline is None and delay is None and tokens == ():
            return context
        return bounded(
            context,
            now=self._now,
            source=source_of(self.handler, self.run_id),
            deadline=deadline,
            rollback_deadline=rollback_deadline,
            delay=delay,
            tokens=tokens,
        )

    def _check_level(self, what: str) -> None:
        """Raise HierarchyTooDeep if children of this run would be too far down."""
        # This is the level of the children, because the lineage of a run of the first level has two ids.
        level = depth_of(self.lineage) + levels_above(self.context)
        allowed = allowed_levels(self._levels_max, rolling_back=self.rolling_back)
        if level > allowed:
            raise HierarchyTooDeep(
                f"step {self.step!r} of {self.handler!r} {what}, {level:,} levels below the root of its hierarchy, "
                f"which may have {allowed:,} levels. If operations emit to each other without end, make one of them "
                "stop, or use scope.emit_globally(…), which begins a new hierarchy. If the hierarchy must be this "
                "deep, set Limits(hierarchy_levels_max=…)",
                level=level,
                levels_max=allowed,
            )

    def _check_not_over(self, what: str) -> None:
        """Raise Misuse if the step has ended, because its requests would be lost."""
        if self.is_over:
            raise Misuse(
                f"step {self.step!r} of {self.handler!r} {what} after it has ended, which would be lost: await "
                "all that the step has begun before it returns, and do not use its scope in later steps"
            )

    def _emit(self, topic: Topic[M], message: M, context: Context, root: str | None) -> Emission:
        checked_emission(topic, context)
        self._check_not_over(f"emits on topic {topic.name!r}")
        if root is None:
            self._check_level(f"emits on topic {topic.name!r}")
        own = independent(self.context) if root is not None else self._inherited()
        emission = Emission(
            message_id=self._ids(),
            topic=topic.name,
            payload=topic.write(message),
            context=own.plus(context),
            root=root,
        )
        self.emissions.append(emission)
        return emission

    def _inherited(self) -> Context:
        """Return the context for children. The tokens of a run that rolls back do not stop the messages of the
        rollback.
        """
        return self.context.without(TOKENS) if self.rolling_back and self.tokens else self.context

    def start(self, call: WorkflowCall) -> Emission:
        """Start a function or a graph as a child: `scope.start(charge(order.id))`. Awaiting the result returns the
        run's id.

        The next step waits until the workflow has ended. It gets the workflow's result with `returned(name of the
        workflow, type)`. If the workflow fails, this counts as the failure of a child. When this step is rolled back,
        the calls that the workflow has registered with `compensate` are made. This works even long after the workflow
        has succeeded. Raises InvalidArguments, UnstorableValue.
        """
        if not hasattr(call, "workflow") or not hasattr(call, "input"):
            raise Misuse(f"scope.start() takes a called workflow, as in scope.start(charge('o-17')), not {call!r:.80}")
        workflow = call.workflow
        self._check_not_over(f"starts {workflow.name!r}")
        self._check_level(f"starts {workflow.name!r}")
        what = Call(workflow=workflow.name, version=workflow.version, model=workflow.model, input=call.input(ANY_SIZE))
        emission = Emission(
            message_id=self._ids(),
            topic=CALL_TOPIC,
            payload=msgspec.json.encode({"workflow": what.workflow, "version": what.version}).decode(),
            context=self._inherited(),
            call=what,
        )
        self.emissions.append(emission)
        return emission

    def sleep(self, duration: Duration) -> None:
        """Let the next step wait for a duration. Numbers are seconds. Raises InvalidArguments."""
        self._sleep_until(
            time_of(span_of(duration, "the duration of scope.sleep()"), self._now, "the end of the sleep")
        )

    def sleep_until(self, time: datetime) -> None:
        """Let the next step wait until a time. Raises InvalidArguments."""
        self._sleep_until(time_of(time, self._now, "a time to sleep until"))

    def _sleep_until(self, at: int) -> None:
        self._check_not_over("sleeps")
        self.emissions.append(
            Emission(message_id=self._ids(), topic=SLEEP_TOPIC, payload=f'{{"until":{at}}}', context=self.context)
        )

    def get(self, key: ReadableKey[V]) -> V | None:
        return self.context.get(key)

    def put(self, key: Key[V], value: V) -> None:
        """Set a value for later steps, and for messages that are emitted from now on."""
        self._check_not_over("puts a value into its context")
        self.context = self.context.put(key, value)

    def deadline(self, when: datetime | Duration, *, path: Literal["happy", "rollback", "both"] = "happy") -> None:
        """Set a deadline for later steps, and for messages that are emitted from now on. The earliest deadline counts.

        A run that misses the deadline on the happy path rolls back. A run that misses the deadline while it rolls back
        ends as rollback_failed.
        """
        if path not in ("happy", "rollback", "both"):
            raise InvalidArguments(f'a deadline is for the path "happy", "rollback" or "both", not {path!r}')
        self.context = self._bounded(
            self.context, None if path == "rollback" else when, None if path == "happy" else when, None
        )

    def give_up_if_needed(self) -> None:
        """If the run was cancelled or its deadline has passed, raise an error that makes the run roll back.

        Call this in long steps. Between steps, the engine checks it anyway.
        """
        reasons = self._reasons(self.context)
        if reasons:
            raise gave_up(reasons, source_of(self.handler, self.run_id)).error()

    def return_value(self, name: str, value: Any) -> None:
        """Return a value to the parent. The parent can read it once this run has committed.

        Raises Misuse if the run has already returned a value of this name. Raises InvalidArguments, UnstorableValue.
        """
        check_name(name, "a return value", _NAME_CHARS_MAX)
        self._check_not_over(f"returns {name!r}")
        if name in self._names:
            raise Misuse(f"{self.handler!r} has returned {name!r} before: a name can be returned once per run")
        text = to_text(value, f"the return value {name!r} of {self.handler!r}", ANY_SIZE)
        self._names.add(name)
        self.values.append(ReturnValue(lineage=self.lineage, handler=self.handler, variable=name, value=text))

    def returned(
        self, name: str, type: type[V], *, handler: str | None = None, topic: Topic[Any] | str | None = None
    ) -> list[V]:
        """Return the values that this run's children have returned under a name, in the order of emission. Only
        children that have committed count.

        With a `handler`, return only the values of that operation's runs. With a `topic`, return only the values of
        children that handle a message of that topic. Raises UnstorableValue if a value does not fit the type.
        """
        wanted = topic if topic is None or isinstance(topic, str) else topic.name
        found = self._returned()
        return [
            read_value(value, type)
            for value in found.values
            if value.variable == name
            and handler in (None, value.handler)
            and wanted in (None, found.topics.get(value.lineage[-1]))
        ]


def checked_emission(topic: object, context: object) -> None:
    """Raise InvalidArguments if `topic` is not a Topic, or `context` is not a Context."""
    if not (hasattr(topic, "name") and hasattr(topic, "write")):
        raise InvalidArguments(f'emit() takes a Topic, as in emit(Topic("orders", Order), order), not {topic!r:.80}')
    if not isinstance(context, Context):
        raise InvalidArguments(f"context takes a Context, as in Context().put(TENANT, 'acme'), not {context!r:.80}")
