"""What is read from the store before a batch is decided: all that its ops need and that is not in memory."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from msgspec import Struct, field

from perdure.coordinator.inbox import Item
from perdure.kernel.cooperating import CALLED
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
    UndoScope,
    Wake,
)
from perdure.kernel.records import Run
from perdure.kernel.stock import Task
from perdure.ports import LoadedRun, Store


class Found(Struct, kw_only=True):
    """What was looked up for a batch: runs of which memory has nothing, or not all; children of those that are ended;
    keys in use; those dead letters that are there; and tasks that are to be answered."""

    runs: dict[str, LoadedRun] = field(default_factory=dict)
    children: dict[str, tuple[str, ...]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    letters: set[str] = field(default_factory=set)
    tasks: dict[str, Task] = field(default_factory=dict)


async def look_up(store: Store, loaded: Mapping[str, Run], items: Sequence[Item]) -> Found:
    """What is needed to decide these ops, beside the runs that are `loaded`. Raises StoreError."""
    missing: set[str] = set()
    ending: list[str] = []
    keys: list[str] = []
    letters: list[str] = []
    tasks: list[str] = []
    for item in items:
        op = item.op
        if op.run_id not in loaded and op.run_id and not (isinstance(op, Start) and op.fresh):
            missing.add(op.run_id)
        if item.mail and isinstance(op, Wake):
            missing.add(op.run_id)  # Loaded or not: somebody else has given it something.
        if isinstance(op, Advance):
            if op.cancels:
                ending += op.cancels
            run = loaded.get(op.run_id) if op.end is not None else None
            if run is not None and run.bond == CALLED and run.parent_id not in loaded:
                missing.add(run.parent_id or "")
        elif isinstance(op, (Cooperate, CancelScope, UndoScope)):
            for tell in op.tells:
                _look_for(tell, loaded, missing, ending)
        elif isinstance(op, (Tell, Settle)):
            _look_for(op, loaded, missing, ending)
        elif isinstance(op, (Cancel, Expire)):
            ending.append(op.run_id)
        elif isinstance(op, Answer):
            tasks.append(op.task_id)
        elif isinstance(op, (Send, Forget)):
            if op.letter:
                letters.append(op.letter)
            if isinstance(op, Send) and op.event.key is not None:
                keys.append(op.event.key)
    found = Found()
    for letter_id in letters:
        if await store.letter(letter_id) is not None:
            found.letters.add(letter_id)
    if tasks:
        found.tasks = await store.load_tasks(tasks)
    missing.update(run_id for run_id in ending if run_id not in loaded)
    if missing:
        found.runs = await store.load(list(missing))
    if keys:
        found.keys = await store.sent(keys)
    while ending:  # Children end with their parents, and their children with them.
        below = await store.children(ending)
        ending = []
        for child in below:
            parent = child.run.parent_id or ""
            found.children[parent] = (*found.children.get(parent, ()), child.run.id)
            if child.run.id not in loaded:
                found.runs[child.run.id] = child
            ending.append(child.run.id)
    if callers := _callers(items, loaded, found):
        found.runs |= await store.load(callers)
    return found


def _callers(items: Sequence[Item], loaded: Mapping[str, Run], found: Found) -> list[str]:
    """Operations that have called runs which may end now: they are told."""
    wanted: dict[str, None] = {}
    for item in items:
        known = loaded.get(item.op.run_id) if isinstance(item.op, (Cancel, Expire, Tell)) else None
        if known is not None and known.bond == CALLED and known.parent_id is not None:
            wanted[known.parent_id] = None
    for one in found.runs.values():
        if one.run.bond == CALLED and one.run.parent_id is not None:
            wanted[one.run.parent_id] = None
    return [run_id for run_id in wanted if run_id not in loaded and run_id not in found.runs]


def _look_for(op: Tell | Settle, loaded: Container[str], missing: set[str], ending: list[str]) -> None:
    """Who is told something, and whom that one tells in turn."""
    missing.update(one for one in (op.run_id, op.parent_id) if one and one not in loaded)
    if isinstance(op, Tell) and op.kind not in ("news", "join"):
        ending.append(op.run_id)
