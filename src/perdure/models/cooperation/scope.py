"""What a step sees of its run, and what it asks for: emissions, its context, deadlines, return values.

A scope only takes notes. All that a step asked for is written in one commit after it has returned, and vanishes if it
raises.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar

import msgspec
from msgspec import Struct

from perdure.errors import HierarchyTooDeep, InvalidArguments, Misuse, UnstorableValue
from perdure.kernel.cooperation import depth_of
from perdure.models.cooperation.context import (
    EMPTY,
    TOKENS,
    CancellationToken,
    Context,
    Key,
    ReadableKey,
    bounded,
    check_name,
    independent,
    levels_above,
    time_of,
    token_names,
)
from perdure.models.cooperation.events import CALL_TOPIC, SLEEP_TOPIC, Lineage, ReturnValue
from perdure.models.cooperation.failures import Failure, gave_up, source_of
from perdure.values.arguments import Duration, checked, span_of

if TYPE_CHECKING:
    from perdure.models.cooperation.define import Topic

M = TypeVar("M")
V = TypeVar("V")

HIERARCHY_LEVELS_MAX: Final = 1_000  # unless an engine allows fewer, or more

_NAME_CHARS_MAX: Final = 500


def allowed_levels(levels_max: int, *, rolling_back: bool) -> int:
    """How many levels there may be. What a rollback emits may be further down by a tenth, so that what the last level
    did can be undone."""
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
    """A workflow with its arguments, as calling it gives it."""

    @property
    def workflow(self) -> Callee: ...

    def input(self) -> str:
        """The arguments as JSON."""
        ...


class Call(Struct, frozen=True, kw_only=True, gc=False):
    """A function or a graph to be started."""

    workflow: str
    version: str
    model: str
    input: str


class NextStep(Struct, frozen=True):
    """Which step comes next: the following one, the same one again, or another (by its number from 0, or its name)."""

    kind: Literal["go_on", "repeat", "go_to"]
    target: int | str | None = None


class Emission(Struct, frozen=True, kw_only=True, gc=False):
    """A message to be emitted, with the context its handlers begin with. `root` is the new id that is the lineage of an
    emission on the global scope. The message of a `call` has no handlers, but a run of its own id."""

    message_id: str
    topic: str
    payload: str
    context: Context
    root: str | None = None
    call: Call | None = None

    def __await__(self) -> Generator[Any, Any, str]:
        """The message's id, at once: emitting waits for nothing. A plain function need not await it."""
        yield from ()
        return self.message_id


