"""`perdure runs`, and `start`: in a pipe, with --json, and in a terminal."""

from __future__ import annotations

from tests.cli.shell import Shell


def test_runs_are_listed_the_newest_first(shell: Shell) -> None:
    rows = shell("runs", "list").rows()
    assert next(row[0] for row in rows if row[1] != "greet") == "unread"
    assert rows[-1][:3] == ["ada", "greet", "succeeded"]
    assert rows[-1][3].endswith("Z"), "a time, for programs"

    found = shell("runs", "list", "--json", "--status", "failed", "--limit", "1").json()
    assert [run["id"] for run in found["runs"]] == ["boom-2"]
    following = shell(
        "runs", "list", "--json", "--status", "failed", "--limit", "1", "--cursor", found["cursor"]
    ).json()
    assert ([run["id"] for run in following["runs"]], following["cursor"]) == (["boom-1"], None)

    screen = shell.terminal("runs", "list", "--tag", "tenant=acme")
    assert screen.splitlines()[0].split()[:3] == ["id", "workflow", "status"]
    assert "ada" in screen
    assert "ago" in screen or "just now" in screen
    assert "boom" not in screen


def test_a_page_that_is_not_the_last_says_how_to_go_on(shell: Shell) -> None:
    done = shell("runs", "list", "-n", "1")
    assert len(done.rows()) == 1
    assert done.err.startswith("there are more: --cursor ")


def test_runs_are_chosen_by_what_they_are_like(shell: Shell) -> None:
    assert {row[0] for row in shell("runs", "list", "--workflow", "boom").rows()} == {"boom-1", "boom-2"}
    assert len(shell("runs", "list", "--parent", "family").rows()) == 2
    assert shell("runs", "list", "--before", "1d").rows() == []
    assert "no run matches" in shell.terminal("runs", "list", "--hold", "paused")
    assert "use one of created, running" in shell("runs", "list", "--status", "gone", code=2).err
    assert "is not a time" in shell("runs", "list", "--since", "yesterday", code=2).err


def test_a_run_is_shown_with_what_it_waits_for(shell: Shell) -> None:
    shown = shell("runs", "show", "o-17", "--json").json()
    assert (shown["run"]["status"], shown["run"]["input"]) == ("suspended", {"order": "o-17"})
    assert [(wait["kind"], wait["name"]) for wait in shown["waits"]] == [("event", "paid")]
    assert shown["published"] == {"order": "o-17"}
    lines = dict(shell("runs", "show", "o-17").rows())
    assert lines["waits for"] == "event paid"
    assert lines["stranded"] == "no engine has workflow 'pays'"
    assert "event paid" in shell.terminal("runs", "show", "o-17")


def test_a_failed_run_is_shown_with_its_stack(shell: Shell) -> None:
    shown = shell("runs", "show", "boom-1", "--json").json()
    assert shown["run"]["failure"]["message"] == "no boom-1"
    assert shown["failed_entry"]["name"] == "explode"
    screen = shell.terminal("runs", "show", "boom-1")
    assert "ValueError: no boom-1" in screen
    assert "in explode" in screen, "where it was raised"


def test_what_a_run_did_and_how_its_status_changed(shell: Shell) -> None:
    history = shell("runs", "history", "ada", "--json").json()
    assert [(entry["kind"], entry["name"], entry["value"]) for entry in history["journal"]] == [
        ("step", "hello", "hello ada")
    ]
    assert [change["became"] for change in history["audit"]] == ["running", "succeeded"]
    assert shell("runs", "history", "ada").rows()[0][2:4] == ["step", "hello"]
    assert [one["became"] for one in shell("runs", "audit", "ada", "--json").json()["audit"]] == [
        "running",
        "succeeded",
    ]
    assert shell("runs", "audit", "ada").rows()[-1][3] == "succeeded"
    assert "succeeded" in shell.terminal("runs", "audit", "ada")
    assert "hello ada" in shell.terminal("runs", "history", "ada")


def test_a_tree_shows_the_children(shell: Shell) -> None:
    tree = shell("runs", "tree", "family", "--json").json()
    assert (tree["run"]["id"], len(tree["children"])) == ("family", 2)
    lines = shell("runs", "tree", "family").out.splitlines()
    assert lines[0] == "family\tfamily\tsucceeded"
    assert lines[1].startswith("  ")
    assert "├── " in shell.terminal("runs", "tree", "family")


