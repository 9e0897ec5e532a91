"""Replay: the journal is handed to a run's code again, entry by entry, until the code is where it was. Does no I/O.

No step is executed. Results and failures come from the journal, so the code takes the same branches. If the code's
requests differ from the journal, a replay raises a mismatch (mismatch.py). revival.py reads the journals and has them
replayed. resumption.py matches the outstanding requests with the stored waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.errors import UnstorableValue
from perdure.kernel.pieces import PIECE_ITEMS_MAX, Pieces
from perdure.kernel.rows import Entry
from perdure.models.common.stored_failures import read_failure
from perdure.models.functions.compensation import BRANCH, roll_back
from perdure.models.functions.define import StepCall
from perdure.models.functions.definition_outlines import split
from perdure.models.functions.loop import Commands, WorkflowLoop
from perdure.models.functions.merged_commands import Replayed
from perdure.models.functions.mismatch import Mismatch, diff, other_arguments
from perdure.models.functions.runner import LiveRun
from perdure.models.functions.waits import short_name
from perdure.values.failures import rebuild


def replay(
    live: LiveRun, input: str, entries: Sequence[Entry], created_at: int, *, is_begun: bool = False
) -> Pieces[Commands]:
    """Replay a journal on a new loop, and return the requests that are outstanding at its end. Raises Mismatch.

    With `is_begun`, the run has made requests before, although its journal may be empty. Between two pieces nothing may
    be handed to the run.

    The outputs of an activation were committed with its entry, so they are not written again. There are two exceptions.
    The first activation has no entry. And after a retry, changed code may get further in the last activation before the
    failure.
    """
    live.has_waited = live.has_staged = True
    outlines, entries = split(entries)
    live.compare(outlines, is_begun=is_begun or bool(entries))
    total = Replayed()
    try:
        begun = live.loop.begin_some(live.beginning(input), created_at)
        commands = total.add(live.took((yield from live.loop.begin_on()) if begun is None else begun))
    except UnstorableValue as error:
        if entries:
            raise Mismatch(str(error), details=str(error)) from error
        commands = total.add(live.begin_refused(error, created_at))  # The run has done nothing yet.
    return (yield from _replay_entries(live, total, commands, entries))


def undo(live: LiveRun, input: str, entries: Sequence[Entry], created_at: int, failure: str) -> Pieces[Commands]:
    """Replay a run that rolls back. First replay its own code, to find its compensations, and then the part of the
    rollback that is done. Raises Mismatch.
    """
    live.undone_for = failure
    outlines, entries = split(entries)
    forward = [entry for entry in entries if not entry.position.startswith(BRANCH)]
    yield from replay(live, input, [*outlines, *forward], created_at)
    live.loop.close()
    live.asks.clear()
    live.starting.clear()
    live.requests.clear()
    about, life = live.loop.about, live.loop.life
    # See LiveRun for the reason.
    live.loop = WorkflowLoop(run_id=live.id, callbacks_max=live.callbacks_max, branch=BRANCH)  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]
    live.loop.about, live.loop.life = about, life
    live.loop.payload_max = live.payload_max
    at = forward[-1].at if forward else created_at
    compensations, policy = list(live.compensations.values()), live.workflow.compensation
    total = Replayed()
    commands = total.add(live.took(live.loop.begin(lambda: roll_back(compensations, policy), at)))
    return (yield from _replay_entries(live, total, commands, entries[len(forward) :]))


def _replay_entries(live: LiveRun, total: Replayed, commands: Commands, entries: Sequence[Entry]) -> Pieces[Commands]:
    for number, entry in enumerate(entries):
        if number % PIECE_ITEMS_MAX == PIECE_ITEMS_MAX - 1:
            yield
        if commands.end is not None:
            raise Mismatch(
                f"the code ends after {live.seq} of {len(entries)} journal entries",
                details=diff(entries, live.seq, "the end of the workflow"),
            )
        commands = total.add(_hand_over(live, entry, entries))
    if entries and not live.is_retried:
        commands.outputs = ()
    return total.commands(live.requests.values(), live.asks.values(), live.loop, commands)


def _hand_over(live: LiveRun, entry: Entry, entries: Sequence[Entry]) -> Commands:
    asked = live.loop.pending(entry.position)
    if asked != (entry.kind, entry.name) and asked != (entry.kind, short_name(entry.name)):
        now = f"{asked[0]} {asked[1]!r}" if asked else "nothing"
        raise Mismatch(
            f"at position {entry.position} the journal has {entry.kind} {entry.name!r}, the code asks for {now}",
            details=diff(entries, live.seq, f"{now} at {entry.position}; open: {_open(live)}"),
        )
    live.seq = entry.seq
    if entry.kind == "timer":
        return live.fire(entry.position, entry.at)
    complete = live.loop.complete_step if entry.kind == "step" else live.loop.complete_ask
    ask = live.asks.pop(entry.position, None)
    live.starting.pop(entry.position, None)
    request = live.requests.pop(entry.position, None)
    if entry.digest:
        now = ask.what.digest if ask is not None else request.call.digest  # type: ignore[union-attr]
        if now != entry.digest and now:
            raise other_arguments(entry, entries, now)
    if entry.failure is not None:
        failure = read_failure(entry.failure, live.codec)
        error = rebuild(failure, run_id=live.id, position=entry.position, seq=entry.seq)
        return live.took(complete(entry.position, entry.at, error=error))
    text = live.codec.decode(entry.value or "")
    try:
        if ask is not None:
            value = live.read(ask, text)
        else:
            call: StepCall[Any] = request.call  # type: ignore[union-attr]
            value = call.step.signature.result.read(text, f"the journal's value of {entry.name!r}")
    except UnstorableValue as error:
        raise Mismatch(str(error), details=diff(entries, entry.seq - 1, str(error))) from error
    return live.took(complete(entry.position, entry.at, value=value))


def _open(live: LiveRun) -> str:
    steps = [f"{request.name!r} at {request.position}" for request in live.requests.values()]
    return ", ".join([*steps, *(f"{ask.name!r} at {ask.position}" for ask in live.asks.values())]) or "nothing"
