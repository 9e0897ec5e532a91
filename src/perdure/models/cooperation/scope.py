"""What a step sees of its run, and what it asks for: emissions, its context, deadlines, return values.

A scope only takes notes. All that a step asked for is written in one commit after it has returned, and vanishes if it
raises.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import msgspec
from msgspec import Struct

from perdure.errors import InvalidArguments, Misuse, UnstorableValue
from perdure.models.cooperation.context import (
    EMPTY,
    HAPPY_DEADLINE,
    ROLLBACK_DEADLINE,
    Context,
    Deadline,
    Key,
    ReadableKey,
    earlier,
    independent,
)
from perdure.models.cooperation.events import CALL_TOPIC, SLEEP_TOPIC, Lineage, ReturnValue
from perdure.models.cooperation.failures import Failure, gave_up, source_of

if TYPE_CHECKING:
    from perdure.models.cooperation.define import Topic

M = TypeVar("M")
V = TypeVar("V")

_MICROSECOND = timedelta(microseconds=1)


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
        returned: Sequence[ReturnValue] = (),
        reasons: Callable[[Context], Sequence[Failure]] = lambda _: (),
    ) -> None:
        self.lineage = lineage
        self.handler = handler
        self.step = step
        self.iteration = iteration  # how often in a row this step has run before
        self.context = context
        self.rolling_back = rolling_back
        self.emissions: list[Emission] = []
        self.values: list[ReturnValue] = []
        self._now = now
        self._ids = ids
        self._returned = returned
        self._reasons = reasons

    @property
    def run_id(self) -> str:
        return self.lineage[-1]

    @property
    def now(self) -> int:
        """When the step was begun, in microseconds since the epoch."""
        return self._now

    def emit(self, topic: Topic[M], message: M, *, context: Context = EMPTY) -> Emission:
        """Emit a message in this scope: its handlers are this run's children, and the next step waits for them."""
        return self._emit(topic, message, context, None)

    def emit_globally(self, topic: Topic[M], message: M, *, context: Context = EMPTY) -> Emission:
        """Emit a message as the root of a hierarchy of its own. Nobody waits for it, and it is not rolled back with
        this run; but it is emitted in the same commit, or not at all."""
        return self._emit(topic, message, context, self._ids())

    def _emit(self, topic: Topic[M], message: M, context: Context, root: str | None) -> Emission:
        own = self.context if root is None else independent(self.context)
        emission = Emission(
            message_id=self._ids(),
            topic=topic.name,
            payload=topic.write(message),
            context=own.plus(context),
            root=root,
        )
        self.emissions.append(emission)
        return emission

    def start(self, call: WorkflowCall) -> Emission:
        """Start a function or a graph as a child: `scope.start(charge(order.id))`. Awaited, it gives the run's id.

        The next step waits for its end, and finds its result with `returned(name of the workflow, type)`. Its failure
        is one of a child. When this step is rolled back, so is the workflow, which does what it has registered with
        `compensate`, also long after it has succeeded. Raises InvalidArguments, UnstorableValue.
        """
        if not hasattr(call, "workflow") or not hasattr(call, "input"):
            raise Misuse(f"scope.start() takes a called workflow, as in scope.start(charge('o-17')), not {call!r:.80}")
        workflow = call.workflow
        what = Call(workflow=workflow.name, version=workflow.version, model=workflow.model, input=call.input())
        emission = Emission(
            message_id=self._ids(),
            topic=CALL_TOPIC,
            payload=msgspec.json.encode({"workflow": what.workflow, "version": what.version}).decode(),
            context=self.context,
            call=what,
        )
        self.emissions.append(emission)
        return emission

    def sleep(self, duration: timedelta) -> None:
        """Have the next step wait so long."""
        self._sleep_until(self._now + duration // _MICROSECOND)

    def sleep_until(self, time: datetime) -> None:
        """Have the next step wait until then."""
        self._sleep_until(_microseconds(time))

    def _sleep_until(self, at: int) -> None:
        self.emissions.append(
            Emission(message_id=self._ids(), topic=SLEEP_TOPIC, payload=f'{{"until":{at}}}', context=self.context)
        )

    def get(self, key: ReadableKey[V]) -> V | None:
        return self.context.get(key)

    def put(self, key: Key[V], value: V) -> None:
        """Set a value for later steps and for what is emitted from now on."""
        self.context = self.context.put(key, value)

    def deadline(self, when: datetime | timedelta, *, path: Literal["happy", "rollback", "both"] = "happy") -> None:
        """Have later steps, and what is emitted from now on, done by then; the earliest deadline counts.

        When it is missed on the happy path, the run rolls back; on the way back, the rollback has failed.
        """
        at = self._now + when // _MICROSECOND if isinstance(when, timedelta) else _microseconds(when)
        mine = Deadline(at=at, source=source_of(self.handler, self.run_id))
        if path not in ("happy", "rollback", "both"):
            raise InvalidArguments(f'a deadline is for the path "happy", "rollback" or "both", not {path!r}')
        for name, key in (("happy", HAPPY_DEADLINE), ("rollback", ROLLBACK_DEADLINE)):
            if path in (name, "both"):
                known = self.context.get(key)
                self.put(key, mine if known is None else earlier(known, mine))

    def give_up_if_needed(self) -> None:
        """Raise what makes the run roll back if it was cancelled or its deadline has passed. For long steps: between
        steps it is looked at anyway."""
        reasons = self._reasons(self.context)
        if reasons:
            raise gave_up(reasons, source_of(self.handler, self.run_id)).error()

    def return_value(self, name: str, value: Any) -> None:
        """Leave a value for the parent to read once this run has committed. Raises Misuse if there is one already."""
        if any(known.variable == name for known in self.values):
            raise Misuse(f"{self.handler!r} has returned {name!r} before: a name can be returned once per run")
        try:
            text = msgspec.json.encode(value).decode()
        except (TypeError, ValueError, OverflowError) as error:
            raise UnstorableValue(f"the return value {name!r} of {self.handler!r} cannot be stored: {error}") from error
        self.values.append(ReturnValue(lineage=self.lineage, handler=self.handler, variable=name, value=text))

    def returned(self, name: str, type: type[V]) -> list[V]:
        """What this run's children have returned under a name: of each that has committed, in the order of emission."""
        found = (value.value for value in self._returned if value.variable == name)
        return [msgspec.json.decode(text, type=type) for text in found]


def _microseconds(time: datetime) -> int:
    if time.tzinfo is None:
        raise InvalidArguments(f"{time!r} has no time zone: say which time is meant, as in datetime.now(UTC)")
    return round(time.timestamp() * 1_000_000)
