"""Compensations: the calls that a workflow registers with `compensate`. If the workflow fails or is cancelled, these
calls are made in reverse order.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.json import encode as to_json

from perdure.errors import Misuse, RollbackFailed
from perdure.kernel.rows import Wait
from perdure.models.functions.context import require_loop
from perdure.models.functions.define import RunCall, StepCall
from perdure.values.arguments import checked
from perdure.values.digests import digest_of

BRANCH = "undo."  # the prefix of the positions that a rollback uses

R = TypeVar("R")


class Compensation(Struct, frozen=True):
    """A step or a workflow that undoes something, with a copy of its arguments from the time of the registration.

    `rest` is workflow code that gets the result of the step. `rest` may wait. The next compensation begins after `rest`
    has ended.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    input: str
    digest: str = ""  # the digest of its arguments
    rest: Callable[[Any], Coroutine[Any, Any, None]] | None = None

    @property
    def text(self) -> str:
        """The value of its journal entry, which is only for people to read. A rollback does not read this value; it
        takes the call from the code.
        """
        return f'{{"call":{to_json(self.target.name).decode()},"input":{self.input}}}'


@checked
async def compensate(call: StepCall[Any] | RunCall[Any]) -> None:
    """Register a call to make if the run fails or is cancelled: a step, or a workflow as a child.

    The last registered call is made first. If a call raises, `@workflow(compensation=…)` says whether the rollback ends
    there or goes on. The registration becomes durable together with the results before it. So register a compensation
    right after the work that it undoes.
    """
    await _register(call, None)


async def compensate_and_wait(call: StepCall[R], rest: Callable[[R], Coroutine[Any, Any, None]]) -> None:
    """Register a compensation that may take longer than a step should.

    The step requests the work. `rest` is workflow code that waits durably until the work is done. Everything else is as
    for `compensate`.
    """
    await _register(call, rest)


async def _register(
    call: StepCall[Any] | RunCall[Any], rest: Callable[[Any], Coroutine[Any, Any, None]] | None
) -> None:
    loop = require_loop("compensate")
    if isinstance(call, StepCall):
        target: Any = call.step
    elif isinstance(call, RunCall):
        target = call.workflow
    else:
        raise Misuse(f"compensate() takes a called step or workflow, as in compensate(release(seat)), not {call!r}")
    call.close()  # The coroutine is closed even if the arguments are refused.
    input = target.signature.write(call.args, call.kwargs, loop.payload_max)
    args, kwargs = target.signature.read(input)
    digest = digest_of(target.signature, call.args, call.kwargs) if loop.has_digests else ""
    await loop.ask("compensate", target.name, Compensation(target, args, kwargs, input, digest, rest))


def is_waiting(waits: Iterable[Wait], now: int) -> bool:
    """Return whether a run that rolls back waits for something, according to its stored waits.

    It may wait for a timer, an event, a child, a task, or the next attempt of a step. Compensations are made one after
    the other, so the run does nothing else while it waits. While a step's next attempt runs, the row of its wait is
    still stored. The details of a step's heartbeats are stored as a wait too. Neither of these rows counts as waiting.
    """
    return any(wait.kind != "beat" and (wait.kind != "retry" or (wait.due_at or 0) > now) for wait in waits)


async def roll_back(compensations: Sequence[Compensation], policy: str) -> None:
    """Make all compensations, the last registered compensation first. Raises RollbackFailed if one of them failed."""
    failures: list[tuple[str, Exception]] = []
    for compensation in reversed(compensations):
        try:
            result = await compensation.target(*compensation.args, **compensation.kwargs)
            if compensation.rest is not None:
                await compensation.rest(result)
        except Exception as error:  # noqa: BLE001 - the policy decides what follows
            failures.append((compensation.target.name, error))
            if policy == "halt":
                break
    if failures:
        what = "; ".join(f"{name}: {error}" for name, error in failures)
        cause = failures[0][1]
        raise RollbackFailed(f"{len(failures)} of {len(compensations)} compensations failed: {what}") from cause
