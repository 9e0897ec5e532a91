"""Topics and roots over HTTP: emit, complete, fail, roll back, retire; and what is wrong with such requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure.ports import Store
from tests.http.site import Site, refused, site, told

MakeStore = Callable[[], Store]


async def emitted(here: Site, message: Any, **more: Any) -> dict[str, Any]:
    root: dict[str, Any] = told(await here.http.post("/topics/orders/messages", json={"message": message, **more}), 201)
    return root


async def asked(here: Site) -> tuple[dict[str, Any], str]:
    """A message that waits for somebody, and that one's run."""
    told(await here.http.post("/topics/approvals/handlers", json={"name": "boss"}), 201)
    root = await emitted(here, {"asks": True, "sku": "s-1"})
    await here.until(root["run_ids"][0], "suspended")
    found = told(await here.http.get("/runs", params={"workflow": "boss", "status": "created"}))["runs"]
    return root, found[0]["id"]


async def test_a_message_is_emitted_once_and_handled(make_any_store: MakeStore) -> None:
    async with site(make_any_store) as here:
        first = await emitted(here, {"sku": "s-1"}, id="m-1", tags={"tenant": "acme"})
        assert await emitted(here, {"sku": "s-1"}, id="m-1") == first
        run = await here.until(first["run_ids"][0], "succeeded")
        assert run["tags"] == {"tenant": "acme"}
        key = {"idempotency-key": "k-1"}
        twice = [
            told(await here.http.post("/topics/orders/messages", json={"message": {}}, headers=key), 201)
            for _ in range(2)
        ]
        assert twice[0] == twice[1] != first
        topics = told(await here.http.get("/topics"))
        assert topics == [{"topic": "orders", "handlers": ["places"]}]


