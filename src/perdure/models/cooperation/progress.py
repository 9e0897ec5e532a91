"""How far a run has come, read from its rows: which step instances it has executed, and which phase of its rollback is
done. A pure fold, the same live and after a crash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from perdure.errors import PerdureError
from perdure.models.cooperation.context import EMPTY, Context
from perdure.models.cooperation.define import Plan
from perdure.models.cooperation.events import EventType, MessageEvent
from perdure.models.cooperation.failures import Failure


class Mismatch(PerdureError):
    """The rows tell of a step that the operation does not have."""


class Instance(Struct, frozen=True, kw_only=True):
    """One execution of a step, or (with `call`, counted from 0) one call of its handler of child failures."""

    index: int
    name: str
    iteration: int
    call: int | None = None
    emitted: tuple[str, ...] = ()
    next_step: int | None = None

    @property
    def text(self) -> str:
        return f"{self.name}[{self.iteration},{'' if self.call is None else self.call}]"


class Phase(Struct, frozen=True, kw_only=True):
    """One half of rolling back an instance: its children, then the step's own."""

    instance: Instance
    kind: Literal["children", "own"]
    text: str
    cleanup: bool = False  # the step's finally has not been run


class Window(Struct, frozen=True, kw_only=True):
    """What the latest SUSPENDED waits for: what was emitted, and which children were told to roll back, since the one
    before it."""

    emitted: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    calls: int = 0  # of the handler of child failures, for what this window belongs to
    since: int = 0
    step: str = ""

    @property
    def messages(self) -> tuple[str, ...]:
        return (*self.emitted, *self.told)


class Progress(Struct, frozen=True, kw_only=True):
    instances: tuple[Instance, ...] = ()
    window: Window | None = None  # None: nothing was suspended yet, on this path
    context: Context = EMPTY
    rollback: MessageEvent | None = None  # its ROLLING_BACK
    phases: tuple[Phase, ...] = ()
    done: int = 0  # phases
    recorded: tuple[Failure, ...] = ()  # what could not be undone and was passed over
    next_seq: int = 1

    @property
    def phase(self) -> Phase:
        """The phase that the window belongs to."""
        return self.phases[self.done - 1]


def fold(plan: Plan, events: Sequence[MessageEvent]) -> Progress:
    """Raises Mismatch."""
    instances: list[Instance] = []
    emitted: list[str] = []
    told: list[str] = []
    window: Window | None = None
    context = EMPTY
    rollback: MessageEvent | None = None
    done = 0
    recorded: list[Failure] = []
    for row in events:
        match row.type:
            case EventType.EMITTED:
                emitted.append(row.message_id)
                continue
            case EventType.ROLLBACK_EMITTED:
                told.append(row.message_id)
                continue
            case EventType.ROLLING_BACK:
                rollback = row
                window = None
                emitted, told = [], []
            case EventType.SUSPENDED:
                call = row.child_failure_handler_iteration
                if rollback is None:
                    instances.append(_instance(plan, row, instances, tuple(emitted)))
                else:
                    done += call is None
                    if row.exception is not None:
                        recorded.append(row.exception)
                window = Window(
                    emitted=tuple(emitted),
                    told=tuple(told),
                    calls=0 if call is None else call + 1,
                    since=row.created_at,
                    step=row.step or "",
                )
                emitted, told = [], []
            case _:
                pass
        if row.context is not None:
            context = row.context
    return Progress(
        instances=tuple(instances),
        window=window,
        context=context,
        rollback=rollback,
        phases=phases_of(plan, instances) if rollback is not None else (),
        done=done,
        recorded=tuple(recorded),
        next_seq=max((row.seq for row in events), default=0) + 1,
    )


def _instance(plan: Plan, row: MessageEvent, before: Sequence[Instance], emitted: tuple[str, ...]) -> Instance:
    try:
        index = plan.index_of(row.step or "")
    except LookupError:
        raise Mismatch(
            f"operation {plan.handler!r} has no step {row.step!r} any more, which this run has executed"
        ) from None
    call = row.child_failure_handler_iteration
    return Instance(
        index=index,
        name=row.step or "",
        iteration=before[-1].iteration if call is not None else iteration_of(plan, before, index),
        call=call,
        emitted=emitted,
        next_step=row.next_step,
    )


def iteration_of(plan: Plan, before: Sequence[Instance], index: int) -> int:
    """How often in a row a step has run before. The finally between two of its runs does not break the row."""
    executed = [one for one in before if one.call is None]
    if executed and plan.nodes[executed[-1].index].kind == "finally" and plan.nodes[index].kind != "finally":
        executed.pop()
    if executed and executed[-1].index == index:
        return executed[-1].iteration + 1
    if plan.nodes[index].kind == "finally" and executed:
        return executed[-1].iteration
    return 0


def following(plan: Plan, instances: Sequence[Instance]) -> int:
    """The place in the plan of the step that comes next; its length if there is none. A finally comes right after its
    step, and then it goes where the step said."""
    if not instances:
        return 0
    last = instances[-1]
    node = plan.nodes[last.index]
    if node.cleanup is not None:
        return last.index + 1
    if node.kind == "finally":
        own = [one for one in instances if one.index == last.index - 1][-1]
        return last.index + 1 if own.next_step is None else own.next_step
    return last.index + 1 if last.next_step is None else last.next_step


def phases_of(plan: Plan, instances: Sequence[Instance]) -> tuple[Phase, ...]:
    """How to roll back: instance by instance, the newest first, of each its children and then its own. Calls of
    handlers of child failures have only children."""
    names = {node.name for node in plan.nodes}
    phases: list[Phase] = []
    for place in reversed(range(len(instances))):
        instance = instances[place]
        text = f"Rollback of {instance.text}"
        children = f"{text} (rolling back child scopes)"
        while text in names or children in names:
            text, children = f"{text}$", f"{children}$"
        phases.append(Phase(instance=instance, kind="children", text=children))
        if instance.call is None:
            cleanup = plan.nodes[instance.index].cleanup is not None and not _cleaned(instances, place)
            phases.append(Phase(instance=instance, kind="own", text=text, cleanup=cleanup))
    return tuple(phases)


def _cleaned(instances: Sequence[Instance], place: int) -> bool:
    """Whether the step's finally was run after this instance of it."""
    later = [one for one in instances[place + 1 :] if one.call is None]
    return bool(later) and later[0].index == instances[place].index + 1
