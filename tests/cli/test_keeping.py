"""`perdure tasks` and `artifacts`."""

from __future__ import annotations

from tests.cli.shell import Shell


def test_a_task_is_listed_shown_and_answered_once(shell: Shell) -> None:
    [task] = shell("tasks", "list", "--queue", "refunds", "--json").json()["tasks"]
    assert (task["title"], task["payload"]) == ("Refund o-18?", {"order": "o-18"})
    assert shell("tasks", "list").rows()[0][-1] == "Refund o-18?"
    assert "Refund o-18?" in shell.terminal("tasks", "list")
    id = task["id"]
    assert shell("tasks", "show", id, "--json").json()["task"]["id"] == id
    assert dict(shell("tasks", "show", id).rows())["payload"] == '{"order":"o-18"}'
    assert "Refund o-18?" in shell.terminal("tasks", "show", id)
    assert "$.ok" in shell("tasks", "answer", id, "ok=maybe", code=2).err
    assert "there is no answer in the arguments" in shell("tasks", "answer", id, code=2).err
    assert shell("tasks", "answer", id, "ok=true", "--json").json() == {"id": id, "result": "answered"}
    assert "perdure tasks show" in shell("tasks", "answer", id, "ok=true", code=4).err
    assert shell("tasks", "list").out == ""
    assert shell("tasks", "list", "--status", "all").rows()[0][2] == "answered"
    assert shell("tasks", "show", "nope", code=3).out == ""


def test_a_task_is_answered_by_what_its_schema_asks_for(shell: Shell) -> None:
    [task] = shell("tasks", "list", "--json").json()["tasks"]
    answers = [("ok (boolean", "no\n"), ("remark (string, may be left empty", "too late\n")]
    assert "answered" in shell.terminal("tasks", "answer", task["id"], answers=answers)
    with shell.begin("worker", "shop") as worker:
        worker.until("serves")
        assert shell("runs", "watch", "asking").out.endswith("succeeded\ttoo late\n")


def test_artifacts_are_listed_and_shown(shell: Shell) -> None:
    found = shell("artifacts", "list", "--name", "report", "--json").json()["artifacts"]
    assert [(one["version"], one["run_id"]) for one in found] == [(2, "report-2"), (1, "report-1")]
    assert len(shell("artifacts", "list").rows()) == 4
    assert "image/png" in shell.terminal("artifacts", "list", "--run", "report-1")
    assert shell("artifacts", "show", "report", "--json").json()["artifact"]["version"] == 2
    assert dict(shell("artifacts", "show", "report", "--version", 1).rows())["run_id"] == "report-1"
    assert "report-2" in shell.terminal("artifacts", "show", "report")
    assert shell("artifacts", "show", "report", "--version", 3, code=3).out == ""
    assert "give its name" in shell("artifacts", "show", code=2).err


def test_an_artifact_is_saved_whole_and_over_nothing(shell: Shell) -> None:
    assert shell("artifacts", "save", "report", "-o", "-").out == '{"text":"two"}'
    saved = shell("artifacts", "save", "picture", "--version", 1, "--json").json()
    assert saved["path"] == "picture"
    assert (shell.folder / "picture").read_bytes() == b"oneoneone"
    assert "--force" in shell("artifacts", "save", "picture", code=4).err
    assert "picture" in shell.terminal("artifacts", "save", "picture", "--force")
    assert (shell.folder / "picture").read_bytes() == b"twotwotwo"
    assert "cannot write" in shell("artifacts", "save", "picture", "-o", "no/where", code=1).err
    assert sorted(path.name for path in shell.folder.glob("*picture*")) == ["picture"]


def test_a_worker_claims_a_task_keeps_it_gives_it_back_and_answers_it(shell: Shell) -> None:
    [task] = shell("tasks", "claim", "refunds", "--worker", "w-1", "--json").json()["tasks"]
    id = task["id"]
    assert task["payload"] == {"order": "o-18"}
    assert "no task of refunds is open" in shell.terminal("tasks", "claim", "refunds", "--worker", "w-2")
    renewed = shell("tasks", "heartbeat", id, "--worker", "w-1", "--details", "[3]", "--json").json()
    assert renewed == {"id": id, "result": "renewed"}
    assert "renewed" in shell.terminal("tasks", "heartbeat", id, "--worker", "w-1")
    assert "w-1" in shell("tasks", "heartbeat", id, "--worker", "w-2", code=4).err
    assert shell("tasks", "release", id, "--worker", "w-1", "--json").json() == {"id": id, "result": "released"}
    assert shell("tasks", "claim", "refunds", "--worker", "w-2").rows()[0][0] == id
    assert "opened again" in shell.terminal("tasks", "fail", id, "too hard", "--worker", "w-2", "--retry")
    shell("tasks", "claim", "refunds", "--worker", "w-3")
    assert "released" in shell.terminal("tasks", "release", id, "--worker", "w-3")
    shell("tasks", "claim", "refunds", "--worker", "w-4")
    assert shell("tasks", "answer", id, "ok=true", "--worker", "w-1", code=4).out == ""
    assert shell("tasks", "fail", id, "no", "--worker", "w-4", "--json").json() == {"id": id, "result": "failed"}
    assert shell("tasks", "list", "--status", "all").rows()[0][2] == "answered"


def test_records_are_stored_listed_and_shown_by_version(shell: Shell) -> None:
    assert "there are no records of kind prompt" in shell.terminal("records", "list", "prompt")
    stored = shell("records", "put", "prompt", "greeting", "text=hello", "--json").json()
    assert stored == {"kind": "prompt", "name": "greeting", "version": 1}
    assert shell("records", "put", "prompt", "greeting", "text=hello").rows()[0][-1] == "1", "the same adds no version"
    assert "2" in shell.terminal("records", "put", "prompt", "greeting", "--body", '{"text": "hi"}')
    [record] = shell("records", "list", "prompt", "--json").json()["records"]
    assert (record["version"], record["body"]) == (2, {"text": "hi"})
    assert record["actor"].startswith("cli:")
    assert shell("records", "list", "prompt").rows()[0][:2] == ["greeting", "2"]
    assert shell("records", "show", "prompt", "greeting", "--version", 1, "--json").json()["record"]["body"] == {
        "text": "hello"
    }
    assert dict(shell("records", "show", "prompt", "greeting").rows())["body"] == '{"text":"hi"}'
    assert "greeting" in shell.terminal("records", "show", "prompt", "greeting")
    assert shell("records", "show", "prompt", "gone", code=3).out == ""
    assert shell("records", "show", "prompt", "greeting", "--version", 3, code=3).out == ""
