"""Parameters that several routes have: ids, limits, cursors, bodies, and the selection of runs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from litestar.params import FromQuery, PathParameter, QueryParameter
from msgspec import Meta, Struct

from perdure import RunSelection
from perdure.engine import AnyClient
from perdure.http.problems import Refused
from perdure.kernel.status import Status
from perdure.views import Page

Id = Annotated[str, PathParameter(min_length=1, max_length=500, description="An id or a name, percent-encoded.")]
Limit = Annotated[int, QueryParameter(ge=1, le=1000, description="Return at most this many.")]
After = Annotated[
    str | None, QueryParameter(min_length=1, max_length=500, description="The id of the last one that you have.")
]  # fmt: skip
Text = Annotated[str | None, QueryParameter(min_length=1, max_length=500)]
Name = Annotated[str, Meta(min_length=1, max_length=500)]
Tags = dict[Name, Name]
Hold = Literal["blocked", "paused", "poison"]


class Body(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request. An unknown field is refused, because it may be a misspelt field."""


class Wanted(Struct, frozen=True, kw_only=True):
    """A selection of runs. A run is selected if it matches all fields."""

    workflow: str | None = None
    statuses: tuple[str, ...] = ()
    hold: str | None = None
    parent: str | None = None
    tags: Mapping[str, str] = {}
    created_from: datetime | None = None
    created_before: datetime | None = None

    def selection(self) -> RunSelection:
        """Return the selection for the methods of `engine.runs`."""
        return RunSelection(
            workflow=self.workflow,
            status=self.statuses,
            hold=self.hold,
            parent=self.parent,
            tags=self.tags,
            created_from=self.created_from,
            created_before=self.created_before,
        )

    async def page(self, client: AnyClient, limit: int, cursor: str | None = None) -> Page:
        """Return a page of the selected runs, newest first."""
        return await client.runs.list(
            workflow=self.workflow,
            status=self.statuses,
            hold=self.hold,
            parent=self.parent,
            tags=self.tags,
            created_from=self.created_from,
            created_before=self.created_before,
            limit=limit,
            cursor=cursor,
        )


def wanted_runs(
    workflow: Text = None,
    status: Annotated[
        list[Status] | None, QueryParameter(max_items=10, description="In one of these statuses.")
    ] = None,
    hold: FromQuery[Hold | None] = None,
    parent: Text = None,
    tag: Annotated[
        list[str] | None, QueryParameter(max_items=20, description="With all of these tags: key=value.")
    ] = None,
    created_from: FromQuery[datetime | None] = None,
    created_before: FromQuery[datetime | None] = None,
) -> Wanted:
    """Return the selection in the query parameters. Raises Refused."""
    return Wanted(
        workflow=workflow,
        statuses=tuple(status or ()),
        hold=hold,
        parent=parent,
        tags=dict(_tag(one) for one in tag or ()),
        created_from=None if created_from is None else moment(created_from),
        created_before=None if created_before is None else moment(created_before),
    )


def _tag(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key or not value:
        raise Refused("invalid_request", f"a tag has the form key=value, not {text!r:.80}")
    return key, value


def moment(when: datetime) -> datetime:
    """Return a time in UTC. Raises Refused if it has no time zone, or is beyond the years 1 to 9999."""
    if when.tzinfo is None:
        raise Refused("invalid_request", f"{when.isoformat()} has no time zone; add Z or an offset")
    try:
        return when.astimezone(UTC)
    except OverflowError:
        raise Refused("invalid_request", f"{when.isoformat()} is beyond the years 1 to 9999 in UTC") from None


def cursor_of(found: list[Any], limit: int) -> str | None:
    """Return the cursor for the next page of a list that is ordered by id. Return None if this page is not full."""
    return found[-1].id if len(found) == limit else None


__all__ = [
    "After",
    "Body",
    "Hold",
    "Id",
    "Limit",
    "Name",
    "Tags",
    "Text",
    "Wanted",
    "cursor_of",
    "moment",
    "wanted_runs",
]
