"""The rules of delivery. Events that were sent to a run, its timers and wake-ups are matched with the waits of the run.

perdure/kernel/wait_matches.py does the matching. broadcasts.py has the rules of broadcasts.

An event that was given to a waiting run stays in the store until an advance of that run reads it. So a crash before
that advance loses nothing, and no event is delivered twice. advances.py writes the suspension of a run. All rows of one
decision are written in one commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from perdure.errors import EngineBug, KeyReused, QueueFull, RunNotWaiting
from perdure.kernel import ops, wait_matches
from perdure.kernel.decision import NOTHING, Decision, DecisionInput, deliveries, mine_or_free, note
from perdure.kernel.effects import Begin, Deliver, Effect
from perdure.kernel.event_queue import Placed
from perdure.kernel.events import Event
from perdure.kernel.runs import Run
from perdure.kernel.status import FINISHED, Status
from perdure.kernel.wait_matches import EMPTY, Mailbox

# Actors that do not name anybody. The audit trail does not note the requests of these actors.
UNNAMED = frozenset({"api", "engine"})


class Delivered(Struct, frozen=True):
    """The runs that waited for the event and have got it.

    For a retained event, these are the runs that it reached in the first commit.
    """

    run_ids: tuple[str, ...]


class Queued(Struct, frozen=True):
    """No run waited for the event. It is kept until a run waits for it, or until it expires."""

    event_id: str


class TargetFinished(Struct, frozen=True):
    """The run has ended; nothing was sent."""

    run_id: str
    status: str


class TargetNotFound(Struct, frozen=True):
    """The run does not exist; nothing was sent."""

    run_id: str


Sent = Delivered | Queued | TargetFinished | TargetNotFound


class FromCommit(Struct, frozen=True):
    """A reply that only the transaction knows: the runs that got the event."""

    event_id: str
    strict: bool
    pending_max: int
    name: str = ""


def keyed(event_id: str, content: str) -> str:
    """Return the id for an event that is sent with a key. The id contains a digest of the content. If the key is used
    again, the digests are compared.
    """
    return f"{event_id}~{content}"


def content_of(event_id: str) -> str:
    """Return the digest of the content that was sent with a key. It is empty if the event has no key, or if an older
    version of Perdure sent it, which made no digests.
    """
    return event_id.partition("~")[2]


def send(run: Run | None, op: ops.Send, me: str, inputs: DecisionInput) -> Decision:
    event = op.event
    dead_letter = op.dead_letter or None
    if op.known:
        if content_of(op.known) != content_of(event.id) and content_of(op.known):
            raise KeyReused(
                f"another event was sent with the key {event.key!r}, as {op.known!r}: this one ({event.name!r}) was "
                "not sent. Give each event a key of its own; the same event under the same key is sent once",
                event=event.name,
                key=event.key,
                event_id=op.known,
            )
        return Decision(reply=Queued(op.known))
    if not op.run_id:
        return Decision(
            events=(event,), dead_letter=dead_letter, reply=FromCommit(event.id, op.strict, op.pending_max, event.name)
        )
    if run is None:
        return Decision(reply=TargetNotFound(op.run_id))
    if run.status in FINISHED:
        return Decision(reply=TargetFinished(run.id, run.status))
    mine_or_free(run, op, me)
    before = wait_matches.without_expired(inputs.mailbox, op.at)
    mailbox, given = wait_matches.put(before, event)
    if given.position is None:
        if op.strict:
            raise RunNotWaiting(
                f"run {run.id!r} does not wait for {event.name!r} now; leave out strict=True to have it queued",
                run_id=run.id,
                event=event.name,
            )
        count = wait_matches.pending(before, event.name, op.at)
        if count >= op.pending_max:
            raise QueueFull(
                f"{count} events {event.name!r} already wait to be read by run {run.id!r}: send fewer, or let it read",
                event=event.name,
                pending=count,
                run_id=run.id,
            )
        decision = Decision(
            run=run,
            guard=run.owner != me,
            mailbox=mailbox,
            events=(given,),
            dead_letter=dead_letter,
            reply=Queued(event.id),
        )
    else:
        decision = delivered(run, mailbox, given, me, inputs, dead_letter=dead_letter, reply=Delivered((run.id,)))
    return noted(decision, op, "sent", f"sent {event.name}")


def noted(decision: Decision, op: ops.Op, became: str, cause: str) -> Decision:
    """Return a decision about a run. If the actor has a name, add an audit row that says who made the request."""
    if decision.run is None or op.actor in UNNAMED:
        return decision
    run, rows = note(decision.run, op, became, cause)
    effects = tuple(Begin(run) if isinstance(effect, Begin) else effect for effect in decision.effects)
    return replace(decision, run=run, row=True, guard=False, audit=decision.audit + rows, effects=effects)


def delivered(
    run: Run,
    mailbox: Mailbox,
    given: Event,
    me: str,
    inputs: DecisionInput,
    *,
    dead_letter: str | None = None,
    reply: Any,
) -> Decision:
    """Return the decision about an event that has won a wait of the run. If no engine owns the run and this engine has
    its code, this engine claims it."""
    if run.owner == me:
        effects: tuple[Effect, ...] = deliveries(run.id, (given,))
        return Decision(
            run=run, mailbox=mailbox, events=(given,), dead_letter=dead_letter, effects=effects, reply=reply
        )
    if not _can_take(run, inputs):
        return Decision(run=run, guard=True, mailbox=mailbox, events=(given,), dead_letter=dead_letter, reply=reply)
    run = taken(run, me)
    return Decision(
        run=run, row=True, mailbox=mailbox, events=(given,), dead_letter=dead_letter, effects=(Begin(run),), reply=reply
    )


def spread(_run: Run | None, op: ops.Spread, _me: str, _inputs: DecisionInput) -> Decision:
    return Decision(spread=op.event_id, reply=True)


def forget(_run: Run | None, op: ops.Forget, _me: str, _inputs: DecisionInput) -> Decision:
    return Decision(dead_letter=op.dead_letter, reply=True)


def due(run: Run | None, op: ops.Due, me: str, inputs: DecisionInput) -> Decision:
    if run is None or run.owner != me or run.claim != op.claim or not wait_matches.is_open(inputs.mailbox, op.position):
        return NOTHING
    mailbox = wait_matches.fire(inputs.mailbox, op.position, op.option)
    return Decision(run=run, mailbox=mailbox, effects=(Deliver(run.id, op.position, op.option),), reply=True)


def wake(run: Run | None, op: ops.Wake, me: str, inputs: DecisionInput) -> Decision:
    if run is None or run.status in FINISHED:
        return NOTHING
    if run.owner == me and inputs.stored is not None:
        mailbox, winners = wait_matches.learn(inputs.mailbox, *inputs.stored)
        effects = tuple([Deliver(run.id, wait.position, wait.option, event, wait.target) for wait, event in winners])
        return Decision(run=run, mailbox=mailbox, effects=effects, reply=True)
    if run.owner is not None and run.owner != me:
        mine_or_free(run, op, me)
    if run.owner == me or not _can_take(run, inputs):
        return NOTHING
    run = taken(run, me)
    is_ahead = op.then is not None and op.then.claim == run.claim
    return Decision(
        run=run,
        row=True,
        mailbox=inputs.mailbox,
        effects=(Begin(run, is_ahead=is_ahead),),
        follow_ups=(op.then,) if is_ahead and op.then is not None else (),
        reply=True,
    )


def check_fence(_run: Run | None, op: ops.CheckFence, _me: str, _inputs: DecisionInput) -> Decision:
    return Decision(is_forced=True, reply=EngineBug(op.error) if op.error else True)


def _can_take(run: Run, inputs: DecisionInput) -> bool:
    return run.status is Status.SUSPENDED and run.hold is None and inputs.has_code


def taken(run: Run, me: str) -> Run:
    """Return a run without an owner in the state that it has after this engine has claimed it."""
    return replace(run, owner=me, claim=run.claim + 1)


def meet(mailbox: Mailbox, op: ops.Advance) -> tuple[Mailbox | None, tuple[Event, ...]]:
    """Close and open positions. Return the mailbox, and the events that win the new positions. Both happen in one
    decision, so no event is missed between the check and the wait.
    """
    before = mailbox
    if op.read_ahead:
        mailbox = wait_matches.read_ahead(mailbox, op.read_ahead)
    freed: Sequence[Placed] = ()
    if mailbox is not EMPTY and (op.waits_dropped or op.events_read):
        mailbox, freed = wait_matches.closed(mailbox, op.waits_dropped, op.events_read, op.waits)
    mailbox = wait_matches.add_waits(mailbox, op.waits)
    # An event that was already unread fits none of the positions that were already open. A freed event may fit one of
    # these positions.
    mailbox, given = wait_matches.settle(mailbox, op.at, op.waits, freed)
    return (None if mailbox is before else mailbox), tuple(given)
