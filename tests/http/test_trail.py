"""Whatever changes something leaves a trail with whoever asked for it: every route that does is tried."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from perdure.api.dead_letters import REMOVAL_RECORD
from perdure.api.topics import HANDLER_RECORD
from perdure.http import create_app
from perdure.ports import Store
from tests.http.site import Luck, Paid, Site, site, told

MakeStore = Callable[[], Store]
ANY = {"if-match": "*"}


class Ann:
    """Asks with a token of her own."""

    def __init__(self, here: Site, header: dict[str, str]) -> None:
        self.here = here
        self._header = header

    async def does(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        sent = {**self._header, **headers}
        response = await self.here.http.request(method, path, json=body, headers=sent)
        assert response.is_success, response.text
        return response.json() if response.content else None

    async def rows(self, run_id: str) -> list[str]:
        history = told(await self.here.http.get(f"/runs/{run_id}/history"))
        return [row["became"] for row in history["audit"] if row["actor"] == "ann"]


async def starts(ann: Ann) -> None:
    await ann.does("POST", "/runs", {"workflow": "greet", "id": "new", "input": {"name": "x"}})
    assert (await ann.rows("new"))[0] in ("created", "running")


async def changes(ann: Ann) -> None:
    await waiting(ann, "changed")
    await ann.does("PATCH", "/runs/changed", {"tags": {"a": "b"}}, **ANY)
    await ann.does("POST", "/runs/changed/pause", {}, **ANY)
    await ann.does("POST", "/runs/changed/resume", {}, **ANY)
    assert len(await ann.rows("changed")) == 3
    await ann.does("POST", "/runs/changed/cancel", {}, **ANY)
    assert (await ann.rows("changed"))[-1] == "cancelled"


async def retries(ann: Ann) -> None:
    await ann.here.start("fails", "failed")
    await ann.here.until("failed", "failed")
    Luck.has_come = True
    try:
        await ann.does("POST", "/runs/failed/retry", {}, **ANY)
        await ann.here.until("failed", "succeeded")
    finally:
        Luck.has_come = False
    assert "running" in await ann.rows("failed")


async def sends(ann: Ann) -> None:
    for id in ("told", "heard"):
        await waiting(ann, id)
        path = "/runs/told/events" if id == "told" else "/events"
        await ann.does("POST", path, {"name": "Paid", "value": {"amount": 1}})
        await ann.here.until(id, "succeeded")
        assert [one for one in await ann.rows(id) if one in ("sent", "received")] != []


async def letters(ann: Ann) -> None:
    await ann.here.start("sleeps", "deaf")
    await ann.here.until("deaf", "suspended")
    for amount in (1, 2):
        await ann.here.engine.send(Paid(amount=amount), to="deaf")
    await ann.here.engine.handle("deaf").cancel()
    first, second = await ann.here.client.dead_letters.list()
    await waiting(ann, "replayed")
    await ann.does("POST", f"/dead-letters/{first.id}/replay", {"to": "replayed"})
    assert await ann.rows("replayed") == ["sent"]
    await ann.does("DELETE", f"/dead-letters/{second.id}")
    assert (await ann.here.client.records.get(REMOVAL_RECORD, second.id)).actor == "ann"


async def tasks(ann: Ann) -> None:
    await ann.here.start("asks", "human", order="o")
    task = await ann.here.task(queue="approvals")
    await ann.does("POST", f"/tasks/{task['id']}/answer", {"value": {"ok": True}})
    await ann.here.until("human", "succeeded")
    assert await ann.rows("human") == ["answered"]


async def executors(ann: Ann) -> None:
    for id in ("does", "cannot"):
        await ann.here.start("asks", id, order="o", kind="remote")
        await ann.here.task(queue="gpu", run=id)
        worker = {"worker": "w"}
        [task] = await ann.does("POST", "/tasks:claim", {"queue": "gpu", **worker})
        assert (task["actor"], task["worker"]) == ("ann", "w")
        path = f"/tasks/{task['id']}"
        for header in (ann._header, {}):  # Somebody else looks after it for a while.
            beat = await ann.here.http.post(f"{path}/heartbeat", json=worker, headers=header)
            assert told(beat)["actor"] == ("ann" if header else "root")
        assert (await ann.does("POST", f"{path}/release", worker))["actor"] == "ann"
        await ann.does("POST", "/tasks:claim", {"queue": "gpu", **worker})
        if id == "does":
            await ann.does("POST", f"{path}/complete", {**worker, "result": {"ok": True}})
        else:
            await ann.does("POST", f"{path}/fail", {**worker, "error": "no"})
        assert await ann.rows(id) == ["answered"]


async def made_by(ann: Ann, token: str) -> list[tuple[int, str]]:
    versions = await ann.here.client.credentials.token_versions()
    return [(one.version, one.actor) for one in versions if one.name == token]


async def tokens(ann: Ann) -> None:
    await ann.does("POST", "/tokens", {"name": "bob", "scope": "read"})
    assert await made_by(ann, "bob") == [(1, "ann")]
    await ann.does("POST", "/tokens/bob/rotate", {"overlap_s": 60})
    assert await made_by(ann, "bob") == [(1, "ann"), (2, "ann")]
    assert (await ann.does("DELETE", "/tokens/bob"))["made_by"] == "ann"


async def topics(ann: Ann) -> None:
    await ann.does("POST", "/topics/approvals/handlers", {"name": "boss"})
    assert (await ann.here.client.records.get(HANDLER_RECORD, "approvals/boss")).actor == "ann"
    for verb in ("complete", "fail", "retire"):
        root, run_id = await emitted(ann)
        boss = (await ann.here.client.runs.list(workflow="boss", status="created")).runs[0].id
        if verb == "complete":
            await ann.does("POST", f"/runs/{boss}/complete", {"values": {"ok": True}})
        elif verb == "fail":
            await ann.does("POST", f"/runs/{boss}/fail", {"reason": "no"})
        else:
            await ann.does("POST", "/topics/approvals/handlers/boss/retire", {"release": True})
            assert (await ann.here.client.records.get(HANDLER_RECORD, "approvals/boss")).version == 2
        assert await ann.rows(boss)
        await ann.here.until(run_id, "succeeded", "rolled_back")
        if verb == "complete":
            await ann.does("POST", f"/roots/{root}/roll-back", {"reason": "returned"})
            await ann.here.until(boss, "rolling_back")
            await ann.does("POST", f"/runs/{boss}/complete-rollback", {})
            await ann.here.until(run_id, "rolled_back")
            assert "rolled_back" in await ann.rows(boss)
            assert "rolling_back" in await ann.rows(run_id)


async def roots(ann: Ann) -> None:
    await ann.does("POST", "/topics/approvals/handlers", {"name": "boss"})
    root, run_id = await emitted(ann)
    before = len(await ann.rows(run_id))
    await ann.does("POST", f"/roots/{root}/cancel", {"reason": "enough"})
    await ann.here.until(run_id, "rolled_back")
    assert len(await ann.rows(run_id)) > before


async def cancellation_tokens(ann: Ann) -> None:
    message = {"message": {}, "delay_s": 3600, "cancellation_tokens": ["deploy-17"]}
    root = await ann.does("POST", "/topics/orders/messages", message)
    (run_id,) = root["run_ids"]
    await ann.here.until(run_id, "suspended")
    before = len(await ann.rows(run_id))
    await ann.does("POST", "/topics:cancel-token", {"name": "deploy-17"})
    await ann.here.until(run_id, "rolled_back")
    assert len(await ann.rows(run_id)) > before


async def emitted(ann: Ann) -> tuple[str, str]:
    """A root, and the run that handles its message and waits for the boss."""
    root = await ann.does("POST", "/topics/orders/messages", {"message": {"asks": True}})
    (run_id,) = root["run_ids"]
    assert {"created", "running"} & set(await ann.rows(run_id))
    await ann.here.until(run_id, "suspended")
    return root["id"], run_id


async def waiting(ann: Ann, id: str) -> None:
    await ann.here.start("pays", id, order="o")
    await ann.here.until(id, "suspended")


async def many(ann: Ann) -> None:
    runs = [{"workflow": "pays", "id": f"many-{number}", "input": {"order": "o"}} for number in range(2)]
    assert [one["id"] for one in await ann.does("POST", "/runs:start-many", {"runs": runs})] == ["many-0", "many-1"]
    for run in runs:
        await ann.here.until(str(run["id"]), "suspended")
    selection = {"selection": {"workflow": "pays"}}
    for verb, row in (("pause", "paused"), ("resume", "resumed"), ("cancel", "cancelled")):
        report = await ann.does("POST", f"/runs:{verb}", selection)
        assert {"many-0", "many-1"} <= set(report["changed"])
        assert row in await ann.rows("many-1")
    await ann.here.start("fails", "many-2")
    await ann.here.until("many-2", "failed")
    assert "many-2" in (await ann.does("POST", "/runs:retry", {"selection": {"workflow": "fails"}}))["changed"]
    assert "running" in await ann.rows("many-2")


async def records(ann: Ann) -> None:
    assert (await ann.does("PUT", "/records/prompt/greeting", {"body": "hello"}))["actor"] == "ann"


async def purges(ann: Ann) -> None:
    assert await ann.does("POST", "/events:purge", {}) == {"removed": 0}, "it has no actor: engines do the same"


TRIED: dict[Callable[[Ann], Awaitable[None]], set[str]] = {
    many: {f"POST /runs:{verb}" for verb in ("start-many", "pause", "resume", "cancel", "retry")},
    records: {"PUT /records/{kind}/{name}"},
    purges: {"POST /events:purge"},
    starts: {"POST /runs"},
    changes: {
        "PATCH /runs/{run_id}",
        "POST /runs/{run_id}/pause",
        "POST /runs/{run_id}/resume",
        "POST /runs/{run_id}/cancel",
    },
    retries: {"POST /runs/{run_id}/retry"},
    sends: {"POST /runs/{run_id}/events", "POST /events"},
    letters: {"POST /dead-letters/{letter_id}/replay", "DELETE /dead-letters/{letter_id}"},
    tasks: {"POST /tasks/{task_id}/answer"},
    executors: {
        "POST /tasks:claim",
        *(f"POST /tasks/{{task_id}}/{verb}" for verb in ("heartbeat", "release", "complete", "fail")),
    },
    tokens: {"POST /tokens", "POST /tokens/{name}/rotate", "DELETE /tokens/{name}"},
    topics: {
        "POST /topics/{topic}/messages",
        "POST /topics/{topic}/handlers",
        "POST /topics/{topic}/handlers/{name}/retire",
        *(f"POST /runs/{{run_id}}/{verb}" for verb in ("complete", "fail", "complete-rollback")),
        "POST /roots/{root_id}/roll-back",
    },
    roots: {"POST /roots/{root_id}/cancel"},
    cancellation_tokens: {"POST /topics:cancel-token"},
}


async def test_whatever_changes_something_says_who_asked_for_it(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        ann = Ann(here, await here.token("ann", "admin"))
        for tried in TRIED:
            await tried(ann)


def test_every_route_that_changes_something_is_tried() -> None:
    paths = create_app("memory://").document["paths"]
    changing = {
        f"{method.upper()} {path.removeprefix('/api/v1')}"
        for path, methods in paths.items()
        for method in methods
        if method in ("post", "put", "patch", "delete")
    }
    assert changing == set().union(*TRIED.values())
