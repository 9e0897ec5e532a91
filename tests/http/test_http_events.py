"""Events and dead letters over HTTP."""

from __future__ import annotations

from collections.abc import Callable

from perdure.api.dead_letters import REMOVAL_RECORD
from perdure.ports import Store
from tests.http.site import Paid, refused, site, told

MakeStore = Callable[[], Store]


async def test_an_event_reaches_its_run_once_however_often_it_is_sent(make_any_store: MakeStore) -> None:
    async with site(make_any_store) as here:
        await here.start("pays", "r-1", order="o-1")
        await here.until("r-1", "suspended")
        body = {"name": "Paid", "value": {"amount": 7}}
        key = {"idempotency-key": "payment-1", **await here.token("till", "operate")}
        sent = told(await here.http.post("/runs/r-1/events", json=body, headers=key), 202)
        assert (sent["outcome"], sent["run_ids"]) == ("delivered", ["r-1"])
        again = told(await here.http.post("/runs/r-1/events", json=body, headers=key), 202)
        assert again["outcome"] == "queued"
        other = {"name": "Paid", "value": {"amount": 8}}
        reused = refused(await here.http.post("/runs/r-1/events", json=other, headers=key), 409, "key_reused")
        assert reused["key"] == "payment-1"
        assert (await here.until("r-1", "succeeded"))["output"] == 7
        assert told(await here.http.get("/events", params={"to": "r-1"})) == []
        rows = told(await here.http.get("/runs/r-1/history"))["audit"]
        assert "till" in [row["actor"] for row in rows]
        refused(await here.http.post("/runs/r-1/events", json=body), 409, "run_finished")


async def test_a_broadcast_reaches_whoever_waits_or_is_kept(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        body = {"name": "Paid", "value": {"amount": 8}}
        refused(await here.http.post("/events", json={**body, "strict": True}), 409, "run_not_waiting")
        kept = told(await here.http.post("/events", json=body), 202)
        assert kept["outcome"] == "queued"
        (waiting,) = told(await here.http.get("/events", params={"name": "Paid"}))
        assert (waiting["id"], waiting["value"], waiting["to"]) == (kept["event_id"], {"amount": 8}, None)
        await here.start("pays", "r-1", order="o-1")
        assert (await here.until("r-1", "succeeded"))["output"] == 8


async def test_an_event_that_is_none_is_refused(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        refused(await here.http.post("/events", json={"name": ""}), 400, "invalid_request")
        refused(await here.http.post("/events", json={"name": "a\0"}), 422, "invalid_definition")
        refused(await here.http.post("/events", json={"name": "perdure.task/x"}), 422, "invalid_arguments")
        refused(await here.http.post("/events", json={"name": "x", "value": 10**400}), 422, "unstorable_value")
        misfit = {"name": "Paid", "value": {"amount": "much"}}
        refused(await here.http.post("/events", json=misfit), 422, "invalid_arguments")
        assert told(await here.http.get("/events")) == []


async def test_dead_letters_are_listed_replayed_and_removed(make_any_store: MakeStore) -> None:
    async with site(make_any_store) as here:
        await here.start("sleeps", "r-1")
        await here.until("r-1", "suspended")
        for amount in (1, 2, 3):
            await here.engine.send(Paid(amount=amount), to="r-1")
        await here.engine.handle("r-1").cancel()
        page = told(await here.http.get("/dead-letters", params={"limit": "2"}))
        first, second = page["dead_letters"]
        rest = told(await here.http.get("/dead-letters", params={"after": page["cursor"]}))
        assert rest["cursor"] is None
        assert sorted(one["value"]["amount"] for one in [first, second, *rest["dead_letters"]]) == [1, 2, 3]
        assert told(await here.http.get(f"/dead-letters/{first['id']}")) == first
        await here.start("pays", "r-2", order="o-2")
        await here.until("r-2", "suspended")
        again = await here.http.post(f"/dead-letters/{first['id']}/replay", json={"to": "r-2"})
        assert told(again, 202)["run_ids"] == ["r-2"]
        assert (await here.until("r-2", "succeeded"))["output"] == first["value"]["amount"]
        refused(await here.http.post(f"/dead-letters/{second['id']}/replay", json={"to": "r-2"}), 409, "run_finished")
        refused(await here.http.post(f"/dead-letters/{first['id']}/replay", json={}), 404, "dead_letter_not_found")
        ann = await here.token("ann", "operate")
        assert (await here.http.delete(f"/dead-letters/{second['id']}", headers=ann)).status_code == 204
        refused(await here.http.delete(f"/dead-letters/{second['id']}", headers=ann), 404, "dead_letter_not_found")
        note = await here.client.records.get(REMOVAL_RECORD, second["id"])
        assert (note.actor, note.body["event"], note.body["to"]) == ("ann", "Paid", "r-1")
        assert len(await here.client.records.list(REMOVAL_RECORD)) == 1
