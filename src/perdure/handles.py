"""Runs from outside: their id, and their outcome once there is one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Generic, Protocol, TypeVar, overload

import msgspec

from perdure.arguments import checked
from perdure.errors import RunCancelled, RunFailed, RunNotFound
from perdure.kernel.records import Failure, Outcome, Run
from perdure.kernel.status import Status
from perdure.models.functions.failures import rebuild
from perdure.models.functions.values import Reader
from perdure.views import RunView, StreamItemView

R = TypeVar("R")

_NOT_COMMITTED = "the transaction that it was started in is not committed, or was rolled back: commit first, then ask"


class Source(Protocol):
    """Where a handle gets its answers from: an engine."""

    async def outcome(self, run_id: str) -> tuple[Run, Outcome]: ...

    def read_result(self, run: Run, output: str, reader: Reader | None) -> Any: ...

    async def get(self, id: str) -> RunView | None: ...

    async def cancel(self, id: str, *, reason: str = "", actor: str = "api") -> bool: ...

    @overload
    async def published(self, id: str) -> dict[str, Any]: ...

    @overload
    async def published(self, id: str, key: str) -> Any: ...

    def stream(self, id: str, name: str, *, after: int = 0, follow: bool = True) -> AsyncIterator[StreamItemView]: ...


@checked(constructor=False)
class RunHandle(Generic[R]):
    """A run, from outside: its id, and its outcome once there is one.

    One that was started in a transaction of the caller's (`in_transaction`) is not there before the commit.
    """

    def __init__(self, source: Source, run_id: str, result: Reader | None, *, in_transaction: bool = False) -> None:
        self.id = run_id
        self._source = source
        self._result = result
        self._in_transaction = in_transaction

    async def result(self) -> R:
        """Wait for the run to end; what it returned. Raises RunFailed (its cause is the failure, rebuilt) or
        RunCancelled. Can be called any number of times. Raises RunNotFound, at once, if the run was started in a
        transaction that is not committed."""
        try:
            run, outcome = await self._source.outcome(self.id)
        except RunNotFound as error:
            raise self._not_found() from error
        if run.status == Status.SUCCEEDED and outcome.output is not None:
            value: R = self._source.read_result(run, outcome.output, self._result)
            return value
        raise _failed(run, outcome)

    async def status(self) -> str:
        """The run's status now."""
        found = await self._source.get(self.id)
        if found is None:
            raise self._not_found()
        return found.status

    def _not_found(self) -> RunNotFound:
        return RunNotFound(self.id, _NOT_COMMITTED if self._in_transaction else "")

    async def cancel(self, reason: str = "") -> bool:
        return await self._source.cancel(self.id, reason=reason)

    @overload
    async def published(self) -> dict[str, Any]: ...

    @overload
    async def published(self, key: str) -> Any: ...

    async def published(self, key: str | None = None) -> Any:
        """What the run shows now, as `Engine.published` gives it."""
        return await (self._source.published(self.id) if key is None else self._source.published(self.id, key))

    def stream(self, name: str, *, after: int = 0, follow: bool = True) -> AsyncIterator[StreamItemView]:
        """The items of a stream of the run, as `Engine.stream` gives them."""
        return self._source.stream(self.id, name, after=after, follow=follow)

    def __repr__(self) -> str:
        return f"<run {self.id!r}>"


_CANCELLED = "perdure.errors:RunCancelled"


def _failed(run: Run, outcome: Outcome) -> Exception:
    failure = msgspec.json.decode(outcome.failure, type=Failure) if outcome.failure else None
    if failure is None or run.status == Status.CANCELLED or failure.type == _CANCELLED:
        reason = failure.message if failure is not None else None
        return RunCancelled(f"run {run.id!r} was cancelled: {reason}", run_id=run.id, reason=reason)
    error = RunFailed(
        f"run {run.id!r} of workflow {run.workflow!r} failed: {failure.type.rpartition(':')[2]}: {failure.text}",
        run_id=run.id,
        failure=failure,
    )
    error.__cause__ = rebuild(failure, run_id=run.id)
    return error
