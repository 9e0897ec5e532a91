"""Cancel and retry: by id, or several at once, which is asked about first."""

from __future__ import annotations

from tests.cli.shell import Shell


def statuses(shell: Shell, workflow: str) -> list[str]:
    found = shell("runs", "list", "--workflow", workflow, "--json").json()
    return [run["status"] for run in found["runs"]]


def test_a_run_is_cancelled_by_its_id(shell: Shell) -> None:
    done = shell("runs", "cancel", "o-17", "--reason", "a test", "--json").json()
    assert done == {"results": [{"id": "o-17", "result": "cancelled", "error": None, "message": None}]}
    assert "has ended" in shell("runs", "cancel", "o-17", code=4).err
    assert shell("runs", "show", "o-17", "--json").json()["run"]["failure"]["message"] == "a test"
    assert "cancelled asking" in shell.terminal("runs", "cancel", "asking")


def test_several_runs_are_cancelled_only_if_somebody_says_so(shell: Shell) -> None:
    screen = shell.terminal("runs", "cancel", "--workflow", "pays", code=6, answers=[("cancel 1 run? [y/N]", "\n")])
    assert "o-17" in screen
    assert "nothing was done" in screen
    assert statuses(shell, "pays") == ["suspended"]
    screen = shell.terminal("runs", "cancel", "--all", answers=[("cancel 2 runs? [y/N]", "y\n")])
    assert "cancelled o-17" in screen
    assert statuses(shell, "pays") == ["cancelled"]
    assert "there is no run to cancel" in shell("runs", "cancel", "--all").err


def test_without_a_terminal_several_runs_are_left_alone_unless_yes_is_said(shell: Shell) -> None:
    assert "add --yes" in shell("runs", "cancel", "--workflow", "pays", code=6).err
    assert "add --yes" in shell("runs", "cancel", "--workflow", "pays", code=6, stdin="y\n").err
    assert statuses(shell, "pays") == ["suspended"]
    done = shell("runs", "cancel", "--workflow", "pays", "--yes", "--json").json()
    assert [result["result"] for result in done["results"]] == ["cancelled"]


def test_a_question_can_be_left_with_ctrl_c(shell: Shell) -> None:
    with shell.begin("runs", "cancel", "--all", terminal=True) as command:
        command.until("[y/N]")
        command.type("\x03")
        assert command.ended().code == 130
    assert statuses(shell, "pays") == ["suspended"]


def test_too_many_or_nothing_chosen_is_refused(shell: Shell) -> None:
    assert "more than 1 are selected" in shell("runs", "cancel", "--all", "--yes", "--at-most", 1, code=2).err
    assert "nothing says which runs to cancel" in shell("runs", "cancel", code=2).err
    assert "use one of them" in shell("runs", "cancel", "o-17", "--all", code=2).err
    assert statuses(shell, "pays") == ["suspended"]


def test_failed_runs_go_on_from_where_they_failed(shell: Shell) -> None:
    (shell.folder / "mended").touch()
    assert "is succeeded" in shell("runs", "retry", "ada", code=4).err
    with shell.begin("worker", "shop") as worker:
        worker.until("serves")
        assert shell("runs", "retry", "boom-1", "--json").json()["results"][0]["result"] == "retried"
        screen = shell.terminal("runs", "retry", "--all", answers=[("retry 1 run? [y/N]", "yes\n")])
        assert "retried boom-2" in screen
        for name in ("boom-1", "boom-2"):
            assert shell("runs", "watch", name).out.endswith("succeeded\tmended\n")


def test_one_that_is_refused_leaves_the_others_alone(shell: Shell) -> None:
    done = shell("runs", "cancel", "o-17", "nope", "asking", code=1)
    assert done.out.splitlines()[0] == "cancelled o-17"
    assert done.out.splitlines()[1].startswith("refused nope: ")
    assert statuses(shell, "asks") == ["cancelled"]


def test_a_dry_run_shows_what_would_be_changed_and_changes_nothing(shell: Shell) -> None:
    assert shell("runs", "cancel", "--workflow", "pays", "--dry-run", "--json").json() == {
        "dry_run": True,
        "ids": ["o-17"],
    }
    assert shell("runs", "cancel", "o-17", "nope", "--dry-run").rows() == [["o-17", "pays", "suspended"]]
    assert "boom-1" in shell.terminal("runs", "retry", "--all", "--dry-run")
    assert shell("runs", "pause", "--all", "--dry-run", "--json").json()["ids"] == ["asking", "o-17"]
    assert shell("runs", "resume", "--all", "--dry-run", "--json").json()["ids"] == []
    assert statuses(shell, "pays") == ["suspended"]
    assert statuses(shell, "boom") == ["failed", "failed"]


def test_several_runs_are_paused_and_resumed(shell: Shell) -> None:
    done = shell("runs", "pause", "--workflow", "pays", "--yes", "--json").json()
    assert [(one["id"], one["result"]) for one in done["results"]] == [("o-17", "paused")]
    screen = shell.terminal("runs", "pause", "--all", answers=[("pause 1 run? [y/N]", "y\n")])
    assert "paused asking" in screen, "the other one is held already"
    assert "there is no run to pause" in shell("runs", "pause", "--all").err
    screen = shell.terminal("runs", "resume", "--hold", "paused", answers=[("resume 2 runs? [y/N]", "y\n")])
    assert "resumed o-17" in screen
    assert shell("runs", "list", "--hold", "paused").rows() == []
