"""What is read from the store before a batch is decided: all that its ops need and that is not in memory."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from msgspec import Struct, field

from perdure.coordinator.inbox import Item
from perdure.kernel.ops import (
    Advance,
    Answer,
    Cancel,
    CancelScope,
    Cooperate,
    Expire,
    Forget,
    Send,
    Settle,
    Start,
    Tell,
    TellMembers,
    UndoScope,
    Wake,
)
from perdure.kernel.records import Run
from perdure.kernel.rules.operations import CALLED, FENCE, JOIN, NEWS
from perdure.kernel.stock import Task
from perdure.ports import LoadedRun, Store


class BatchContext(Struct, kw_only=True):
    """What was looked up for a batch: runs of which memory has nothing, or not all; children of those that are ended;
    keys in use; those dead letters that are there; and tasks that are to be answered."""

    runs: dict[str, LoadedRun] = field(default_factory=dict)
    children: dict[str, list[str]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    letters: set[str] = field(default_factory=set)
    tasks: dict[str, Task] = field(default_factory=dict)


async def load_context(
    store: Store, loaded: Mapping[str, Run], items: Sequence[Item], seen: dict[str, LoadedRun] | None = None
) -> BatchContext:
    """What is needed to decide these ops, beside the runs that are `loaded`. Raises StoreError.

    Runs that are woken may have been `seen` before: then they are not read again, the first time. If a run has changed
    since, the commit is refused, and the next look reads it."""
    found = BatchContext() if not seen else _seen(seen, loaded, items)
    missing: set[str] = set()
    ending: list[str] = []
    keys: list[str] = []
    letters: list[str] = []
    tasks: list[str] = []
    callers: dict[str, None] = {}  # operations that have called runs which may end now: they are told
    for item in items:
        op = item.op
        run_id = op.run_id
        if run_id and run_id not in loaded and run_id not in found.runs and not (type(op) is Start and op.fresh):
            missing.add(run_id)
        match op:  # Those first that come most often.
            case Advance():
                if op.cancels:
                    ending += op.cancels
                run = loaded.get(op.run_id) if op.end is not None else None
                if run is not None and run.bond == CALLED and run.parent_id not in loaded:
                    missing.add(run.parent_id or "")
            case Start():
                pass
            case Cooperate() | CancelScope() | TellMembers() | UndoScope():
                for tell in op.tells:
                    _look_for(tell, loaded, missing, ending)
            case Send() | Forget():
                if op.letter:
                    letters.append(op.letter)
                if isinstance(op, Send) and op.event.key is not None:
                    keys.append(op.event.key)
            case Tell() | Settle():
                _look_for(op, loaded, missing, ending)
                if isinstance(op, Tell):
                    _call_back(loaded.get(op.run_id), callers)
            case Cancel() | Expire():
                ending.append(op.run_id)
                _call_back(loaded.get(op.run_id), callers)
            case Answer():
                tasks.append(op.task_id)
            case Wake() if item.mail:
                missing.add(op.run_id)  # Loaded or not: somebody else has given it something.
            case _:
                pass
    for letter_id in letters:
        if await store.letter(letter_id) is not None:
            found.letters.add(letter_id)
    if tasks:
        found.tasks = await store.load_tasks(tasks)
    missing.update(run_id for run_id in ending if run_id not in loaded)
    if missing:
        found.runs |= await store.load(list(missing))
    if keys:
        found.keys = await store.sent(keys)
    while ending:  # Children end with their parents, and their children with them.
        below = await store.children(ending)
        ending = []
        for child in below:
            parent = child.run.parent_id or ""
            found.children.setdefault(parent, []).append(child.run.id)
            if child.run.id not in loaded:
                found.runs[child.run.id] = child
            ending.append(child.run.id)
    for one in found.runs.values():
        _call_back(one.run, callers)
    if callers:
        unknown = [run_id for run_id in callers if run_id not in loaded and run_id not in found.runs]
        if unknown:
            found.runs |= await store.load(unknown)
    return found


def _seen(seen: dict[str, LoadedRun], loaded: Mapping[str, Run], items: Sequence[Item]) -> BatchContext:
    """The runs that these ops wake and nothing else concerns, as they were seen; they are not seen any more."""
    found: dict[str, LoadedRun] = {}
    others: set[str] = set()
    for item in items:
        run_id = item.op.run_id
        if type(item.op) is not Wake or item.mail:
            others.add(run_id)
        elif (one := seen.pop(run_id, None)) is not None and run_id not in loaded:
            found[run_id] = one
    return BatchContext(runs={run_id: one for run_id, one in found.items() if run_id not in others})


def _call_back(run: Run | None, callers: dict[str, None]) -> None:
    if run is not None and run.bond == CALLED and run.parent_id is not None:
        callers[run.parent_id] = None


def _look_for(op: Tell | Settle, loaded: Container[str], missing: set[str], ending: list[str]) -> None:
    """Who is told something, and whom that one tells in turn."""
    missing.update(one for one in (op.run_id, op.parent_id) if one and one not in loaded)
    if isinstance(op, Tell) and op.kind not in (NEWS, JOIN, FENCE):
        ending.append(op.run_id)
