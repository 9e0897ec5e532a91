"""Records: named values with versions."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Router, get, put
from litestar.params import JSONBody, QueryParameter
from msgspec import Struct

from perdure import RecordView
from perdure.errors import InvalidArguments, RecordNotFound, UnstorableValue
from perdure.http.access import caller_of, operates, reads
from perdure.http.dependencies import Asked, TheClient
from perdure.http.params import Body, Id, Limit, Text
from perdure.http.problems import Refused, no

_OWN_KINDS = "perdure."


class Records(Struct, frozen=True, kw_only=True):
    """A page of records. Pass `cursor` as `after` to get the next page. It is null on the last page."""

    records: list[RecordView]
    cursor: str | None


class NewRecord(Body, frozen=True, kw_only=True):
    """The value of a record's new version."""

    body: Any


@get("/{kind:str}", guards=[reads], responses=no(InvalidArguments))
async def list_records(client: TheClient, kind: Id, after: Text = None, limit: Limit = 100) -> Records:
    """List the records of a kind by name, each in its newest version. `after` is the last name of the previous page."""
    found = await client.records.list(kind, after=after, limit=limit)
    return Records(records=found, cursor=found[-1].name if len(found) == limit else None)


@get("/{kind:str}/{name:str}", guards=[reads], responses=no(RecordNotFound, InvalidArguments))
async def get_record(
    client: TheClient,
    kind: Id,
    name: Id,
    version: Annotated[
        int | None, QueryParameter(ge=1, le=2**62, description="A version. Default: the newest.")
    ] = None,
) -> RecordView:
    """Return a version of a record. Without `version`, return the newest version."""
    return await client.records.get(kind, name, version)


@put(
    "/{kind:str}/{name:str}",
    guards=[operates],
    status_code=200,
    responses=no(UnstorableValue, InvalidArguments, changes=True),
)
async def put_record(request: Asked, client: TheClient, kind: Id, name: Id, data: JSONBody[NewRecord]) -> RecordView:
    """Store a new version of a record. If the body equals the body of the newest version, no version is added. Kinds
    that begin with `perdure.` are reserved for Perdure's own records.
    """
    if kind.startswith(_OWN_KINDS):
        raise Refused("forbidden", f"records of kind {kind!r:.80} are written by Perdure only; use a kind of your own")
    version = await client.records.put(kind, name, data.body, actor=caller_of(request).name)
    return await client.records.get(kind, name, version)


router = Router("/records", route_handlers=[list_records, get_record, put_record], tags=["records"])

__all__ = ["router"]
