"""`engine.records`: named values with versions, such as prompts, actions and definitions, and who stored them."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

from msgspec import Struct

from perdure.errors import RecordNotFound
from perdure.kernel.stock import Record
from perdure.session import Session
from perdure.values.arguments import checked
from perdure.values.canonical import canonical
from perdure.values.checks import checked_limit, checked_option, checked_remark, checked_text, checked_version
from perdure.values.json import to_text
from perdure.views import plain_value, shown_time, shown_value


class RecordView(Struct, frozen=True, kw_only=True):
    """One version of a record."""

    kind: str
    name: str
    version: int
    digest: str
    actor: str
    at: datetime
    body: Any


RecordViews = list[RecordView]  # `list` means something else inside the class.


@checked(constructor=False)
class Records:
    """Records by kind and name. Each change adds a version; none is lost."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def put(self, kind: str, name: str, body: Any, *, actor: str = "api") -> int:
        """Store a record; its version. What is the same as the newest version is that version. Raises
        UnstorableValue."""
        self._session.check_open()
        checked_text(kind, "a record's kind")
        checked_text(name, "a record's name")
        checked_remark("", actor)
        text = to_text(body, f"the {kind} {name!r}", self._session.limits.payload_bytes_max)
        # Numbers stay as they are written, as in the digests of the versions that there are.
        form = canonical(body, numbers=False)
        return await self._session.caller_store.put_record(
            Record(
                kind=kind,
                name=name,
                digest=hashlib.sha256(form).hexdigest(),
                actor=actor,
                at=self._session.clock.now(),
                body=self._session.codec.encode(text),
            )
        )

    async def get(self, kind: str, name: str, version: int | None = None) -> RecordView:
        """A version of a record, or its newest. Raises RecordNotFound."""
        self._session.check_open()
        checked_text(kind, "a record's kind")
        checked_version(version)
        found = await self._session.caller_store.record(kind, checked_text(name, "a record's name"), version)
        if found is None:
            which = f"{kind} {name!r}" + ("" if version is None else f" with version {version}")
            raise RecordNotFound(f"there is no {which}; records.put({kind!r}, …) makes one", kind=kind, name=name)
        return self._record_view(found, plain_value(found.body, self._session.codec, _place(found)))

    async def list(self, kind: str, *, after: str | None = None, limit: int = 100) -> RecordViews:
        """The newest versions of all records of a kind, by name; `after` is the name of the last one seen."""
        self._session.check_open()
        checked_limit(limit)
        checked_option(after, "after")
        found = await self._session.caller_store.records(
            checked_text(kind, "a record's kind"), after=after, limit=limit
        )
        return [self._record_view(one, shown_value(one.body, self._session.codec, _place(one))) for one in found]

    def _record_view(self, record: Record, body: Any) -> RecordView:
        return RecordView(
            kind=record.kind,
            name=record.name,
            version=record.version,
            digest=record.digest,
            actor=record.actor,
            at=shown_time(record.at),
            body=body,
        )


def _place(record: Record) -> str:
    return f"records.body of {record.kind} {record.name!r}, version {record.version}"


__all__ = ["RecordView", "Records"]
