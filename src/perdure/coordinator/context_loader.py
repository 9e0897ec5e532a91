"""The context loader reads the rows that the ops of a batch need and that are not in memory."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from msgspec import Struct, field

from perdure.coordinator.batch_context import BatchContext, Shared
from perdure.coordinator.queued_ops import Item
from perdure.kernel.operation_notices import FENCE, JOIN, NEWS
from perdure.kernel.ops import (
    Advance,
    Answer,
    Cancel,
    CancelScope,
    Cooperate,
    Expire,
    Forget,
    Notify,
    NotifyMembers,
    PutRecord,
    PutToken,
    ReleaseTask,
    RetireHandlers,
    Send,
    Settle,
    Start,
    UndoScope,
    Wake,
)
from perdure.kernel.rules.operations import CALLED
from perdure.kernel.runs import Run
from perdure.ports import LoadedRun, Store


class _Wanted(Struct):
    """The rows that the ops of a batch need. `ending` are runs that end together with their children. `shared` are ops
    about rows that belong to no run. `callers` are operations that are notified if a run that they have called ends
    now.
    """

    runs: set[str] = field(default_factory=set)
    ending: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    dead_letters: list[str] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    shared: list[Shared] = field(default_factory=list)
    callers: dict[str, None] = field(default_factory=dict)


async def load_context(
    store: Store, loaded: Mapping[str, Run], items: Sequence[Item], seen: dict[str, LoadedRun] | None = None
) -> BatchContext:
    """Read the rows that are needed to decide these ops, in addition to the `loaded` runs. Raises StoreError.

    If a run to be woken was `seen` a moment ago, it is not read again. The run is removed from `seen` here. If the run
    has changed after it was seen, the commit is refused. Then the next call reads the run.
    """
    found = BatchContext() if not seen else _seen(seen, loaded, items)
    wanted = _wanted(items, loaded, found.runs)
    for letter_id in wanted.dead_letters:
        if await store.dead_letter(letter_id) is not None:
            found.dead_letters.add(letter_id)
    if wanted.tasks:
        found.tasks = await store.load_tasks(wanted.tasks)
    ending = wanted.ending
    wanted.runs.update(run_id for run_id in ending if run_id not in loaded)
    if wanted.runs:
        found.runs |= await store.load(list(wanted.runs))
    if wanted.keys:
        found.keys = await store.sent(wanted.keys)
    if wanted.shared:
        await _load_shared(store, wanted.shared, found)
    if ending:
        await _load_children(store, loaded, ending, found)
    for one in found.runs.values():
        _call_back(one.run, wanted.callers)
    unknown = [run_id for run_id in wanted.callers if run_id not in loaded and run_id not in found.runs]
    if unknown:
        found.runs |= await store.load(unknown)
    return found


async def _load_children(store: Store, loaded: Container[str], ending: list[str], found: BatchContext) -> None:
    """Read the children of runs that end, and the children of these children, because all of them end too."""
    while ending:
        below = await store.children(ending)
        ending = []
        for child in below:
            parent = child.run.parent_id or ""
            found.children.setdefault(parent, []).append(child.run.id)
            if child.run.id not in loaded:
                found.runs[child.run.id] = child
            ending.append(child.run.id)


async def _load_shared(store: Store, ops: Sequence[Shared], found: BatchContext) -> None:
    """Read the newest versions of the records and tokens to which ops add versions. If an op retires handlers, read the
    handlers too. Raises RowDamaged.
    """
    for op in ops:
        match op:
            case PutRecord():
                found.records[op.record.kind, op.record.name] = await store.record(op.record.kind, op.record.name)
            case PutToken():
                found.tokens[op.token.name] = await store.token(op.token.name)
            case RetireHandlers():
                known = await store.handlers()
                found.handlers = {(one.topic, one.name) for one in known.handlers if one.retired_at is None}


def _wanted(items: Sequence[Item], loaded: Mapping[str, Run], found: Container[str]) -> _Wanted:
    wanted = _Wanted()
    for item in items:
        op = item.op
        run_id = op.run_id
        if run_id and run_id not in loaded and run_id not in found and not (type(op) is Start and op.fresh):
            wanted.runs.add(run_id)
        match op:  # The most frequent ops come first.
            case Advance():
                if op.cancels:
                    wanted.ending += op.cancels
                run = loaded.get(op.run_id) if op.end is not None else None
                if run is not None and run.bond == CALLED and run.parent_id not in loaded:
                    wanted.runs.add(run.parent_id or "")
            case Start():
                pass
            case Cooperate() | CancelScope() | NotifyMembers() | UndoScope():
                for notice in op.notices:
                    _look_for(notice, loaded, wanted)
            case Send() | Forget():
                if op.dead_letter:
                    wanted.dead_letters.append(op.dead_letter)
                if isinstance(op, Send) and op.event.key is not None:
                    wanted.keys.append(op.event.key)
            case Notify() | Settle():
                _look_for(op, loaded, wanted)
                if isinstance(op, Notify):
                    _call_back(loaded.get(op.run_id), wanted.callers)
            case Cancel() | Expire():
                wanted.ending.append(op.run_id)
                _call_back(loaded.get(op.run_id), wanted.callers)
            case Answer() | ReleaseTask():
                wanted.tasks.append(op.task_id)
            case PutRecord() | PutToken() | RetireHandlers():
                wanted.shared.append(op)
            case Wake() if item.mail:
                # Read the run even if it is loaded, because another engine has matched an event or an end to its wait.
                wanted.runs.add(op.run_id)
            case _:
                pass
    return wanted


def _seen(seen: dict[str, LoadedRun], loaded: Mapping[str, Run], items: Sequence[Item]) -> BatchContext:
    """Return the runs that these ops wake, in the state in which they were seen. Remove them from `seen`. Runs with
    other ops in the batch are left out.
    """
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


def _look_for(op: Notify | Settle, loaded: Container[str], wanted: _Wanted) -> None:
    """Add the run that is notified, and the runs that it will notify."""
    wanted.runs.update(one for one in (op.run_id, op.parent_id) if one and one not in loaded)
    if isinstance(op, Notify) and op.kind not in (NEWS, JOIN, FENCE):
        wanted.ending.append(op.run_id)


__all__ = ["load_context"]
