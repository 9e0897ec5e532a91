"""Messages, their events, return values and handlers of the store in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.errors import CommitConflict, CommitRefused
from perdure.kernel.cooperation import (
    Cooperation,
    HandlerList,
    HandlerRow,
    MessageEventRow,
    MessageRow,
    OperationRow,
    ReturnValueRow,
    ScopeRows,
    asked_from_above,
)
from perdure.kernel.lineages import read_origin
from perdure.kernel.runless_rows import HandlerChange


class CooperationTables(Struct, eq=False):
    """The tables, with a few indexes."""

    messages: dict[str, MessageRow] = field(default_factory=dict)
    events: dict[str, dict[int, MessageEventRow]] = field(default_factory=dict)  # by scope and number
    keys: dict[str, dict[str, MessageEventRow]] = field(default_factory=dict)  # by message and key
    values: dict[str, dict[str, ReturnValueRow]] = field(default_factory=dict)  # by scope and variable
    handlers: dict[tuple[str, str], HandlerRow] = field(default_factory=dict)
    version: int = 0
    children: dict[str, list[str]] = field(default_factory=dict)  # by parent

    def check(self, added: Cooperation) -> None:
        """Check that these rows fit the stored rows. Raises CommitConflict, CommitRefused."""
        if added.registry_version is not None and added.registry_version != self.version:
            raise CommitConflict(frozenset(), registry_version=self.version)
        places: set[tuple[str, int]] = set()
        keys: set[tuple[str, str]] = set()
        for event in added.events:
            place = scope, seq = event.scope, event.seq
            if place in places or ((known := self.events.get(scope)) is not None and seq in known):
                raise CommitRefused(f"scope {scope!r} has an event {seq} already", run_id=scope)
            places.add(place)
            if event.key is not None:
                key = (event.message_id, event.key)
                if key in keys or ((has := self.keys.get(event.message_id)) is not None and event.key in has):
                    raise CommitRefused(f"message {key[0]!r} has an event {key[1]!r} already", run_id=scope)
                keys.add(key)
        if not self.messages.keys().isdisjoint(message.id for message in added.messages):
            raise CommitRefused("a message with this id was emitted before")
        for value in added.values:
            if value.variable in self.values.get(value.scope, {}):
                raise CommitRefused(f"run {value.scope!r} has returned {value.variable!r} before", run_id=value.scope)

    def apply(self, added: Cooperation, at: int) -> None:
        self.messages |= {message.id: message for message in added.messages}
        for event in added.events:
            self.events.setdefault(event.scope, {})[event.seq] = event
            if event.key is not None:
                self.keys.setdefault(event.message_id, {})[event.key] = event
        for value in added.values:
            self.values.setdefault(value.scope, {})[value.variable] = value
        for topic, name in added.seen:
            known = self.handlers.get((topic, name)) or HandlerRow(topic=topic, name=name)
            if known.seen_at is None:
                self.handlers[topic, name] = replace(known, seen_at=at)
                self.version += 1

    def accepts(self, changes: Sequence[HandlerChange]) -> bool:
        """Return whether each handler that is to be retired is known and not retired yet."""
        present = {pair for pair, row in self.handlers.items() if row.retired_at is None} if changes else set()
        for change in changes:
            if change.is_expected:
                present.add((change.topic, change.name))
            elif (change.topic, change.name) not in present:
                return False
            else:
                present.discard((change.topic, change.name))
        return True

    def change_handlers(self, changes: Sequence[HandlerChange], at: int) -> None:
        for change in changes:
            known = self.handlers.get((change.topic, change.name)) or HandlerRow(topic=change.topic, name=change.name)
            is_expected = known.registered_at is not None and known.retired_at is None
            if change.is_expected and not is_expected:
                self.handlers[change.topic, change.name] = replace(known, registered_at=at, retired_at=None)
                self.version += 1
            elif not change.is_expected and (change.topic, change.name) in self.handlers and known.retired_at is None:
                self.handlers[change.topic, change.name] = replace(known, retired_at=at)
                self.version += 1

    def registered(self) -> HandlerList:
        return HandlerList(version=self.version, handlers=tuple(self.handlers[key] for key in sorted(self.handlers)))

    # Reading. `find` returns a run of an operation, or a run that an operation has called.

    def scopes(self, ids: Sequence[str], find: Callable[[str], OperationRow | None]) -> ScopeRows:
        own = _found(ids, find)
        events = {(scope, seq): event for scope in ids for seq, event in self.events.get(scope, {}).items()}
        above, far = asked_from_above(own.values(), events.values())
        everybody = own | _found(above, find)
        for one in ids:
            everybody |= _found(self.children.get(one, ()), find)
        rest: dict[str, OperationRow] = {}
        for one in far:
            parent = own[one].parent_id
            while parent is not None and parent not in rest and (run := find(parent)) is not None:
                rest[parent] = run
                parent = run.parent_id
        emitted = [event.message_id for event in events.values() if event.type == "EMITTED"]
        handled = {read_origin(run.origin)[0] for run in everybody.values()}
        for message_id in handled:
            events |= {(event.scope, event.seq): event for event in self.keys.get(message_id, {}).values()}
        for run in rest.values():
            for key, event in self.keys.get(read_origin(run.origin)[0], {}).items():
                if key == "ROLLBACK_EMITTED" or key.startswith("CANCELLATION_REQUESTED/"):
                    events[event.scope, event.seq] = event
        messages = [*emitted, *(read_origin(run.origin)[0] for run in own.values())]
        return self._rows(rest | everybody, events, messages)

    def events_at(self, places: Sequence[tuple[str, int]]) -> list[MessageEventRow]:
        found = (self.events.get(scope, {}).get(seq) for scope, seq in places)
        return [event for event in found if event is not None]

    def hierarchy(self, id: str, find: Callable[[str], OperationRow | None]) -> ScopeRows:
        runs = _found([id], find)
        level: Sequence[str] = [id]
        while level:
            level = [child for one in level for child in self.children.get(one, ())]
            runs |= _found(level, find)
        events = {(scope, seq): event for scope in {id, *runs} for seq, event in self.events.get(scope, {}).items()}
        return self._rows(runs, events, [event.message_id for event in events.values()])

    def _rows(
        self, runs: dict[str, OperationRow], events: dict[tuple[str, int], MessageEventRow], messages: Iterable[str]
    ) -> ScopeRows:
        return ScopeRows(
            runs=tuple(run for _, run in sorted(runs.items())),
            messages=tuple(self.messages[one] for one in sorted({*messages}) if one in self.messages),
            events=tuple(events[place] for place in sorted(events)),
            values=tuple(value for run_id in sorted(runs) for value in self.values.get(run_id, {}).values()),
        )


def _found(ids: Iterable[str], find: Callable[[str], OperationRow | None]) -> dict[str, OperationRow]:
    return {one: run for one in ids if (run := find(one)) is not None}
