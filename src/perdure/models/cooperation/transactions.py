"""Transactional steps of operations. A step's writes to its own tables, and its requests (emissions, context, return
values), are committed together or not at all.

The step's transaction stages the step's requests. The run's next commit turns the staged requests into rows before
anything else. This also holds if another engine has taken the run, or if the run was asked to give up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context as CodeContext
from typing import Any, Final, NoReturn, Protocol

import msgspec
from msgspec import Struct

from perdure.errors import EngineBug
from perdure.kernel.rows import Staged
from perdure.models.common.host_parts import HostParts
from perdure.models.common.transactions import (
    CodecFailed,
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
from perdure.models.cooperation.context import EMPTY, Context
from perdure.models.cooperation.define import Plan
from perdure.models.cooperation.failures import Failure
from perdure.models.cooperation.live_run import Code
from perdure.models.cooperation.moves import Handle, Invoke, Raised, Returned, Undo
from perdure.models.cooperation.moves import Outcome as StepOutcome
from perdure.models.cooperation.progress import Mismatch
from perdure.models.cooperation.return_values import ReturnValue
from perdure.models.cooperation.scope import Emission, NextStep, Scope
from perdure.models.cooperation.step_execution import StepExecution


class Place(Protocol):
    """The place where code runs, from the point of view of the code."""

    connection: Any


class Call(Protocol):
    """Code to run with a scope, in the form that the store calls."""

    def plain(self, scope: Scope) -> NextStep | None: ...

    def awaited(self, scope: Scope) -> Coroutine[Any, Any, NextStep | None]: ...


class _Asked(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The staged value: the code that ran, and its requests."""

    kind: str
    name: str
    attempt: int = 0
    text: str = ""
    said: NextStep | None = None
    context: Context = EMPTY
    emissions: tuple[Emission, ...] = ()
    values: tuple[ReturnValue, ...] = ()


_decode: Final = msgspec.json.Decoder(_Asked).decode


def write_outcome(code: Code, outcome: Returned) -> str:
    """Return the requests of code, as JSON."""
    asked = _Asked(
        kind=type(code).__name__,
        name=code.name,
        attempt=code.attempt if isinstance(code, Handle) else 0,
        text="" if isinstance(code, Invoke) else code.text,
        said=outcome.said,
        context=outcome.context,
        emissions=outcome.emissions,
        values=outcome.values,
    )
    return msgspec.json.encode(asked).decode()


def read_outcome(plan: Plan, text: str, position: str) -> tuple[Code, Returned]:
    """Return the code that ran, and its requests. Raises Mismatch if the operation no longer has the step."""
    asked = _decode(text)
    try:
        index = plan.index_of(asked.name)
    except LookupError:
        raise Mismatch(f"operation {plan.handler!r} has no step {asked.name!r} any more, which has run") from None
    # The arguments of the call no longer matter.
    unknown = Failure(type="unknown", message="")
    code: Code
    match asked.kind:
        case "Invoke":
            code = Invoke(index=index, name=asked.name, iteration=0, context=EMPTY)
        case "Handle":
            code = Handle(
                index=index,
                name=asked.name,
                iteration=0,
                attempt=asked.attempt,
                failure=unknown,
                context=EMPTY,
                text=asked.text,
            )
        case "Undo":
            code = Undo(index=index, name=asked.name, iteration=0, cause=unknown, context=EMPTY, text=asked.text)
        case kind:
            raise EngineBug(f"a step of an operation has staged {kind!r}")
    returned = Returned(
        said=asked.said, context=asked.context, emissions=asked.emissions, values=asked.values, staged=position
    )
    return code, returned


def asked(scope: Scope, said: NextStep | None) -> Returned:
    """Return all requests of code, and close its scope. After that, the code can make no more requests."""
    scope.is_over = True
    return Returned(said=said, context=scope.context, emissions=tuple(scope.emissions), values=tuple(scope.values))


