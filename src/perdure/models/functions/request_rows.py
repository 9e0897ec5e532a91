"""Rows of requests: the waits, children and continuations of a run, in the form in which the store keeps them."""

from __future__ import annotations

from typing import Any, Protocol

from perdure.kernel.ops import Continuation, Start
from perdure.kernel.pieces import Pieces, parts
from perdure.kernel.rows import Wait
from perdure.kernel.tasks import Task
from perdure.models.functions.commands import Ask, ChildCall, Commands, Continued
from perdure.models.functions.define import Workflow
from perdure.models.functions.identity import identity
from perdure.ports import Codec, Ids

# The waits that a run begins, the children that it starts, and the tasks that it opens.
Begun = tuple[list[Wait], list[Start], list[Task]]


class Waiter(Protocol):
    """A live run, from the point of view of its waits. `children` are the ids of the awaited children, by position."""

    id: str
    codec: Codec
    ids: Ids
    workflow: Workflow[Any, Any]
    input: str
    children: dict[str, str]
    pausing: dict[str, None]
    retries: dict[str, Wait]
    has_waited: bool


def begin_waiting(live: Waiter, commands: Commands, at: int) -> Pieces[Begun]:
    """Return the rows of a run's new requests: its waits, and the children and tasks that it starts."""
    waits = [
        Wait(run_id=live.id, position=t.position, kind="timer", name=t.name, due_at=t.due_at, since=t.since)
        for t in commands.timers
    ]
    children: list[Start] = []
    tasks: list[Task] = []
    for start, part in parts(commands.asks):
        if start:
            yield
        for ask in part:
            if ask.kind == "task":
                tasks.append(ask.what.opened(live.id, ask, live.ids(at), at, live.codec))
                waits += ask.what.rows(live.id, ask, tasks[-1].id)
                continue
            more, child = waits_of(live, ask, at)
            waits += more
            children += child
    live.has_waited = live.has_waited or bool(waits or children or commands.asks)
    return waits, children, tasks


def stop_waiting(live: Waiter, commands: Commands) -> tuple[list[str], list[str]]:
    """Return the positions at which a run no longer waits, and the children that it no longer needs."""
    withdrawn = [live.children.pop(position, None) for position in commands.asks_withdrawn]
    cancels = [child_id for child_id in withdrawn if child_id is not None]
    dropped = [*commands.asks_withdrawn, *commands.timers_dropped]
    for position in commands.steps_cancelled:
        live.pausing.pop(position, None)
        if live.retries.pop(position, None) is not None:
            dropped.append(position)
    return dropped, cancels


def start_of(live: Waiter, ask: Ask, child_id: str, at: int) -> Start:
    child: ChildCall = ask.what
    return Start(
        run_id=child_id,
        at=at,
        workflow=child.workflow.name,
        workflow_version=child.workflow.version,
        model=child.workflow.model,
        input=live.codec.encode(child.input),
        tags=child.tags,
        deadline=None if child.deadline_us is None else at + child.deadline_us,
        parent_id=live.id,
        bond=child.bond,
        fresh=child.id is None,
    )


def waits_of(live: Waiter, ask: Ask, at: int) -> tuple[tuple[Wait, ...], tuple[Start, ...]]:
    """Return the rows of a request, and the start of a child if the request starts a child."""
    if ask.kind == "wait":
        return ask.what.rows(live.id, ask), ()
    if ask.kind == "start":  # The caller has given the child's id. It is not known yet whether the id is free.
        return (), ()
    starts: tuple[Start, ...] = ()
    child_id = live.children.get(ask.position)
    if child_id is None:
        child_id = live.children[ask.position] = live.ids(at)
        starts = (start_of(live, ask, child_id, at),)
    wait = Wait(
        run_id=live.id, position=ask.position, kind="run", name=ask.name, target=child_id, since=ask.since,
        details=ask.what.digest or None,
    )  # fmt: skip
    return (wait,), starts


def continuation_of(live: Waiter, end: Continued) -> Continuation:
    return Continuation(
        workflow=end.workflow.name,
        workflow_version=end.workflow.version,
        input=live.codec.encode(end.input),
        origin=identity(live.workflow.name, live.codec.decode(live.input), live.workflow),
    )


__all__ = ["Begun", "begin_waiting", "continuation_of", "start_of", "stop_waiting", "waits_of"]
