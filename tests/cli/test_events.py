"""`perdure send`, `events` and `dead-letters`."""

from __future__ import annotations

from tests.cli.shell import Shell


def test_an_event_is_sent_to_a_run_or_kept_for_it(shell: Shell) -> None:
    sent = shell("send", "paid", "amount=100", "note=thanks", "--to", "o-17", "--key", "k-1", "--json").json()
    assert sent == {"result": "delivered", "run_ids": ["o-17"], "event_id": None}
    assert shell("send", "late", "--to", "o-17").rows()[0][0] == "queued"
    assert "queued" in shell.terminal("send", "late", "--to", "o-17", "--value", "[1]")
    waiting = shell("events", "list", "--to", "o-17", "--json", "--name", "late").json()["events"]
    assert [event["value"] for event in waiting] == [{}, [1]]
    assert "does not wait" in shell("send", "other", "--to", "o-17", "--strict", code=4).err
    assert (
        shell("send", "paid", "--to", "ada", code=4).err.splitlines()[1] == "  look at the run: perdure runs show ada"
    )
    assert shell("send", "paid", "--to", "nope", code=3).out == ""


def test_values_come_from_arguments_a_file_or_standard_input(shell: Shell) -> None:
    (shell.folder / "value.json").write_text('{"a": 1}')
    shell("send", "one", "--value", "@value.json")
    shell("send", "one", "--value", "-", stdin="[2]")
    shell("send", "one", "b=true", "c=text", 'd={"e": null}')
    values = [event["value"] for event in shell("events", "list", "--name", "one", "--json").json()["events"]]
    assert values == [{"a": 1}, [2], {"b": True, "c": "text", "d": {"e": None}}]
    assert "is not name=value" in shell("send", "one", "two", code=2).err
    assert "is not JSON" in shell("send", "one", "--value", "text", code=2).err
    assert "cannot read" in shell("send", "one", "--value", "@gone", code=2).err
    assert "use one of them" in shell("send", "one", "a=1", "--value", "2", code=2).err


def test_what_nobody_has_read_is_listed_and_steers_no_terminal(shell: Shell) -> None:
    assert shell("events", "list").rows()[0][1] == "news"
    with shell.begin("events", "list", terminal=True) as command:
        screen = command.ended().out
        assert b"\x1b[31mred" not in command.raw
    assert "\\u001b[31mred" in screen


def test_dead_letters_are_listed_replayed_and_removed(shell: Shell) -> None:
    letters = shell("dead-letters", "list", "--json").json()["dead_letters"]
    assert [letter["value"] for letter in letters] == [{"number": 1}, {"number": 2}]
    assert shell("dead-letters", "list").rows()[0][1:4] == ["note", "unread", "succeeded"]
    assert "note" in shell.terminal("dead-letters", "list")
    first, second = (letter["id"] for letter in letters)
    assert shell("dead-letters", "show", first, "--json").json()["dead_letter"] == letters[0]
    assert dict(shell("dead-letters", "show", first).rows())["because"] == "the run ended: succeeded"
    assert "note" in shell.terminal("dead-letters", "show", first)
    assert shell("dead-letters", "show", "nope", code=3).out == ""
    assert "the dead letter stays" in shell("dead-letters", "replay", first, "--to", "ada", code=4).err
    replayed = shell("dead-letters", "replay", first, "--to", "o-17", "--json").json()
    assert replayed["results"][0]["result"] == "queued"
    assert shell("dead-letters", "remove", second).out == f"removed {second}\n"
    assert shell("dead-letters", "remove", second, code=3).out == ""
    assert shell("dead-letters", "replay", second, code=3).out == ""
    assert "there are no dead letters" in shell.terminal("dead-letters", "list")


def test_several_dead_letters_are_asked_about_first(shell: Shell) -> None:
    assert "add --yes" in shell("dead-letters", "remove", "--all", code=6).err
    screen = shell.terminal(
        "dead-letters", "replay", "--name", "note", answers=[("replay 2 dead letters? [y/N]", "y\n")]
    )
    assert screen.count("queued") == 2
    assert "there is no dead letter to remove" in shell("dead-letters", "remove", "--all", "--yes").err


def test_dead_letters_are_all_removed_in_a_terminal(shell: Shell) -> None:
    screen = shell.terminal("dead-letters", "remove", "--all", answers=[("remove 2 dead letters? [y/N]", "y\n")])
    assert screen.count("removed") == 2
    assert shell("dead-letters", "remove", "--all", "--json", "--yes").json() == {"results": []}


def test_expired_events_are_purged_now(shell: Shell) -> None:
    assert shell("events", "purge", "--json").json() == {"removed": 0}
    assert "removed" in shell.terminal("events", "purge")
