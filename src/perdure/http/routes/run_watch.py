"""Changes of runs as server-sent events. A reader can follow one run, the items of a stream, or a list of runs.

A reader that was interrupted can continue where it was, on any server, because servers keep no state for readers. The
id of the last event says where the reader was. For a run, the id is the number of a change. For a stream, it is the
offset of an item. For a list, it has a short digest of each run that the reader has seen.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

import msgspec
from litestar import Response, Router, get
from litestar.di import NamedDependency, Provide
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import HeaderParameter, QueryParameter
from litestar.response import Stream
from msgspec import Struct

from perdure.errors import Misuse, RunNotFound
from perdure.http.dependencies import Asked, TheClient, TheStreams
from perdure.http.params import Id, Wanted, wanted_runs
from perdure.http.problems import no
from perdure.http.routes.run import found
from perdure.http.streams import MEDIA_TYPE, StreamEvent, looked
from perdure.http.visible_runs import reach_of, reads_run, reads_some
from perdure.kernel.status import FINISHED, Status
from perdure.views import AuditView, RunView

_MARK_BYTES: Final = 6
_LIST_MAX: Final = 100

LastEventId = Annotated[
    str | None,
    HeaderParameter(name="Last-Event-ID", max_length=1_000, description="The id of the last event that you have."),
]
_OVER: Final = {
    204: ResponseSpec(
        data_container=None,
        generate_examples=False,
        description="The run has ended, and you have read everything: do not ask again.",
    )
}


class ListedRuns(Struct, frozen=True):
    """The ids of the runs that are in the list now, in order."""

    ids: list[str]


@get("/runs/{run_id:str}/changes", guards=[reads_run], media_type=MEDIA_TYPE, responses=no(RunNotFound) | _OVER)
async def run_changes(
    request: Asked, client: TheClient, streams: TheStreams, run_id: Id, last_event_id: LastEventId = None
) -> Stream | Response[None]:
    """Follow a run. For every change of the run, the stream has one event `change` with a row of the audit trail, in
    order. It ends when the run has ended.
    """
    seen = _number(last_event_id)
    known = await client.handle(run_id).audit()
    if known[-1].seq <= seen and _has_ended(known):
        return Response(None, status_code=204)

    async def look() -> list[StreamEvent] | None:
        nonlocal seen
        rows = await client.handle(run_id).audit()
        new = [StreamEvent(event="change", data=row, id=str(row.seq)) for row in rows if row.seq > seen]
        if not new and _has_ended(rows):
            return None
        seen = max(seen, rows[-1].seq)
        return new

    return streams.response(looked(look, streams.poll_s), request)


@get(
    "/runs/{run_id:str}/streams/{name:str}/follow",
    guards=[reads_run],
    media_type=MEDIA_TYPE,
    responses=no(RunNotFound) | _OVER,
)
async def follow_stream(
    request: Asked, client: TheClient, streams: TheStreams, run_id: Id, name: Id, last_event_id: LastEventId = None
) -> Stream | Response[None]:
    """Follow a run's stream. The response has an event `item` for every item of the stream, beginning with the first
    item. It ends when the run has ended and all items were sent.
    """
    after = _number(last_event_id)
    view = await found(client, run_id)
    if last_event_id is not None and view.status in FINISHED:
        async for _ in client.handle(run_id).stream(name, after=after, follow=False):
            break
        else:
            return Response(None, status_code=204)

    async def items() -> AsyncIterator[StreamEvent]:
        async for item in client.handle(run_id).stream(name, after=after):
            yield StreamEvent(event="item", data=item, id=str(item.offset))

    return streams.response(items(), request)


@get(
    "/runs:changes",
    guards=[reads_some],
    media_type=MEDIA_TYPE,
    dependencies={"wanted": Provide(wanted_runs, sync_to_thread=False)},
    responses=no(Misuse),
)
async def runs_changes(
    request: Asked,
    streams: TheStreams,
    wanted: NamedDependency[Wanted],
    limit: Annotated[
        int, QueryParameter(ge=1, le=_LIST_MAX, description="How many of the newest runs to follow.")
    ] = 50,
    last_event_id: LastEventId = None,
) -> Stream:
    """Follow the newest runs that match the parameters. The stream begins with the whole list. It has an event `run`
    for each run that is new in the list or has changed. If the order or the members of the list have changed, an event
    `page` with the ids of its runs follows.
    """
    seen = Seen.of(last_event_id)

    async def look() -> list[StreamEvent]:
        nonlocal seen
        # The caller is identified again regularly, and its scopes may have changed.
        runs = (await reach_of(request).page(wanted, limit)).runs
        now = Seen.at(runs)
        new = [
            StreamEvent(event="run", data=run)
            for run, mark in zip(runs, now.runs, strict=True)
            if mark not in seen.known
        ]
        if now.page != seen.page:
            new.append(StreamEvent(event="page", data=ListedRuns([run.id for run in runs])))
        if new:
            last = new[-1]
            new[-1] = StreamEvent(event=last.event, data=last.data, id=now.text())
        seen = now
        return new

    await reach_of(request).page(wanted, 1)  # With this line, a wrong request is refused before the stream begins.
    return streams.response(looked(look, streams.poll_s), request)


class Seen(Struct, frozen=True):
    """The state of a list that a reader has seen. It has a digest of the list's order, and a digest of each run."""

    page: bytes = b""
    runs: tuple[bytes, ...] = ()

    @property
    def known(self) -> frozenset[bytes]:
        return frozenset(self.runs)

    @classmethod
    def at(cls, runs: list[RunView]) -> Seen:
        """Return the state after a reader was sent these runs."""
        return cls(_mark([run.id for run in runs]), tuple(_mark(run) for run in runs))

    @classmethod
    def of(cls, text: str | None) -> Seen:
        """Return the state that the id of an event encodes. If this module did not make the id, the state is empty."""
        try:
            data = urlsafe_b64decode((text or "").encode("ascii"))
        except ValueError:
            return cls()
        marks = [data[at : at + _MARK_BYTES] for at in range(0, len(data), _MARK_BYTES)]
        return cls(marks[0], tuple(marks[1:])) if marks else cls()

    def text(self) -> str:
        """Return the state as the id for an event."""
        return urlsafe_b64encode(b"".join((self.page, *self.runs))).decode()


def _mark(value: Any) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(value), digest_size=_MARK_BYTES).digest()


def _has_ended(rows: list[AuditView]) -> bool:
    """Return whether a run has ended, according to its last change. If the last change was not a change of the status,
    its `was` is the status.
    """
    last = rows[-1]
    return (last.became if last.became in set(Status) else last.was) in FINISHED


def _number(text: str | None) -> int:
    """Return the number in the id of an event. Return 0 if the id is not a number."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else 0


router = Router("/", route_handlers=[run_changes, follow_stream, runs_changes], tags=["runs"])

__all__ = ["router"]