async def test_a_message_has_limits(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        late = await emitted(here, {}, delay_s=3600)
        await here.until(late["run_ids"][0], "suspended")
        over = await emitted(here, {}, delay_s=3600, deadline="2020-01-01T00:00:00Z")
        await here.until(over["run_ids"][0], "rolled_back")
        told(await here.http.post(f"/roots/{late['id']}/cancel", json={"reason": "enough"}), 202)
        await here.until(late["run_ids"][0], "rolled_back")
        again = await here.http.post(f"/roots/{late['id']}/cancel", json={})
        refused(again, 409, "run_finished")


async def test_messages_are_cancelled_by_a_token(make_any_store: MakeStore) -> None:
    async with site(make_any_store) as here:
        late = await emitted(here, {}, delay_s=3600, cancellation_tokens=["deploy-17", "tenant/acme"])
        await here.until(late["run_ids"][0], "suspended")
        body = {"name": "tenant/acme", "reason": "gone"}
        for was in (False, True):
            cancelled = told(await here.http.post("/topics:cancel-token", json=body), 202)
            assert cancelled == {"name": "tenant/acme", "was_cancelled": was}
        await here.until(late["run_ids"][0], "rolled_back")
        again = await emitted(here, {}, cancellation_tokens=["tenant/acme"])
        await here.until(again["run_ids"][0], "rolled_back")


async def test_somebody_outside_does_it_and_undoes_it(make_any_store: MakeStore) -> None:
    async with site(make_any_store) as here:
        root, boss = await asked(here)
        message = told(await here.http.get(f"/runs/{boss}/message"))
        assert message == {"run_id": boss, "message": {"asks": True, "sku": "s-1"}}
        refused(await here.http.post(f"/roots/{root['id']}/roll-back", json={}), 409, "invalid_transition")
        refused(await here.http.post(f"/runs/{boss}/complete-rollback", json={}), 422, "misuse")
        done = told(await here.http.post(f"/runs/{boss}/complete", json={"values": {"ok": True}}))
        assert done["status"] == "succeeded"
        refused(await here.http.post(f"/runs/{boss}/complete", json={}), 409, "run_finished")
        await here.until(root["run_ids"][0], "succeeded")
        told(await here.http.post(f"/roots/{root['id']}/roll-back", json={"reason": "returned"}), 202)
        await here.until(boss, "rolling_back")
        told(await here.http.post(f"/runs/{boss}/complete-rollback", json={}))
        await here.until(root["run_ids"][0], "rolled_back")


async def test_somebody_outside_cannot_do_it_and_retires(make_any_store: MakeStore) -> None:
    async with site(make_any_store) as here:
        root, boss = await asked(here)
        failed = told(await here.http.post(f"/runs/{boss}/fail", json={"reason": "no money", "type": "Broke"}))
        assert failed["status"] == "rolled_back"
        run = await here.until(root["run_ids"][0], "rolled_back")
        assert "Broke: no money" in run["failure"]["stack"]
        waits, _ = await asked(here)
        retired = await here.http.post("/topics/approvals/handlers/boss/retire", json={"release": True})
        assert told(retired) == {"topic": "approvals", "handlers": []}
        await here.until(waits["run_ids"][0], "succeeded")
        refused(await here.http.post("/topics/approvals/handlers/boss/retire", json={}), 404, "not_found")


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/topics/nowhere/messages", {"message": {}}, 422, "invalid_arguments"),
        ("/topics/orders/messages", {}, 400, "invalid_request"),
        ("/topics/orders/messages", {"message": {}, "delay": 5}, 400, "invalid_request"),
        ("/topics/orders/messages", {"message": {}, "delay_s": -1}, 400, "invalid_request"),
        ("/topics/orders/messages", {"message": {}, "deadline": "2030-01-01T00:00:00"}, 400, "invalid_request"),
        ("/topics/orders/messages", {"message": {}, "id": ""}, 400, "invalid_request"),
        ("/topics/orders/handlers", {"name": ""}, 400, "invalid_request"),
        ("/topics/orders/handlers", {"name": "nul\0"}, 422, "invalid_arguments"),
        ("/topics/orders/handlers/nobody/retire", {}, 404, "not_found"),
        ("/runs/nobody/complete", {}, 404, "run_not_found"),
        ("/runs/nobody/complete", {"values": []}, 400, "invalid_request"),
        ("/runs/nobody/fail", {}, 400, "invalid_request"),
        ("/runs/nobody/fail", {"reason": "no"}, 404, "run_not_found"),
        ("/runs/nobody/complete-rollback", {}, 404, "run_not_found"),
        ("/roots/nobody/cancel", {}, 404, "run_not_found"),
        ("/roots/nobody/roll-back", {}, 404, "run_not_found"),
        ("/topics/orders/messages", {"message": {}, "cancellation_tokens": [""]}, 400, "invalid_request"),
        ("/topics:cancel-token", {}, 400, "invalid_request"),
        ("/topics:cancel-token", {"name": ""}, 400, "invalid_request"),
        ("/topics:cancel-token", {"name": "nul\0"}, 422, "invalid_arguments"),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused(
    make_store: MakeStore, path: str, body: Any, status: int, code: str
) -> None:
    async with site(make_store) as here:
        refused(await here.http.post(path, json=body), status, code)
        assert told(await here.http.get("/runs"))["runs"] == []
        assert told(await here.http.get("/topics")) == [{"topic": "orders", "handlers": ["places"]}]


async def test_a_run_that_is_no_handlers_cannot_be_completed_and_it_is_said_why(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        await here.start("sleeps", "s-1")
        await here.start("greeting", "g-1", name="ann")
        for path, body in (("complete", {}), ("fail", {"reason": "no"}), ("complete-rollback", {})):
            for run_id, workflow in (("s-1", "sleeps"), ("g-1", "greeting")):
                answer = await here.http.post(f"/runs/{run_id}/{path}", json=body)
                assert refused(answer, 422, "misuse") == {"run_id": run_id}
                assert f"is a run of the workflow {workflow!r} and handles no message" in answer.json()["detail"]
                assert "cancel() ends it" in answer.json()["detail"]
        refused(await here.http.get("/runs/s-1/message"), 422, "misuse")
        emitted = told(await here.http.post("/topics/orders/messages", json={"message": {}}), 201)
        answer = await here.http.post(f"/runs/{emitted['id']}/complete", json={})
        refused(answer, 404, "run_not_found")
        assert "the id of a root emission" in answer.json()["detail"]


async def test_reading_is_not_enough_to_change_something(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        reader = await here.token("reader", "read")
        assert told(await here.http.get("/topics", headers=reader))
        for path, body in (
            ("/topics/orders/messages", {"message": {}}),
            ("/topics/orders/handlers", {"name": "x"}),
            ("/topics/orders/handlers/places/retire", {}),
            ("/runs/r/complete", {}),
            ("/runs/r/fail", {"reason": "no"}),
            ("/runs/r/complete-rollback", {}),
            ("/roots/r/cancel", {}),
            ("/roots/r/roll-back", {}),
            ("/topics:cancel-token", {"name": "t"}),
        ):
            refused(await here.http.post(path, json=body, headers=reader), 403, "forbidden")
