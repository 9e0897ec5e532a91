"""Which store is meant, `perdure migrate` and `doctor`, and what is said of a store that cannot be had."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing

from perdure.storage.sqlite.lost_commits import has_reset_bug
from tests.cli.shell import Shell


def test_the_store_is_named_by_an_option_the_environment_or_the_project(shell: Shell) -> None:
    store, shell.store = shell.store, None
    nowhere = shell("runs", "list", code=2).err
    assert "--store" in nowhere
    assert "PERDURE_STORE" in nowhere
    assert "perdure.toml" in nowhere
    assert shell("runs", "list", "--store", store).out
    assert shell("runs", "list", env={"PERDURE_STORE": store or ""}).out
    (shell.folder / "perdure.toml").write_text('store = "sqlite:///shop.db"\nmodules = ["shop"]\n')
    below = shell.folder / "below"
    below.mkdir()
    shell.folder = below
    assert shell("runs", "list").out, "it is found from below, and its file beside it"
    with shell.begin("worker") as worker:
        worker.until("serves 11 workflows")
    assert list(below.iterdir()) == []


def test_a_project_file_that_is_wrong_is_told(shell: Shell) -> None:
    shell.store = None
    path = shell.folder / "perdure.toml"
    path.write_text("store = 1\n")
    assert "must be a str, not 1" in shell("runs", "list", code=2).err
    path.write_text("stor = 'x'\n")
    assert "the keys are store, codec, modules" in shell("runs", "list", code=2).err
    path.write_text("store\n")
    assert "cannot read" in shell("runs", "list", code=2).err
    path.write_text('store = "sqlite:///shop.db"\ncodec = "shop:nothing"\n')
    assert "the codec 'shop:nothing'" in shell("runs", "list", code=2).err


def test_looking_makes_no_store(empty: Shell) -> None:
    for verb in (["runs", "list"], ["engines", "list"], ["start", "x"], ["send", "x"], ["tasks", "list"]):
        assert "there is no file" in empty(*verb, "--store", "sqlite:///none.db", code=5).err
    assert list(empty.folder.iterdir()) == []
    assert "no store has the scheme" in empty("runs", "list", "--store", "mysql://x", code=2).err
    (empty.folder / "text.db").write_text("not a database, but a text that is long enough to be taken for none\n" * 20)
    assert "is not an SQLite database" in empty("runs", "list", "--store", "sqlite:///text.db", code=5).err


def test_migrate_makes_a_store_and_finds_it_up_to_date(empty: Shell) -> None:
    store = ["--store", "sqlite:///new.db"]
    assert empty("migrate", "--check", *store, code=1).out.startswith("sqlite:///new.db has no tables yet")
    made = empty("migrate", "--json", *store).json()
    assert made["was"] is None
    assert made["version"] == made["known"]
    assert "up to date" in empty.terminal("migrate", *store)
    assert "roles can be granted on Postgres only" in empty("migrate", "--grant", "x", *store, code=2).err
    assert empty("runs", "list", *store).out == ""


def test_an_older_store_is_brought_up_to_date_only_by_migrate(empty: Shell) -> None:
    """A file of the first version, as an older Perdure made it."""
    from perdure.storage.sqlite.schema import MIGRATIONS

    store = ["--store", "sqlite:///old.db"]
    with closing(sqlite3.connect(empty.folder / "old.db")) as connection:
        connection.executescript(MIGRATIONS[1])
        connection.execute("delete from perdure_schema")
        connection.execute("insert into perdure_schema (version) values (1)")
        connection.commit()
    refused = empty("runs", "list", *store, code=5).err
    assert "has schema version 1" in refused
    assert "perdure migrate" in refused
    found = {one["check"]: one for one in empty("doctor", "--json", *store, code=1).json()["findings"]}
    assert found["store"]["todo"].endswith("perdure migrate")
    assert "add --yes" in empty("migrate", *store, code=6).err
    screen = empty.terminal("migrate", *store, answers=[("older engines will refuse it? [y/N]", "y\n")])
    assert ", from 1" in screen
    assert empty("runs", "list", *store).out == ""


def test_a_newer_store_is_refused(shell: Shell) -> None:
    with closing(sqlite3.connect(shell.folder / "shop.db")) as connection:
        connection.execute("update perdure_schema set version = 9999")
        connection.commit()
    assert "upgrade this Perdure" in shell("runs", "list", code=5).err
    assert "upgrade this Perdure" in shell("doctor", code=5).out


def findings(shell: Shell, code: int) -> dict[str, dict[str, str]]:
    """What the doctor finds, but for the version of SQLite, which is this machine's."""
    found = {one["check"]: one for one in shell("doctor", "--json", code=code).json()["findings"]}
    sqlite = found.pop("SQLite", None)
    assert (sqlite is not None) == has_reset_bug(sqlite3.sqlite_version_info)
    return found