@checked(constructor=False)
class Scope:
    """One step's view of its run. Made anew for every step, also for rollbacks and for handlers of child failures."""

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
        returned: Sequence[ReturnValue] = (),
        topics: Mapping[str, str] | None = None,
        reasons: Callable[[Context], Sequence[Failure]] = lambda _: (),
        levels_max: int = HIERARCHY_LEVELS_MAX,
    ) -> None:
        self.lineage = lineage
        self.handler = handler
        self.step = step
        self.iteration = iteration  # how often in a row this step has run before
        self.context = context
        self.rolling_back = rolling_back
        self.next_step = next_step  # where the step said to go on: for its answer to a child's failure
        self.emissions: list[Emission] = []
        self.values: list[ReturnValue] = []
        self.is_over = False  # What the step asked for is being written.
        self._now = now
        self._ids = ids
        self._returned = returned
        self._topics = topics or {}  # of the messages that children handle, by the children's ids
        self._reasons = reasons
        self._levels_max = levels_max

    @property
    def run_id(self) -> str:
        return self.lineage[-1]

    @property
    def now(self) -> int:
        """When the step was begun, in microseconds since the epoch."""
        return self._now

    @property
    def tokens(self) -> tuple[CancellationToken, ...]:
        """The cancellation tokens of this run: those of the run that emitted its message, and those that the message
        was emitted with."""
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
        """Emit a message in this scope: its handlers are this run's children, and the next step waits for them.

        What handles it, and all below, is to be done by the `deadline`, and undone by the `rollback_deadline` if it
        comes to that; the earliest one counts. Its handlers begin after the `delay`, not before. They have these
        `tokens` beside those of this run, and give up when one of them is cancelled. Raises InvalidArguments,
        UnstorableValue; HierarchyTooDeep if its handlers would be more than the engine's `hierarchy_levels_max` below
        the root.
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
        """Emit a message as the root of a hierarchy of its own. Nobody waits for it, and it is not rolled back with
        this run; but it is emitted in the same commit, or not at all. It has the given `tokens` only: pass
        `scope.tokens` to have it cancelled with this run. Otherwise as `emit`."""
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
        # Of the children: the lineage of a run of the first level has two ids.
        level = depth_of(self.lineage) + levels_above(self.context)
        allowed = allowed_levels(self._levels_max, rolling_back=self.rolling_back)
        if level > allowed:
            raise HierarchyTooDeep(
                f"step {self.step!r} of {self.handler!r} {what}, {level:,} levels below the root of its hierarchy, "
                f"which may have {allowed:,}. If operations emit to each other without end, have one of them stop, or "
                "use scope.emit_globally(…), which begins a hierarchy of its own; if it is to be this deep, set "
                "Limits(hierarchy_levels_max=…)",
                level=level,
                levels_max=allowed,
            )

    def _check_not_over(self, what: str) -> None:
        """Raise Misuse once the step has ended: nobody would notice what it asks for."""
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
        """The context for children. What a rollback emits is not stopped by tokens of the run that rolls back."""
        return self.context.without(TOKENS) if self.rolling_back and self.tokens else self.context

    def start(self, call: WorkflowCall) -> Emission:
        """Start a function or a graph as a child: `scope.start(charge(order.id))`. Awaited, it gives the run's id.

        The next step waits for its end, and finds its result with `returned(name of the workflow, type)`. Its failure
        is one of a child. When this step is rolled back, so is the workflow, which does what it has registered with
        `compensate`, also long after it has succeeded. Raises InvalidArguments, UnstorableValue.
        """
        if not hasattr(call, "workflow") or not hasattr(call, "input"):
            raise Misuse(f"scope.start() takes a called workflow, as in scope.start(charge('o-17')), not {call!r:.80}")
        workflow = call.workflow
        self._check_not_over(f"starts {workflow.name!r}")
        self._check_level(f"starts {workflow.name!r}")
        what = Call(workflow=workflow.name, version=workflow.version, model=workflow.model, input=call.input())
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
        """Have the next step wait so long. Numbers are seconds. Raises InvalidArguments."""
        self._sleep_until(
            time_of(span_of(duration, "the duration of scope.sleep()"), self._now, "the end of the sleep")
        )

    def sleep_until(self, time: datetime) -> None:
        """Have the next step wait until then."""
        self._sleep_until(time_of(time, self._now, "a time to sleep until"))

    def _sleep_until(self, at: int) -> None:
        self._check_not_over("sleeps")
        self.emissions.append(
            Emission(message_id=self._ids(), topic=SLEEP_TOPIC, payload=f'{{"until":{at}}}', context=self.context)
        )

    def get(self, key: ReadableKey[V]) -> V | None:
        return self.context.get(key)

    def put(self, key: Key[V], value: V) -> None:
        """Set a value for later steps and for what is emitted from now on."""
        self._check_not_over("puts a value into its context")
        self.context = self.context.put(key, value)

    def deadline(self, when: datetime | Duration, *, path: Literal["happy", "rollback", "both"] = "happy") -> None:
        """Have later steps, and what is emitted from now on, done by then; the earliest deadline counts.

        When it is missed on the happy path, the run rolls back; on the way back, the rollback has failed.
        """
        if path not in ("happy", "rollback", "both"):
            raise InvalidArguments(f'a deadline is for the path "happy", "rollback" or "both", not {path!r}')
        self.context = self._bounded(
            self.context, None if path == "rollback" else when, None if path == "happy" else when, None
        )

    def give_up_if_needed(self) -> None:
        """Raise what makes the run roll back if it was cancelled or its deadline has passed. For long steps: between
        steps it is looked at anyway."""
        reasons = self._reasons(self.context)
        if reasons:
            raise gave_up(reasons, source_of(self.handler, self.run_id)).error()

    def return_value(self, name: str, value: Any) -> None:
        """Leave a value for the parent to read once this run has committed. Raises Misuse if there is one already;
        InvalidArguments, UnstorableValue."""
        check_name(name, "a return value", _NAME_CHARS_MAX)
        self._check_not_over(f"returns {name!r}")
        if any(known.variable == name for known in self.values):
            raise Misuse(f"{self.handler!r} has returned {name!r} before: a name can be returned once per run")
        try:
            text = msgspec.json.encode(value).decode()
        except (TypeError, ValueError, OverflowError) as error:
            raise UnstorableValue(f"the return value {name!r} of {self.handler!r} cannot be stored: {error}") from error
        self.values.append(ReturnValue(lineage=self.lineage, handler=self.handler, variable=name, value=text))

    def returned(
        self, name: str, type: type[V], *, handler: str | None = None, topic: Topic[Any] | str | None = None
    ) -> list[V]:
        """What this run's children have returned under a name: of each that has committed, in the order of emission.

        With a `handler`, only what children of that operation have returned; with a `topic`, only what was returned by
        children that handle a message of it. Raises UnstorableValue if a value does not fit the type.
        """
        wanted = topic if topic is None or isinstance(topic, str) else topic.name
        return [
            read_value(value, type)
            for value in self._returned
            if value.variable == name
            and handler in (None, value.handler)
            and wanted in (None, self._topics.get(value.lineage[-1]))
        ]


def checked_emission(topic: object, context: object) -> None:
    """Raises InvalidArguments for what is no topic, and no context."""
    if not (hasattr(topic, "name") and hasattr(topic, "write")):
        raise InvalidArguments(f'emit() takes a Topic, as in emit(Topic("orders", Order), order), not {topic!r:.80}')
    if not isinstance(context, Context):
        raise InvalidArguments(f"context takes a Context, as in Context().put(TENANT, 'acme'), not {context!r:.80}")


def read_value(value: ReturnValue, type: type[V]) -> V:
    """A value that a run has returned. Raises UnstorableValue if it does not fit the type."""
    try:
        return msgspec.json.decode(value.value, type=type)
    except (msgspec.ValidationError, ValueError) as error:
        raise UnstorableValue(
            f"what {value.handler!r} has returned as {value.variable!r} does not fit the type: {error}"
        ) from error
