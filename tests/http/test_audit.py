"""The audit of everything, as lines: whole, in a stable order, and no more in memory than a page."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import Client
from perdure.api import audit
from perdure.errors import InvalidArguments
from perdure.http import make_token, revoke_token, rotate_token
from perdure.kernel.batch import RunWrite
from perdure.kernel.runs import Audit, Hold, Run
from perdure.kernel.status import Status
from perdure.ports import Store
from perdure.testing.conformance.base import Author, insert
from tests.http.site import refused, site

US = timedelta(microseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


async def test_everything_that_was_changed_is_there_with_who_asked(make_any_store: Callable[[], Store]) -> None:
    async with site(make_any_store) as here:
        await here.start("sleeps", "s-1")
        await here.http.post("/runs/s-1/cancel", json={"reason": "enough"}, headers={"if-match": "*"})
        await here.start("greet", "g-1", name="x")
        await here.until("g-1", "succeeded")
        await here.client.records.put("prompt", "p", {"secret": "body"}, actor="ann")
        await make_token(here.client, "ci", ["read", "operate:workflow=w"], actor="bob")
        await rotate_token(here.client, "ci", actor="bob")
        await revoke_token(here.client, "ci", actor="eve")
        answer = await here.http.get("/audit")
        assert answer.headers["content-type"] == "application/x-ndjson"
        lines = lines_of(answer.text)
        assert lines[-1] == {"type": "end", "lines": len(lines) - 1}
        runs = [(one["run_id"], one["seq"], one["actor"]) for one in lines if one["type"] == "run"]
        assert [one[0] for one in runs] == sorted(one[0] for one in runs)
        assert [one[1] for one in runs if one[0] == "s-1"] == list(
            range(1, len(await here.client.handle("s-1").audit()) + 1)
        )
        assert ("s-1", 1, "root") in runs
        cancelled = [one for one in lines if one.get("became") in ("cancelling", "cancelled")]
        assert cancelled[0]["actor"] == "root"
        assert cancelled[0]["workflow"] == "sleeps"
        records = [one for one in lines if one["type"] == "record" and one["kind"] == "prompt"]
        assert [(one["name"], one["version"], one["actor"]) for one in records] == [("p", 1, "ann")]
        assert "secret" not in answer.text
        tokens = [(one["version"], one["change"], one["actor"]) for one in lines if one.get("name") == "ci"]
        assert tokens == [(1, "created", "bob"), (2, "rotated", "bob"), (3, "revoked", "eve")]
        assert "sha256" not in answer.text
        assert (await here.http.get("/audit")).text == answer.text
        later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        assert lines_of((await here.http.get("/audit", params={"since": later})).text) == [{"type": "end", "lines": 0}]
        assert lines_of((await here.http.get("/audit", params={"until": later})).text) == lines
        refused(await here.http.get("/audit", params={"since": "2026-01-01T00:00:00"}), 400, "invalid_request")
        operator = await here.token("op", "operate")
        refused(await here.http.get("/audit", headers=operator), 403, "forbidden")


def a_run_with_audit(number: int, rows: int) -> tuple[RunWrite, list[Audit]]:
    run_id = f"r-{number:05}"
    run = Run(
        id=run_id,
        workflow="w",
        status=Status.SUCCEEDED,
        version=1,
        revision=rows,
        created_at=number // 3,  # Several have the same time.
        updated_at=1_000 + number,
    )
    audit = [
        Audit(run_id=run_id, seq=seq, version=1, was=None, became="x", cause="c", actor="a", at=1_000 + number)
        for seq in range(1, rows + 1)
    ]
    return insert(run), audit


async def test_many_runs_come_in_pages_each_row_once_and_in_order(
    make_any_store: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "_RUNS", 7)
    store = make_any_store()
    await store.open()
    author = await Author.enroll(store, "e-1")
    made = [a_run_with_audit(number, 1 + number % 3) for number in range(100)]
    await author.commit(*(write for write, _ in made), audit=[row for _, rows in made for row in rows])
    await store.close()
    async with Client(make_any_store(), poll_s=None) as client:

        async def exported(**times: datetime) -> list[tuple[str, int]]:
            found = [line async for line in client.audit.export(**times)]
            assert found[-1] == audit.End(lines=len(found) - 1)
            return [(line.run_id, line.seq) for line in found if isinstance(line, audit.RunChange)]

        whole = [(row.run_id, row.seq) for _, rows in made for row in rows]
        assert await exported() == whole
        since, until = EPOCH + 1_090 * US, EPOCH + 1_095 * US
        assert await exported(since=since) == [one for one in whole if one[0] >= "r-00090"]
        assert await exported(until=since) == [one for one in whole if one[0] < "r-00090"]
        assert await exported(since=since, until=until) == [one for one in whole if "r-00090" <= one[0] < "r-00095"]
        with pytest.raises(InvalidArguments):
            client.audit.export(since=datetime(2026, 1, 1))  # noqa: DTZ001 - it has no zone


async def test_many_records_and_tokens_come_in_pages_each_version_once_and_in_order(
    make_any_store: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every size of a page, so that pages end between versions, names and kinds."""
    async with Client(make_any_store(), poll_s=None) as client:
        for version in (1, 2, 3):
            for kind, name in (("b", "x"), ("a", "y"), ("a", "x"), ("b", "y")):
                await client.records.put(kind, name, {"version": version}, actor=f"v{version}")
        for name in ("t-2", "t-1"):
            await make_token(client, name, "read", actor="ann")
            await rotate_token(client, name, actor="bob")
            await revoke_token(client, name, actor="eve")
        records = [(kind, name, version, f"v{version}") for kind in "ab" for name in "xy" for version in (1, 2, 3)]
        changes = ((1, "created", "ann"), (2, "rotated", "bob"), (3, "revoked", "eve"))
        tokens = [(name, *change) for name in ("t-1", "t-2") for change in changes]
        for size in range(1, 14):
            monkeypatch.setattr(audit, "_VERSIONS", size)
            found = [line async for line in client.audit.export()]
            assert [
                (one.kind, one.name, one.version, one.actor) for one in found if isinstance(one, audit.RecordChange)
            ] == records
            assert [
                (one.name, one.version, one.change, one.actor) for one in found if isinstance(one, audit.TokenChange)
            ] == tokens
            assert found[-1] == audit.End(lines=len(records) + len(tokens))


async def test_a_hold_that_left_the_time_of_the_run_as_it_was_is_not_passed_over(
    make_any_store: Callable[[], Store],
) -> None:
    store = make_any_store()
    await store.open()
    author = await Author.enroll(store, "e-1")
    write, rows = a_run_with_audit(1, 1)
    write.run = Run(
        id=write.run.id, workflow="w", status=Status.CREATED, version=1, revision=1, created_at=1, updated_at=2
    )
    await author.commit(write, audit=rows)
    assert await store.set_aside(
        write.run.id, Hold(kind="blocked", reason="damaged", at=5_000), engine_id="e-1", at=5_000
    )
    await store.close()
    async with Client(make_any_store(), poll_s=None) as client:
        found = [line async for line in client.audit.export(since=EPOCH + 4_000 * US)]
        assert [line.became for line in found if isinstance(line, audit.RunChange)] == ["blocked"]
