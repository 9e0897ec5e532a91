"""`perdure emit` and `topics`."""

from __future__ import annotations

from tests.cli.shell import Shell


def emitted(shell: Shell, *more: str) -> tuple[str, str]:
    """A root, and the run of the person who is to handle its message."""
    root = shell("emit", "approvals", "sku=s-1", "amount=5", *more, "--json").json()
    return root["id"], root["run_ids"][0]


def test_a_message_is_emitted_handled_and_undone_by_people(shell: Shell) -> None:
    assert "no topic has a handler" in shell.terminal("topics", "list")
    registered = shell("topics", "register", "approvals", "boss", "--json").json()
    assert registered == {"result": "registered", "topic": "approvals", "handler": "boss"}
    assert "registered" in shell.terminal("topics", "register", "approvals", "boss")
    assert shell("topics", "list", "--json").json() == {"topics": [{"topic": "approvals", "handlers": ["boss"]}]}
    assert shell("topics", "list").rows() == [["approvals", "boss"]]
    root, run = emitted(shell, "--id", "m-1", "--tag", "tenant=acme")
    assert emitted(shell, "--id", "m-1") == (root, run)
    other = shell("emit", "approvals", "sku=s-2", "--id", "m-1", code=4).err
    assert "with another content" in other
    assert f"perdure runs tree {root}" in other
    assert run in shell("runs", "tree", root).out
    hierarchy = shell("topics", "hierarchy", root, "--json").json()
    assert [(one["kind"], one["topic"]) for one in hierarchy["events"]] == [("emitted", "approvals")]
    assert shell("topics", "hierarchy", root).rows()[0][1:3] == ["approvals", "emitted"]
    assert "approvals" in shell.terminal("topics", "hierarchy", root)
    assert shell("topics", "message", run, "--json").json()["message"] == {"sku": "s-1", "amount": 5}
    assert '"amount":5' in shell.terminal("topics", "message", run)
    assert "has not ended" in shell("topics", "roll-back", root, code=4).err
    assert shell("topics", "complete", run, "ok=true", "--json").json() == {"result": "completed", "id": run}
    assert "has ended" in shell("topics", "complete", run, code=4).err
    assert shell("emit", "approvals", "sku=s-1", "amount=5", "--id", "m-1", "--wait").out == f"{root}\n"
    assert shell("topics", "roll-back", root, "--reason", "returned", "--json").json()["result"] == "rolling back"
    assert shell("topics", "complete-rollback", run, "--json").json() == {"result": "rolled back", "id": run}
    again = shell("emit", "approvals", "sku=s-1", "amount=5", "--id", "m-1", "--wait", code=1)
    assert "RollbackRequested: returned" in again.err
    assert "rolled_back" in shell("runs", "show", run).out


def test_the_same_in_a_terminal(shell: Shell) -> None:
    shell("topics", "register", "approvals", "boss")
    root = shell.terminal("emit", "approvals", "--message", '{"sku": "s-2"}').strip()
    run = shell("runs", "list", "--workflow", "boss", "--json").json()["runs"][0]["id"]
    assert "completed" in shell.terminal("topics", "complete", run)
    assert "rolling back" in shell.terminal("topics", "roll-back", root)
    assert "rolled back" in shell.terminal("topics", "complete-rollback", run)
    _, other = emitted(shell)
    assert "failed" in shell.terminal("topics", "fail", other, "no money")
    assert "no money" in shell("runs", "show", other).out
    third, _ = emitted(shell)
    assert "cancelled" in shell.terminal("topics", "cancel", third)
    assert "retired" in shell.terminal("topics", "retire", "approvals", "boss")


def test_what_is_not_wanted_any_more_is_failed_cancelled_and_retired(shell: Shell) -> None:
    shell("topics", "register", "approvals", "boss")
    _, run = emitted(shell)
    assert shell("topics", "fail", run, "no money", "--json").json() == {"result": "failed", "id": run}
    root, _ = emitted(shell, "--delay", "1h", "--deadline", "2h", "--rollback-deadline", "3h")
    assert "continues" in shell("emit", "approvals", "--id", "m-2", "--timeout", "1ms", code=7).err
    assert shell("topics", "cancel", root, "--json").json() == {"result": "cancelled", "id": root}
    ended = shell("topics", "cancel", root, code=4).err
    assert "has ended" in ended
    assert f"perdure runs tree {root}" in ended  # It is no run that could be shown.
    _, waits = emitted(shell)
    retired = shell("topics", "retire", "approvals", "boss", "--release", "--json").json()
    assert retired["result"] == "retired"
    assert "cancelled" in shell("runs", "show", waits).out
    assert "has no handler" in shell("topics", "retire", "approvals", "boss", code=3).err


def test_what_was_emitted_with_a_token_is_cancelled(shell: Shell) -> None:
    shell("topics", "register", "approvals", "boss")
    before, _ = emitted(shell, "--token", "deploy-17", "--token", "acme")
    other, _ = emitted(shell, "--token", "deploy-18")
    cancelled = shell("topics", "cancel-token", "deploy-17", "--reason", "broken", "--json").json()
    assert cancelled == {"result": "cancelled", "id": "deploy-17"}
    assert "cancelled before" in shell.terminal("topics", "cancel-token", "deploy-17")
    after = shell("emit", "approvals", "--token", "deploy-17").out.strip()
    statuses = {root: shell("runs", "tree", root).out for root in (before, other, after)}
    assert ["rolled_back" in text for text in statuses.values()] == [True, False, True]
    assert "cancellation token" in shell("topics", "cancel-token", "", code=2).err


def test_what_makes_no_sense_is_refused(shell: Shell) -> None:
    shell("topics", "register", "approvals", "boss")
    assert "topics that have one: 'approvals'" in shell("emit", "nowhere", "a=1", code=2).err
    assert "is not name=value" in shell("emit", "approvals", "word", code=2).err
    assert "--delay 'soon' is not a span of time" in shell("emit", "approvals", "--delay", "soon", code=2).err
    refused = shell("emit", "approvals", "--rollback-deadline", "soon", code=2).err
    assert "--rollback-deadline 'soon' is not a span of time" in refused
    for words in (("topics", "message"), ("topics", "complete"), ("topics", "complete-rollback")):
        assert "no run has the id 'nobody'" in shell(*words, "nobody", code=3).err
    assert "no run has the id 'nobody'" in shell("topics", "fail", "nobody", "no", code=3).err
    assert "no run has the id 'nobody'" in shell("topics", "cancel", "nobody", code=3).err
    assert "no run has the id 'nobody'" in shell("topics", "roll-back", "nobody", code=3).err
    assert shell("runs", "list", "--workflow", "boss", "--json").json()["runs"] == []
