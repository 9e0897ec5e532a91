"""The command line on a Postgres server."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.shell import Nursery, Shell
from tests.storage.postgres.server import Servers

HERE = Path(__file__).resolve().parent


@pytest.fixture
def shell(nursery: Nursery, quick_path: Path, postgres_servers: Servers) -> Shell:
    folder = quick_path / "project"
    folder.mkdir()
    shutil.copyfile(HERE / "kiosk.py", folder / "shop.py")
    return Shell(nursery, folder, postgres_servers.fresh())


def test_a_store_is_made_worked_in_and_looked_at(shell: Shell) -> None:
    assert "has no tables yet" in shell("runs", "list", code=5).err
    assert shell("migrate", "--check", code=1).out
    made = shell("migrate", "--json").json()
    assert (made["was"], made["version"]) == (None, made["known"])
    with shell.begin("worker", "shop") as worker:
        worker.until("serves 11 workflows")
        assert "s1" not in worker.written.partition("serves")[0].partition("?")[2], "a URL is shown without its options"
        assert shell("start", "greet", "name=ada", "--id", "ada", "--wait").out == '"hello ada"\n'
        shell("start", "pays", "order=o-17", "--id", "o-17")
        with shell.begin("runs", "watch", "o-17", terminal=True) as watch:
            watch.until("waits for event paid")
            assert shell("send", "paid", "amount=1", "--to", "o-17").out == "delivered\to-17\n"
            assert watch.ended().code == 0
        assert [row[0] for row in shell("runs", "list").rows()] == ["o-17", "ada"]
        assert {one["state"] for one in shell("doctor", "--json").json()["findings"]} == {"ok"}
        assert len(shell("engines", "list").rows()) == 1


def test_a_server_that_is_not_there_cannot_be_reached(shell: Shell) -> None:
    gone = "postgresql://nobody:secret@127.0.0.1:1/none"
    done = shell("runs", "list", "--store", gone, code=5)
    assert "secret" not in done.err
    assert shell("doctor", "--json", "--store", gone, code=5).json()["findings"][-1]["state"] == "problem"
