"""`engine.records`: named values with versions, such as prompts, actions and definitions."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

from msgspec import Struct

from perdure.coordinator.call_spans import whole_calls
from perdure.errors import RecordNotFound
from perdure.kernel import ops
from perdure.kernel.records import Record
from perdure.session import Session
from perdure.values.arguments import checked
from perdure.values.canonical import canonical
from perdure.values.checks import checked_limit, checked_option, checked_remark, checked_text, checked_version
from perdure.values.json import to_text
from perdure.values.log_text import tame
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


RecordViews = list[RecordView]  # inside the class, the name `list` means the method


@whole_calls()
@checked(constructor=False)
class Records:
    """Records by kind and name. Each change adds a version; earlier versions stay."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def put(self, kind: str, name: str, body: Any, *, actor: str = "api") -> int:
        """Store a record, and return its version.

        If the body equals the body of the newest version, no version is added. Raises UnstorableValue.
        """
        self._session.check_open()
        checked_text(kind, "a record's kind")
        checked_text(name, "a record's name")
        checked_remark("", actor)
        what = f"the {tame(kind)} {name!r}"
        return await put_record(
            self._session, kind, name, body, actor, what=what, bytes_max=self._session.limits.payload_bytes_max
        )

    async def get(self, kind: str, name: str, version: int | None = None) -> RecordView:
        """Return a version of a record; without `version`, the newest one. Raises RecordNotFound."""
        self._session.check_open()
        checked_text(kind, "a record's kind")
        checked_version(version)
        found = await self._session.caller_store.record(kind, checked_text(name, "a record's name"), version)
        if found is None:
            which = f"{tame(kind)} {name!r}" + ("" if version is None else f" with version {version}")
            raise RecordNotFound(f"there is no {which}; records.put({kind!r}, …) makes one", kind=kind, name=name)
        return self._record_view(found, plain_value(found.body, self._session.codec, _place(found)))

    async def list(self, kind: str, *, after: str | None = None, limit: int = 100) -> RecordViews:
        """Return the records of a kind by name, each in its newest version. `after` is the last name that you have."""
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


async def put_record(
    session: Session, kind: str, name: str, body: Any, actor: str, *, what: str, bytes_max: int
) -> int:
    """Store a record, and return its version. `what` names the record in errors. Raises UnstorableValue if the body
    takes more than `bytes_max` bytes, StoreError."""
    text = to_text(body, what, bytes_max)
    # The digests of stored versions were made from numbers as they were written, so this digest is too.
    form = canonical(body, numbers=False)
    now = session.clock.now()
    record = Record(
        kind=kind,
        name=name,
        digest=hashlib.sha256(form).hexdigest(),
        actor=actor,
        at=now,
        body=session.codec.encode(text),
    )
    version: int = await session.coordinator.submit(ops.PutRecord(run_id="", at=now, actor=actor, record=record))
    return version


def _place(record: Record) -> str:
    return f"records.body of {record.kind} {record.name!r}, version {record.version}"


__all__ = ["RecordView", "Records", "put_record"]
