"""A hierarchy in its stored form. Its rows become the view that the machine needs. The view has a run with its
children, its rollback request, and the requests to give up.

An engine that recovers a run reads the run in this way. An engine that has the run in memory updates the run as rows
are committed and mail arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from perdure.kernel.lineages import Lineage, depth_of
from perdure.kernel.pieces import Pieces, at_once, parts
from perdure.models.cooperation.children import Child, Children
from perdure.models.cooperation.context import CancellationToken, token_names
from perdure.models.cooperation.failures import Failure
from perdure.models.cooperation.message_events import (
    SLEEP_TOPIC,
    EventType,
    Message,
    MessageEvent,
    failure_in,
    in_order,
    state_of,
)
from perdure.models.cooperation.moves import Ask, NewRun, OperationRun
from perdure.models.cooperation.return_values import ReturnValue
from perdure.models.cooperation.sleeps import wake_of


class Hierarchy:
    """Rows by lineage and by message. They are all rows of one root emission, or the rows that were read for several
    runs.
    """

    def __init__(
        self,
        messages: Iterable[Message],
        events: Iterable[MessageEvent],
        runs: Iterable[NewRun],
        values: Iterable[ReturnValue] = (),
    ) -> None:
        self.messages: Mapping[str, Message] = {message.id: message for message in messages}
        self._runs: dict[str, NewRun] = {}
        self._below: dict[str, list[NewRun]] = {}
        self._values: dict[str, list[ReturnValue]] = {}  # by the run that returned them
        self._rows: dict[str, list[MessageEvent]] = {}  # by the last id of the lineage
        self._emitted: dict[str, MessageEvent] = {}
        self._rollback_requests: dict[str, MessageEvent] = {}
        self._cancelled: dict[str, list[MessageEvent]] = {}  # by the last id of the lineage
        for run in runs:
            self._runs[run.id] = run
            self._below.setdefault(run.lineage[-2], []).append(run)
        for value in values:
            self._values.setdefault(value.lineage[-1], []).append(value)
        at_once(self._add([*events]))

    @classmethod
    def in_pieces(
        cls,
        messages: Iterable[Message],
        events: Sequence[MessageEvent],
        runs: Iterable[NewRun],
        values: Iterable[ReturnValue] = (),
    ) -> Pieces[Hierarchy]:
        """Make a hierarchy in pieces. A run has several rows for each of its many children."""
        made = cls(messages, (), runs, values)
        yield from made._add(events)
        return made

    def _add(self, events: Sequence[MessageEvent]) -> Pieces[None]:
        for start, part in parts(events):
            if start:
                yield
            for row in part:
                self._rows.setdefault(row.cooperation_lineage[-1], []).append(row)
                if row.type is EventType.EMITTED:
                    self._emitted[row.message_id] = row
                elif row.type is EventType.ROLLBACK_EMITTED:
                    self._rollback_requests[row.message_id] = row
                elif row.type is EventType.CANCELLATION_REQUESTED:
                    self._cancelled.setdefault(row.cooperation_lineage[-1], []).append(row)
        for start, ids in parts([*self._rows]):
            if start:
                yield
            for id in ids:
                self._rows[id] = in_order(self._rows[id])

    def own(self, lineage: Lineage) -> Sequence[MessageEvent]:
        return self._rows.get(lineage[-1], ())

    def view(self, run: NewRun, now: int) -> OperationRun:
        """Return the run in the form that the machine uses."""
        return at_once(self.view_in_pieces(run, now))

    def view_in_pieces(self, run: NewRun, now: int) -> Pieces[OperationRun]:
        """Do what `view` does, in pieces, because a run may have many children."""
        own = tuple(self.own(run.lineage))
        emitted = [row.message_id for row in own if row.type is EventType.EMITTED]
        return OperationRun(
            lineage=run.lineage,
            handler=run.handler,
            origin=self._emitted[run.message_id],
            events=own,
            rollback_request=self._rollback_requests.get(run.message_id),
            asks=(*self._asks(run), *self.cancelled_tokens(run)),
            children=(yield from self._children(run, emitted)),
            wakes={id: wake_of(self.messages[id]) for id in emitted if self.messages[id].topic == SLEEP_TOPIC},
            returned=frozenset(value.variable for value in self._values.get(run.id, ())),
            now=now,
        )

    def values_of(self, run: OperationRun) -> Iterator[ReturnValue]:
        """Yield the values that a run and its children have returned."""
        yield from self._values.get(run.lineage[-1], ())
        for child in run.children:
            yield from self._values.get(child.id, ())

    def _children(self, run: NewRun, emitted: Sequence[str]) -> Pieces[Children]:
        order = {message_id: place for place, message_id in enumerate(emitted)}
        found = [one for one in self._below.get(run.id, ()) if one.message_id in order]
        found.sort(key=lambda one: (order[one.message_id], one.handler))
        children = Children()
        for start, part in parts(found):
            if start:
                yield
            for one in part:
                rows = self.own(one.lineage)
                children.add(
                    Child(
                        message_id=one.message_id,
                        handler=one.handler,
                        lineage=one.lineage,
                        state=state_of(rows),
                        failure=failure_in(rows),
                        is_call=one.is_call,
                    )
                )
        return children

    def _asks(self, run: NewRun) -> Iterable[Ask]:
        """Return the requests to give up that apply to the run, from the root emission down to the run. A run above it
        counts only if its rows were read.
        """
        found: list[Ask] = []
        depth = depth_of(run.lineage)
        id: str | None = run.id
        while id is not None:
            above = self._runs.get(id)
            request = None if above is None or id == run.id else self._rollback_requests.get(above.message_id)
            if request is not None:
                failure = request.exception or Failure(type="unknown", message="")
                found.append(Ask(kind="rollback", depth=depth, failure=failure))
            found += [
                Ask(kind="cancel", depth=depth, failure=row.exception)
                for row in self._cancelled.get(id, ())
                if row.exception is not None
            ]
            id = above.lineage[-2] if above is not None else None
            depth -= 1
        return reversed(found)

    def cancelled_tokens(self, run: NewRun) -> Iterable[Ask]:
        """Yield a request to give up for each cancelled token of the run whose rows were read."""
        for name in token_names(self._emitted[run.message_id].context):
            for row in self._rows.get(CancellationToken(name).scope, ()):
                if row.exception is not None:
                    yield Ask(kind="cancel", depth=depth_of(run.lineage), failure=row.exception)
