"""The runs that can go on, computed from all rows of `messages` and `message_event`. The computation follows the query
of the protocol.

It uses neither the engine's rules nor an engine's memory, because its result is used to check them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from perdure.kernel.lineages import Kinship, Lineage, depth_of
from perdure.models.cooperation.context import EXEMPT, NOT_BEFORE, CancellationToken, Context, token_names
from perdure.models.cooperation.deadlines import HAPPY_DEADLINE, ROLLBACK_DEADLINE
from perdure.models.cooperation.failures import DISMISSED, Failure
from perdure.models.cooperation.message_events import SLEEP_TOPIC, EventType, Message, MessageEvent
from perdure.models.cooperation.strategies import Pending, Registry, Strategy
from perdure.values.arguments import checked

Pair = tuple[str, str]  # message id and handler, which identify one run

_DONE: Final = frozenset({EventType.COMMITTED, EventType.ROLLED_BACK, EventType.ROLLBACK_FAILED})
_UNDONE: Final = frozenset({EventType.ROLLED_BACK, EventType.ROLLBACK_FAILED})


@checked
def ready(
    messages: Iterable[Message],
    events: Iterable[MessageEvent],
    *,
    expected: Mapping[str, Collection[str]],
    strategies: Mapping[str, Strategy],
    now: int,
) -> set[Pair]:
    """Return the runs that can go on now, as (message, handler).

    `expected` has the handlers of each message. `strategies` has the strategy of each operation. The default is
    `Registry()`.
    """
    rows = _Rows(messages, events, expected)
    found: set[Pair] = set()
    for message_id in rows.emitted:
        for handler in {*expected.get(message_id, ()), *rows.takers(message_id)}:
            pair = (message_id, handler)
            if rows.is_ready(pair, strategies.get(handler) or Registry(), now):
                found.add(pair)
    return found


class _Rows:
    def __init__(
        self, messages: Iterable[Message], events: Iterable[MessageEvent], expected: Mapping[str, Collection[str]]
    ) -> None:
        self.wakes = {one.id: msgspec.json.decode(one.payload)["until"] for one in messages if one.topic == SLEEP_TOPIC}
        self.expected = expected
        self.emitted: dict[str, MessageEvent] = {}
        self.rollbacks: dict[str, MessageEvent] = {}
        self.seen: dict[Pair, MessageEvent] = {}
        self.dismissed: set[Pair] = set()
        self.by_lineage: dict[Lineage, list[MessageEvent]] = {}
        self.by_id: dict[str, list[MessageEvent]] = {}
        self.seen_by_message: dict[str, list[MessageEvent]] = {}
        for row in sorted(events, key=lambda row: (row.cooperation_lineage, row.seq)):
            self.by_lineage.setdefault(row.cooperation_lineage, []).append(row)
            self.by_id.setdefault(row.cooperation_lineage[-1], []).append(row)
            if row.type is EventType.EMITTED:
                self.emitted[row.message_id] = row
            elif row.type is EventType.ROLLBACK_EMITTED:
                self.rollbacks[row.message_id] = row
            elif row.type is EventType.SEEN:
                self.seen[(row.message_id, row.coroutine_name or "")] = row
                self.seen_by_message.setdefault(row.message_id, []).append(row)
            elif row.type is EventType.CANCELLATION_REQUESTED and _type(row.exception) == DISMISSED:
                self.dismissed.add((row.message_id, row.coroutine_name or ""))

        self.kinship = Kinship(self.by_lineage)

    def takers(self, message_id: str) -> list[str]:
        return [row.coroutine_name or "" for row in self.seen_by_message.get(message_id, ())]

    def is_ready(self, pair: Pair, strategy: Strategy, now: int) -> bool:
        seen = self.seen.get(pair)
        if seen is None:
            return pair not in self.dismissed
        own = self.by_lineage[seen.cooperation_lineage]
        types = {row.type for row in own}
        if types & _UNDONE:
            return False
        rolling_back = EventType.ROLLING_BACK in types
        if EventType.COMMITTED in types and not rolling_back:
            return seen.message_id in self.rollbacks
        window = self._window(own)
        if window is None:
            begins_at = self._begins_at(seen.message_id)
            return rolling_back or now >= begins_at or bool(strategy.heeds(self._reasons(own, rolling_back, now)))
        emitted, undone, since = window
        if not emitted and not undone:
            return True
        giving_up = bool(strategy.heeds(self._reasons(own, rolling_back, now)))
        missing, busy = self._children(seen.cooperation_lineage, emitted, undone)
        if busy:
            return False
        if not giving_up and any(self.wakes.get(message_id, 0) > now for message_id in emitted):
            return False
        if all(message_id in self.wakes for message_id in (*emitted, *undone)):
            return True
        pending = Pending(missing=tuple(missing), giving_up=giving_up, rolling_back=rolling_back, since=since, now=now)
        return strategy.goes_on(pending)

    def _begins_at(self, message_id: str) -> int:
        context = self.emitted[message_id].context
        return 0 if context is None else context.get(NOT_BEFORE) or 0

    def _window(self, own: list[MessageEvent]) -> tuple[list[str], list[str], int] | None:
        """Return the messages that were emitted in the last window, the messages that were asked to roll back in it,
        and the time of the window.

        The last window ends with the last SUSPENDED row. It begins after the previous SUSPENDED, ROLLING_BACK or SEEN
        row. Return None if a ROLLING_BACK or SEEN row comes after the last SUSPENDED row.
        """
        bounds = [
            place
            for place, row in enumerate(own)
            if row.type is EventType.SUSPENDED or row.type is EventType.ROLLING_BACK or row.type is EventType.SEEN
        ]
        last = bounds[-1]
        if own[last].type is not EventType.SUSPENDED:
            return None
        between = own[bounds[-2] + 1 : last]
        emitted = [row.message_id for row in between if row.type is EventType.EMITTED]
        undone = [row.message_id for row in between if row.type is EventType.ROLLBACK_EMITTED]
        return emitted, undone, own[last].created_at

    def _children(self, lineage: Lineage, emitted: list[str], undone: list[str]) -> tuple[list[str], bool]:
        """Return the handlers that have not begun their work or their rollback. Also return whether a handler has begun
        and not ended.
        """
        missing: list[str] = []
        busy = False
        for message_ids, begins, ends in (
            (emitted, EventType.SEEN, _DONE),
            (undone, EventType.ROLLING_BACK, _UNDONE),
        ):
            for message_id in message_ids:
                for handler in sorted({*self.expected.get(message_id, ()), *self.takers(message_id)}):
                    if (message_id, handler) in self.dismissed:
                        continue
                    seen = self.seen.get((message_id, handler))
                    rows = self.by_lineage.get(seen.cooperation_lineage, []) if seen else []
                    types = {row.type for row in rows if row.cooperation_lineage[-2] == lineage[-1]}
                    # A rollback cancels the commit, so only the rows after it count.
                    is_back = EventType.ROLLING_BACK in types
                    is_done = bool(types & (_UNDONE if is_back else ends))
                    is_at_work = bool(types) and not is_back and EventType.COMMITTED not in types
                    if begins in types or is_at_work:
                        busy = busy or not is_done
                    else:
                        missing.append(handler)
        return missing, busy

    def _reasons(self, own: list[MessageEvent], rolling_back: bool, now: int) -> list[Failure]:
        lineage = own[0].cooperation_lineage
        context = Context()
        for row in own:
            if row.context is not None and row.type not in (EventType.EMITTED, EventType.ROLLBACK_EMITTED):
                context = row.context
        found: list[Failure] = []
        deadline = context.get(ROLLBACK_DEADLINE if rolling_back else HAPPY_DEADLINE)
        if deadline is not None and now >= deadline.at:
            found.append(Failure(type="deadline", message=""))
        if rolling_back:
            return found
        exempt = context.get(EXEMPT) or 0
        for _, id in zip(range(depth_of(lineage), exempt, -1), self.kinship.above(lineage), strict=False):
            above = self.by_id.get(id, ())
            cancelled = any(
                row.type is EventType.CANCELLATION_REQUESTED and _type(row.exception) != DISMISSED for row in above
            )
            is_undone = any(row.type is EventType.SEEN and row.message_id in self.rollbacks for row in above)
            if cancelled or is_undone:
                found.append(Failure(type="asked", message=""))
        tokens = [CancellationToken(name) for name in token_names(self.emitted[own[0].message_id].context)]
        found += [Failure(type="asked", message="") for token in tokens if token.scope in self.by_id]
        return found


def _type(failure: Failure | None) -> str:
    return "" if failure is None else failure.type