def test_an_id_that_nobody_has_is_not_found(shell: Shell) -> None:
    verbs = ("show", "history", "audit", "tree", "waits", "published", "streams", "watch", "resume", "pause", "cancel")
    for verb in (*verbs, "retry", "tokens", "drawing", "definition", "graph-events"):
        done = shell("runs", verb, "nope", code=3)
        assert done.err == "perdure: no run has the id 'nope'\n  list the runs: perdure runs list\n", verb
    told = shell("runs", "show", "nope", "--json", code=3)
    assert told.out == ""
    assert '"code":"run_not_found"' in told.err
    assert '"exit":3' in told.err


def test_a_run_is_paused_and_resumed_and_the_audit_trail_says_by_whom(shell: Shell) -> None:
    assert shell("runs", "pause", "o-17", "--reason", "lunch", "--json").json()["results"][0]["result"] == "paused"
    assert shell("runs", "list", "--hold", "paused").rows()[0][5].startswith("paused: lunch")
    assert "held already" in shell("runs", "pause", "o-17", code=4).err
    assert "resumed o-17" in shell.terminal("runs", "resume", "o-17")
    assert "is not held" in shell("runs", "resume", "o-17", code=4).err
    actors = {change["actor"] for change in shell("runs", "history", "o-17", "--json").json()["audit"]}
    assert any(actor.startswith("cli:") for actor in actors), actors
    screen = shell.terminal("runs", "pause", "o-17")
    assert "paused o-17" in screen
    assert shell("runs", "resume", "o-17", "--json").json()["results"][0]["result"] == "resumed"


def test_runs_are_counted(shell: Shell) -> None:
    assert shell("runs", "count", "--status", "failed", "--json").json() == {"count": 2, "limit": 10_000}
    assert shell("runs", "count", "--workflow", "boom").out == "2\n"
    done = shell("runs", "count", "--limit", 1)
    assert done.out == "1\n"
    assert "there may be more" in done.err
    assert "2" in shell.terminal("runs", "count", "--workflow", "boom")


def test_what_a_run_waits_for_publishes_and_streams_is_shown(shell: Shell) -> None:
    [wait] = [one for one in shell("runs", "waits", "o-17", "--json").json()["waits"] if one["kind"] == "event"]
    assert wait["name"] == "paid"
    assert ["event", "event paid"] in [row[:2] for row in shell("runs", "waits", "o-17").rows()]
    assert "event paid" in shell.terminal("runs", "waits", "o-17")
    assert "it waits for nothing" in shell.terminal("runs", "waits", "ada")

    assert shell("runs", "published", "o-17", "--json").json() == {"published": {"order": "o-17"}}
    assert shell("runs", "published", "o-17", "order").out == '"o-17"\n'
    assert shell("runs", "published", "o-17", "gone", code=3).out == ""
    assert "o-17" in shell.terminal("runs", "published", "o-17")

    assert shell("runs", "streams", "counting", "--json").json() == {"streams": {"log": 3}}
    assert shell("runs", "streams", "counting").rows() == [["log", "3"]]
    assert "log" in shell.terminal("runs", "streams", "counting")
    items = shell("runs", "stream", "counting", "log", "--json").json_lines()
    assert [(one["offset"], one["value"]) for one in items] == [(1, 0), (2, 1), (3, 2)]
    assert [row[2] for row in shell("runs", "stream", "counting", "log", "--after", 1, "--follow").rows()] == ["1", "2"]
    assert "2" in shell.terminal("runs", "stream", "counting", "log", "--after", 2)
    assert shell("runs", "stream", "nope", "log", code=3).out == ""


def test_tags_and_a_deadline_are_replaced(shell: Shell) -> None:
    changed = shell("runs", "update", "o-17", "--tag", "tenant=acme", "--deadline", "2h", "--json").json()["run"]
    assert (changed["tags"], changed["deadline"] is None) == ({"tenant": "acme"}, False)
    assert "updated o-17" in shell.terminal("runs", "update", "o-17", "--no-deadline", "--tag", "tenant=zeta")
    kept = shell("runs", "show", "o-17", "--json").json()["run"]
    assert (kept["tags"], kept["deadline"]) == ({"tenant": "zeta"}, None)
    assert "no option says what to change" in shell("runs", "update", "o-17", code=2).err
    assert "use one of them" in shell("runs", "update", "o-17", "--no-tags", "--tag", "a=b", code=2).err
