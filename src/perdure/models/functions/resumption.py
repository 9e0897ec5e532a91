"""Resumption: a replayed run goes on. The requests of its code are matched with the stored waits.

A stored wait must match the code's request, because its answer must never be handed to another request. A stored time
counts, even if the code computes another time. If a run was retried, a timeout that has passed begins again.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from perdure.kernel.effects import Deliver
from perdure.kernel.rows import Staged, Wait
from perdure.kernel.tasks import TASK_EVENT
from perdure.kernel.wait_matches import Mailbox
from perdure.models.functions.commands import Ask, Commands, StepRequest, TimerRequest
from perdure.models.functions.define import StepCall
from perdure.models.functions.runner import LiveRun, Mismatch
from perdure.models.functions.waits import TimerChoice
from perdure.values.digests import is_other

_OF_STEPS = ("retry", "beat")


class Resumed(Struct):
    """The outstanding requests of a run that are already stored.

    New requests are not here; they stay in the commands.
    """

    timers: list[TimerRequest]
    asks: list[Ask]

    @staticmethod
    def is_all_of(commands: Commands) -> bool:
        """Return whether the commands contain no new requests."""
        return commands.end is None and not (commands.timers or commands.asks or commands.outputs)


def undelivered(run_id: str, waits: Sequence[Wait], mailbox: Mailbox) -> list[Deliver]:
    """Return the deliveries that a run got before it was replayed. First come the events that won its waits, then the
    ends of runs.
    """
    won = [event for _, event in sorted(mailbox.given.values(), key=itemgetter(0))]
    ends = [wait for wait in waits if wait.target is not None and wait.due_at == 0]
    return [
        *[Deliver(run_id, event.position or "", event.option, event) for event in won],
        *[Deliver(run_id, wait.position, wait.option, target=wait.target) for wait in ends],
    ]


def resume(live: LiveRun, commands: Commands, waits: Sequence[Wait], now: int) -> Resumed:
    """Separate the stored requests of a replayed run from its new requests. Raises Mismatch if the stored waits do not
    match the code's requests.
    """
    stored: dict[str, list[Wait]] = {}
    for wait in sorted(waits, key=lambda wait: wait.option):
        stored.setdefault(wait.position, []).append(wait)
    if stored:
        _check(live, commands, stored)
    found = Resumed([], [])
    timers: list[TimerRequest] = []
    for timer in commands.timers:
        rows = stored.get(timer.position)
        if rows is not None:
            found.timers.append(replace(timer, due_at=rows[0].due_at or timer.due_at))
        else:
            timers.append(_timer_anew(live, timer, now) if live.is_retried else timer)
    asks: list[Ask] = []
    for ask in commands.asks:
        rows = stored.get(ask.position)
        if rows is not None:
            found.asks.append(_with_stored_time(live, ask, rows))
        else:
            asks.append(_ask_anew(live, ask, now) if live.is_retried else ask)
    commands.timers, commands.asks = timers, asks
    return found


def find_staged(live: LiveRun, found: Sequence[Staged]) -> None:
    """Keep the committed results of transactional steps that the code asks for. Raises Mismatch if a result belongs to
    another step."""
    for staged in found:
        asked = live.loop.pending(staged.position)
        if asked is None:
            continue  # The step was withdrawn while its result was being committed.
        if asked != ("step", staged.name):
            raise Mismatch(
                f"at position {staged.position} step {staged.name!r} was done, the code asks for {asked[0]} "
                f"{asked[1]!r}",
                details=f"- {staged.position:<8} step {staged.name}\n+ {staged.position:<8} {' '.join(asked)}",
            )
        live.staged[staged.position] = staged


def steps_anew(live: LiveRun, commands: Commands, now: int) -> None:
    """Restart the elapsed total timeouts of the steps of a retried run.

    The elapsed timeout may be the reason why the run had failed. If the first attempt after the retry is stored, the
    new timeout counts from that attempt. Otherwise it counts from now.
    """
    if not live.is_retried:
        return
    steps: list[StepRequest] = []
    for request in commands.steps:
        call: StepCall[Any] = request.call
        total = call.step.total_timeout_s
        if total is not None and request.emitted_at + round(total * 1_000_000) <= now:
            known = live.retries.get(request.position)
            request = replace(request, emitted_at=now if known is None else known.since)  # noqa: PLW2901
            live.requests[request.position] = request
        steps.append(request)
    commands.steps = steps


# Stored waits must fit the code.


def _check(live: LiveRun, commands: Commands, stored: dict[str, list[Wait]]) -> None:
    asks = {ask.position: ask for ask in commands.asks}
    timers = {timer.position: timer for timer in commands.timers}
    for position, rows in stored.items():
        was = _described(rows)
        ask = asks.get(position)
        if commands.end is not None:
            now = "nothing: it ends"
        elif ask is not None:
            expected = _rows_of(live, ask)
            if _fits(rows, expected):
                continue
            now = _described(expected) if expected else f"{ask.kind} {ask.name!r}"
            if now == was:
                was, now = f"{was} with arguments {rows[0].details}", f"{now} with arguments {expected[0].details}"
        elif (timer := timers.get(position)) is not None:
            if len(rows) == 1 and (rows[0].kind, rows[0].name) == ("timer", timer.name):
                continue
            now = f"timer {timer.name!r}"
        elif (request := live.requests.get(position)) is not None:
            if rows[0].kind in _OF_STEPS and rows[0].name == request.name:
                continue
            now = f"step {request.name!r}"
        else:
            now = "nothing"
        raise Mismatch(
            f"at position {position} the run waits for {was}, the code asks for {now}",
            details=f"- {position:<8} {was}\n+ {position:<8} {now}",
        )


def _rows_of(live: LiveRun, ask: Ask) -> tuple[Wait, ...]:
    """Return the rows that a request would have.

    The ids of tasks and children are not known here, and do not matter.
    """
    if ask.kind == "wait":
        return tuple(ask.what.rows(live.id, ask))
    if ask.kind == "task":
        return tuple(ask.what.rows(live.id, ask, ""))
    if ask.kind == "child":
        digest = ask.what.digest or None
        return (Wait(run_id=live.id, position=ask.position, kind="run", name=ask.name, details=digest),)
    return ()


def _fits(rows: Sequence[Wait], expected: Sequence[Wait]) -> bool:
    return len(rows) == len(expected) and all(map(_is_same, rows, expected))


def _is_same(stored: Wait, asked: Wait) -> bool:
    """Return whether the answer to a stored wait may be handed to a request. Times may differ: the stored time
    counts."""
    if stored.kind != asked.kind or stored.option != asked.option:
        return False
    if asked.name.startswith(TASK_EVENT):
        return stored.name.startswith(TASK_EVENT) and (stored.details is None or stored.details == asked.details)
    return (
        stored.name == asked.name
        and stored.where == asked.where
        and (asked.target is None or stored.target == asked.target)
        and not (asked.kind == "run" and is_other(stored.details, asked.details))
    )


def _described(rows: Sequence[Wait]) -> str:
    return " or ".join(map(_option, rows))


def _option(wait: Wait) -> str:
    if wait.kind in _OF_STEPS:
        return f"step {wait.name!r}"
    if wait.kind == "event" and wait.name.startswith(TASK_EVENT):
        return f"a task of {wait.details}" if wait.details else "a task"
    if wait.kind == "run":
        return f"run {wait.target!r}" if wait.name == "run" else f"child {wait.name!r}"
    where = ", ".join(f"{name}={value}" for name, value in wait.where)
    return f"{wait.kind} {wait.name!r}" + (f" where {where}" if where else "")


# Times.


def _with_stored_time(live: LiveRun, ask: Ask, rows: Sequence[Wait]) -> Ask:
    # If the end of a run has won the wait, the wait has no stored time any more. Then using the time from the code is
    # harmless.
    due_at = {wait.option: wait.due_at for wait in rows if wait.kind == "timer" and wait.due_at}
    return _with_time(live, ask, due_at, ask.since) if due_at and due_at != ask.what.due_at else ask


def _ask_anew(live: LiveRun, ask: Ask, now: int) -> Ask:
    due_at: dict[int, int] = getattr(ask.what, "due_at", {})
    if not due_at or min(due_at.values()) > now or not _is_relative(ask):
        return ask
    return _with_time(live, ask, {option: now + due - ask.since for option, due in due_at.items()}, now)


def _is_relative(ask: Ask) -> bool:
    if ask.kind == "task":
        return True
    return not any(isinstance(option, TimerChoice) and option.at is not None for option in ask.what.options)


def _with_time(live: LiveRun, ask: Ask, due_at: dict[int, int], since: int) -> Ask:
    changed = replace(ask, what=replace(ask.what, due_at=due_at), since=since)
    live.asks[ask.position] = changed
    return changed


def _timer_anew(live: LiveRun, timer: TimerRequest, now: int) -> TimerRequest:
    if timer.due_at > now or not live.loop.is_timeout(timer.position):
        return timer
    return replace(timer, due_at=now + timer.due_at - timer.since, since=now)