def test_the_doctor_finds_what_is_wrong_and_says_what_to_do(shell: Shell) -> None:
    shell("runs", "pause", "asking")
    found = findings(shell, 1)
    assert {name: one["state"] for name, one in found.items()} == {
        "disk": "ok",
        "store": "ok",
        "engines": "problem",
        "stranded runs": "problem",
        "held runs": "warning",
        "overdue timers": "ok",
        "dead letters": "warning",
        "clock": "ok",
    }
    assert all(one["todo"] for one in found.values() if one["state"] != "ok")
    screen = shell.terminal("doctor", code=1)
    assert "engines: start an engine: perdure worker MODULE" in screen


def test_the_doctor_is_content_with_a_store_that_is_well(shell: Shell) -> None:
    shell("dead-letters", "remove", "--all", "--yes")
    with shell.begin("worker", "shop") as worker:
        worker.until("serves")
        found = findings(shell, 0)
        assert {one["state"] for one in found.values()} == {"ok"}
        assert found["engines"]["found"] == "1 alive, 0 clients"


def test_the_doctor_finds_timers_that_nobody_takes(shell: Shell) -> None:
    with shell.begin("worker", "shop") as worker:
        worker.until("serves")
        shell("start", "sleeps", "seconds=3600", "--id", "sleeper")
        with shell.begin("runs", "watch", "sleeper") as watch:
            watch.until("suspended")
        worker.signal(signal.SIGTERM)
        worker.ended()
    with closing(sqlite3.connect(shell.folder / "shop.db")) as connection:
        connection.execute("update waits set due_at = due_at - 7200000000 where due_at is not null")
        connection.commit()
    found = findings(shell, 1)
    assert found["overdue timers"]["state"] == "problem"
    assert "sleeper" in found["overdue timers"]["found"]
    [overdue] = shell("engines", "overdue", "--json").json()["overdue"]
    assert (overdue["run_id"], overdue["deadline"]) == ("sleeper", False)
    assert shell("engines", "overdue", "--by", "1d").rows() == []
    assert "sleeper" in shell.terminal("engines", "overdue")


def test_the_doctor_tells_of_a_store_that_reads_and_does_not_write(shell: Shell) -> None:
    with closing(sqlite3.connect(shell.folder / "shop.db")) as connection:
        connection.execute(
            "create trigger full before update of alive on engines begin select raise(fail, 'no room'); end"
        )
    ended = shell("doctor", "--json", code=5).json()["findings"]
    assert [one["state"] for one in ended if "no room" in one["found"]] == ["problem"]


def test_the_doctor_finds_what_was_lost_with_the_log_the_first_time_it_is_asked(shell: Shell) -> None:
    with shell.begin("worker", "shop") as worker:
        worker.until("serves")
        shell("start", "sleeps", "seconds=3", "--id", "sleeper")  # It brings its own commits into the file.
        assert "succeeded" in shell("runs", "watch", "sleeper").out
        worker.signal(signal.SIGKILL)
        worker.ended()
    for end in ("-wal", "-shm"):
        (shell.folder / f"shop.db{end}").unlink()
    assert "commits were lost" in findings(shell, 1)["file"]["found"]
    assert "commits were lost" in findings(shell, 1)["file"]["found"]


def test_the_doctor_tells_of_a_store_that_is_not_there(empty: Shell) -> None:
    assert "it does not exist yet" in empty("doctor", "--store", "sqlite:///none.db", code=1).out
    assert "there is no folder" in empty("doctor", "--store", "sqlite:///no/none.db", code=1).out
    assert list(empty.folder.iterdir()) == []


def test_payloads_are_read_through_the_codec_of_the_project(shell: Shell) -> None:
    (shell.folder / "hidden.py").write_text(
        "import base64\n"
        "class Hidden:\n"
        "    def encode(self, text):\n"
        "        return base64.b64encode(text.encode()).decode()\n"
        "    def decode(self, text):\n"
        "        return base64.b64decode(text).decode()\n"
    )
    (shell.folder / "perdure.toml").write_text('store = "sqlite:///hidden.db"\ncodec = "hidden:Hidden"\n')
    shell.store = None
    with shell.begin("worker", "shop") as worker:
        worker.until("serves")
        assert shell("start", "greet", "name=ada", "--id", "ada", "--wait").out == '"hello ada"\n'
        assert shell("runs", "show", "ada", "--json").json()["run"]["input"] == {"name": "ada"}
    with closing(sqlite3.connect(shell.folder / "hidden.db")) as connection:
        [(stored,)] = connection.execute("select input from runs").fetchall()
    assert "ada" not in stored
