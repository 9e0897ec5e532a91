"""Artifacts, tasks and remote executors over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.graph import Graph, remote
from perdure.ports import Store
from tests.http.site import refused, site, told

MakeStore = Callable[[], Store]


async def test_artifacts_are_listed_and_downloaded(make_any_store: MakeStore) -> None:
    async with site(make_any_store) as here:
        await here.start("makes", "r-1", name="a/ü.txt", text="hällo")
        await here.until("r-1", "succeeded")
        page = told(await here.http.get("/artifacts", params={"limit": "2"}))
        rest = told(await here.http.get("/artifacts", params={"after": page["cursor"]}))
        found = {one["name"]: one for one in page["artifacts"] + rest["artifacts"]}
        assert set(found) == {"bytes", "a/ü.txt", "numbers"}
        assert rest["cursor"] is None
        text = await here.http.get(f"/artifacts/{found['a/ü.txt']['id']}/content")
        assert (text.content.decode(), text.headers["content-type"]) == ("hällo", "text/plain; charset=utf-8")
        assert text.headers["content-disposition"] == "attachment; filename*=UTF-8''a%2F%C3%BC.txt"
        assert text.headers["etag"] == f'"sha256-{found["a/ü.txt"]["digest"]}"'
        large = await here.http.get(f"/artifacts/{found['bytes']['id']}/content")
        assert large.content == b"\0\xff" * 700_000
        assert told(await here.http.get(f"/artifacts/{found['numbers']['id']}/content")) == [1, 2, 3]
        assert told(await here.http.get(f"/artifacts/{found['numbers']['id']}"))["version"] == 1
        assert told(await here.http.get("/artifacts", params={"name": "numbers"}))["artifacts"] == [found["numbers"]]
        for path in ("/artifacts/nobody", "/artifacts/nobody/content"):
            refused(await here.http.get(path), 404, "artifact_not_found")


ODD_TYPES = [
    "text/html", "image/svg+xml", "text/javascript", "text/css", "application/xml", "text/html\r\nset-cookie: a=b",
    "nonsense", "a/b; c", "image/png", "text/plain; charset=utf-8",
]  # fmt: skip
HARMLESS = {"image/png", "text/plain; charset=utf-8"}


async def test_what_a_run_made_never_acts_as_a_page_of_the_server(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        for kind in ODD_TYPES:
            run = f"r-{ODD_TYPES.index(kind)}"
            await here.start("makes", run, name="x\r\ny: z", text="<script>alert(1)</script>", media_type=kind)
            await here.until(run, "succeeded")
            wanted = {"name": "x\r\ny: z", "run": run}
            (found,) = told(await here.http.get("/artifacts", params=wanted))["artifacts"]
            got = await here.http.get(f"/artifacts/{found['id']}/content")
            assert got.headers["content-security-policy"] == "sandbox; default-src 'none'"
            assert got.headers["x-content-type-options"] == "nosniff"
            assert got.headers["content-disposition"].startswith("attachment;")
            assert not {"set-cookie", "y"} & set(got.headers)
            assert got.headers["content-type"] == (kind if kind in HARMLESS else "application/octet-stream")


async def test_a_person_answers_a_task(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        await here.start("asks", "r-1", order="o-1")
        one = await here.task(status="open", queue="approvals", kind="human")
        assert (one["title"], one["payload"], one["run_id"]) == ("Approve o-1?", {"order": "o-1"}, "r-1")
        assert one["schema"]["$defs"]["Approval"]["required"] == ["ok"]
        about = refused(
            await here.http.post(f"/tasks/{one['id']}/answer", json={"value": {"ok": "yes"}}), 422, "invalid_answer"
        )
        assert about["path"] == "$.ok"
        assert told(await here.http.get(f"/tasks/{one['id']}")) == one
        ann = await here.token("ann", "operate")
        done = told(await here.http.post(f"/tasks/{one['id']}/answer", json={"value": {"ok": True}}, headers=ann))
        assert (done["status"], done["answered_by"]) == ("answered", "ann")
        assert (await here.until("r-1", "succeeded"))["output"] == "o-1 True"
        again = await here.http.post(f"/tasks/{one['id']}/answer", json={"value": {"ok": False}})
        refused(again, 409, "task_closed")
        refused(await here.http.post("/tasks/nobody/answer", json={"value": 1}), 404, "task_not_found")


async def test_a_remote_executor_claims_beats_and_completes(make_any_store: MakeStore) -> None:
    async with site(make_any_store) as here:
        await here.start("asks", "r-1", order="o-1", kind="remote")
        one = await here.task(queue="gpu")

        async def asked(verb: str, **body: Any) -> Any:
            return await here.http.post(f"/tasks/{one['id']}/{verb}", json=body)

        refused(await asked("heartbeat", worker="w-1"), 409, "task_lost")
        claim = {"worker": "w-1", "limit": 5, "lease_s": 60}
        (claimed,) = told(await here.http.post("/tasks:claim", json={"queue": "gpu", **claim}))
        assert (claimed["id"], claimed["worker"], claimed["status"]) == (one["id"], "w-1", "claimed")
        assert told(await here.http.post("/tasks:claim", json={"queue": "gpu", "worker": "w-2"})) == []
        assert told(await asked("heartbeat", worker="w-1", details={"done": 0.5}))["details"] == {"done": 0.5}
        refused(await asked("heartbeat", worker="w-2"), 409, "task_lost")
        refused(await asked("complete", worker="w-2", context_updates={"ok": True}), 409, "task_lost")
        refused(await asked("complete", worker="w-1", context_updates={}), 422, "invalid_answer")
        refused(await asked("complete", worker="w-1"), 400, "invalid_request")
        refused(await asked("complete", worker="w-1", result=1, context_updates=1), 400, "invalid_request")
        assert told(await asked("release", worker="w-1"))["status"] == "open"
        told(await here.http.post("/tasks:claim", json={"queue": "gpu", "worker": "w-2"}))
        assert told(await asked("fail", worker="w-2", error="no memory", retry=True))["error"] == "no memory"
        told(await here.http.post("/tasks:claim", json={"queue": "gpu", "worker": "w-3"}))
        brought = [{"name": "note", "value": "well done"}, {"name": "scan", "value": [1], "type": "scan"}]
        done = await asked("complete", worker="w-3", context_updates={"ok": True}, staged_artifacts=brought)
        assert told(done)["answered_by"] == "w-3"
        assert (await here.until("r-1", "succeeded"))["output"] == "o-1 True"
        (note,) = told(await here.http.get("/artifacts", params={"name": "note"}))["artifacts"]
        assert (await here.http.get(f"/artifacts/{note['id']}/content")).text == "well done"
        assert (note["step"], note["run_id"]) == ("w-3", "r-1")
        refused(await asked("fail", worker="w-3", error="late"), 409, "task_closed")


async def test_a_graphs_node_takes_a_result_updates_of_its_context_and_artifacts(make_store: MakeStore) -> None:
    graph: Graph[Any, Any] = Graph("renders_frames")
    graph.node("render", remote("gpu", schema={"type": "integer"}), input={"frame": "input.frame"})
    graph.output({"size": "nodes.render", "best": "state.best"})
    async with site(make_store, workflows=[graph]) as here:
        await here.start("renders_frames", "r-1", input={"frame": 7})
        one = await here.task(queue="gpu")
        assert one["payload"] == {"frame": 7}
        told(await here.http.post("/tasks:claim", json={"queue": "gpu", "worker": "w-1"}))
        path = f"/tasks/{one['id']}/complete"
        refused(await here.http.post(path, json={"worker": "w-1", "result": "large"}), 422, "invalid_answer")
        brought = [{"name": "frame", "value": "pixels"}]
        body = {"worker": "w-1", "result": 3, "context_updates": {"state.best": 9}, "staged_artifacts": brought}
        told(await here.http.post(path, json=body))
        assert (await here.until("r-1", "succeeded"))["output"] == {"size": 3, "best": 9}
        (found,) = told(await here.http.get("/artifacts"))["artifacts"]
        assert (found["name"], found["run_id"]) == ("frame", "r-1")


async def test_a_remote_executor_gives_up_for_good(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        await here.start("asks", "r-1", order="o-1", kind="remote")
        one = await here.task(queue="gpu")
        told(await here.http.post("/tasks:claim", json={"queue": "gpu", "worker": "w-1"}))
        path = f"/tasks/{one['id']}/fail"
        told(await here.http.post(path, json={"worker": "w-1", "error": "<i>broken</i>"}))
        failed = await here.until("r-1", "failed")
        assert "<i>broken</i>" in failed["failure"]["message"]