class _Body:
    """One call of a step's code."""

    def __init__(self, owner: Transactions, execution: StepExecution, work: Work, fate: Fate) -> None:
        self.error: BaseException | None = None
        self.is_final = False
        self.is_called = False
        self._is_running = False
        self._owner = owner
        self._execution = execution
        self._work = work
        self._fate = fate
        self._started_at = owner.now()

    def plain(self, connection: Any, /) -> Staged:
        self._is_running = True
        try:
            return self._work.context.copy().run(self._plain, connection)
        except BaseException as error:
            self.error = error
            raise
        finally:
            self._is_running = False

    def _plain(self, connection: Any) -> Staged:
        name = self._execution.code.name
        scope = self._begin(connection)
        with suppress(RuntimeError):  # Once the loop is closed, the time limits do not matter.
            self._owner.loop.call_soon_threadsafe(self._execution.arm)
        holds_writer.set(lambda: name if self._is_running else "")
        with without_loop(name):
            said = self._work.call.plain(scope)
        text = self._text(scope, said)
        return self._staged(encoded_elsewhere(self._owner.codec, self._owner.loop, text, self._refuse))

    async def awaited(self, connection: Any, /) -> Staged:
        try:
            scope = self._begin(connection)
            self._execution.arm()
            text = self._text(scope, await self._work.call.awaited(scope))
            return self._staged(encoded(self._owner.codec, text, self._refuse))
        except BaseException as error:
            self.error = error
            raise

    def _begin(self, connection: Any) -> Scope:
        """Return a new scope. The requests of an earlier call are dropped. They were not committed, because otherwise
        the store would not call the code again.
        """
        self.is_called = True
        if not self._fate.reopen():
            raise GivenUp
        self._work.place.connection = connection
        self._execution.has_store_failed = connection.has_store_failed
        return self._work.scope()

    def _text(self, scope: Scope, said: NextStep | None) -> str:
        outcome = asked(scope, said)
        checked = self._work.check(outcome)
        if isinstance(checked, Raised):
            raise checked.failure.error()
        return write_outcome(self._execution.code, outcome)

    def _refuse(self, error: BaseException) -> NoReturn:
        self.is_final = True
        raise CodecFailed(error) from error

    def _staged(self, text: str) -> Staged:
        live = self._execution.live
        staged = Staged(
            run_id=live.id,
            position=self._work.position,
            name=self._execution.code.name,
            claim=live.claim,
            attempt=self._execution.attempt,
            value=text,
            started_at=self._started_at,
            at=self._owner.now(),
        )
        if not self._fate.settle():
            raise GivenUp
        return staged


class Work(Struct, frozen=True, kw_only=True):
    """The work to do in a transaction. `scope` is a function that makes a new scope. `check` returns a failure if the
    code has asked for something that is not possible.
    """

    call: Call
    scope: Callable[[], Scope]
    check: Callable[[Returned], StepOutcome]
    place: Place
    context: CodeContext
    position: str
    is_async: bool


class Transactions:
    """The transactions of an engine's operations."""

    def __init__(self, parts: HostParts) -> None:
        self._store = parts.store
        self.codec = parts.codec
        self._coordinator = parts.coordinator
        self.now = parts.clock.now
        self.loop = asyncio.get_running_loop()

    async def run(self, execution: StepExecution, work: Work) -> Returned:
        """Run the code in a transaction. Return its requests once they are committed together with its writes. Raises
        the errors of the code. Raises CodecFailed.
        """
        live, code = execution.live, execution.code
        check_form(self._store.transacts, code.name, is_async=work.is_async)
        fate = execution.fate
        if fate is None:
            raise EngineBug("a step that is not transactional is to run in a transaction")

        def ended() -> None:
            work.place.connection = None

        end = await transacted(
            store=self._store,
            coordinator=self._coordinator,
            spot=Spot(live.id, live.claim, work.position, code.name),
            fate=fate,
            body=lambda: _Body(self, execution, work, fate),
            is_dropped=lambda: execution.dropped,
            ended=ended,
            again=execution.interrupted,
        )
        if end.staged is None:
            raise end.error or EngineBug("a transaction has no outcome and no error")
        return self.read(live.plan, end.staged)[1]

    def read(self, plan: Plan, staged: Staged) -> tuple[Code, Returned]:
        """Return the code of a run that staged an outcome, and its requests. Raises Mismatch."""
        return read_outcome(plan, self.codec.decode(staged.value), staged.position)
