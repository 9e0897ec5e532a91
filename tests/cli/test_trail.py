"""Whatever changes something leaves a trail with whoever called it: every verb that does is tried."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from perdure import Client
from perdure.api.dead_letters import REMOVAL_RECORD
from perdure.api.topics import HANDLER_RECORD
from perdure.cli.app import command
from perdure.engine import AnyClient
from tests.cli.shell import Done, Shell
from tests.cli.test_coverage import verbs
from tests.cli.test_graphs import GOOD

T = TypeVar("T")


class Ann:
    """Calls verbs, and looks at what she left."""

    name = "cli:ann"

    def __init__(self, shell: Shell) -> None:
        self.shell = shell

    def does(self, *arguments: object) -> Done:
        return self.shell(*arguments, env={"LOGNAME": "ann"})

    def rows(self, run_id: str) -> list[str]:
        """What she did to a run."""

        async def look(client: AnyClient) -> list[str]:
            return [row.became for row in await client.handle(run_id).audit() if row.actor == self.name]

        return self._looked(look)

    def has_kept(self, kind: str, name: str) -> bool:
        """Whether the newest version of a record is hers."""

        async def look(client: AnyClient) -> bool:
            return (await client.records.get(kind, name)).actor == self.name

        return self._looked(look)

    def has_made(self, token: str) -> bool:
        """Whether the newest version of a token is hers."""

        async def look(client: AnyClient) -> bool:
            found = await client.credentials.token(token)
            return found is not None and found.actor == self.name

        return self._looked(look)

    def _looked(self, look: Callable[[AnyClient], Coroutine[Any, Any, T]]) -> T:
        async def opened() -> T:
            assert self.shell.store is not None
            async with Client(self.shell.store, poll_s=None) as client:
                return await look(client)

        return asyncio.run(opened())


def starts(ann: Ann) -> None:
    ann.does("start", "greet", "name=x", "--id", "new", "--version", "")
    assert ann.rows("new") == ["created"]


def sends(ann: Ann) -> None:
    ann.does("send", "hint", "--to", "o-17")
    assert ann.rows("o-17") == ["sent"]


def changes(ann: Ann) -> None:
    for verb in ("pause", "resume", "cancel"):
        ann.does("runs", verb, "o-17")
    assert ann.rows("o-17")[-3:] == ["paused", "resumed", "cancelled"]


def updates(ann: Ann) -> None:
    ann.does("runs", "update", "asking", "--tag", "tenant=acme")
    assert ann.rows("asking")[-1] == "updated"


def records(ann: Ann) -> None:
    ann.does("records", "put", "prompt", "greeting", "text=hello")
    assert ann.has_kept("prompt", "greeting")


def retries(ann: Ann) -> None:
    ann.does("runs", "retry", "boom-1")
    assert ann.rows("boom-1") == ["running"]


def letters(ann: Ann) -> None:
    first, second = (one["id"] for one in ann.shell("dead-letters", "list", "--json").json()["dead_letters"])
    ann.does("dead-letters", "replay", first, "--to", "asking")
    assert ann.rows("asking")[-1] == "sent"
    ann.does("dead-letters", "remove", second)
    assert ann.has_kept(REMOVAL_RECORD, second)


def tasks(ann: Ann) -> None:
    [task] = ann.does("tasks", "claim", "refunds", "--worker", "w", "--json").json()["tasks"]
    ann.does("tasks", "heartbeat", task["id"], "--worker", "w")
    ann.does("tasks", "release", task["id"], "--worker", "w")
    ann.does("tasks", "claim", "refunds", "--worker", "w")
    ann.does("tasks", "fail", task["id"], "no", "--worker", "w", "--retry")
    ann.does("tasks", "answer", task["id"], "ok=true")
    assert ann.rows("asking")[-1] == "answered"


def tokens(ann: Ann) -> None:
    for verb in ("create", "rotate", "revoke"):
        ann.does("tokens", verb, "bob")
        assert ann.has_made("bob")


def graphs(ann: Ann) -> None:
    (ann.shell.folder / "good.yaml").write_text(GOOD)
    ann.does("graph", "run", "good.yaml", "name=ada", "--module", "shop", "--keep", "--id", "kept")
    assert ann.rows("kept") == ["running"]


def topics(ann: Ann) -> None:
    ann.does("topics", "register", "approvals", "boss")
    assert ann.has_kept(HANDLER_RECORD, "approvals/boss")
    for verb in ("complete", "fail", "retire", "cancel", "cancel-token"):
        root = ann.does("emit", "approvals", "--json", "--token", verb).json()
        (run_id,) = root["run_ids"]
        assert ann.rows(run_id) == ["created"]
        if verb == "retire":
            ann.does("topics", "retire", "approvals", "boss", "--release")
            ann.does("topics", "register", "approvals", "boss")
        elif verb == "cancel":
            ann.does("topics", "cancel", root["id"])
        elif verb == "cancel-token":
            ann.does("topics", "cancel-token", verb)
        else:
            ann.does("topics", verb, run_id, *(["no"] if verb == "fail" else []))
        assert len(ann.rows(run_id)) > 1
        if verb == "complete":
            ann.does("topics", "roll-back", root["id"])
            ann.does("topics", "complete-rollback", run_id)
            assert ann.rows(run_id)[-2:] == ["rolling_back", "rolled_back"]


TRIED: dict[Callable[[Ann], None], set[str]] = {
    starts: {"start"},
    sends: {"send"},
    changes: {"runs pause", "runs resume", "runs cancel"},
    updates: {"runs update"},
    retries: {"runs retry"},
    letters: {"dead-letters replay", "dead-letters remove"},
    tasks: {"tasks answer", "tasks claim", "tasks heartbeat", "tasks release", "tasks fail"},
    records: {"records put"},
    topics: {
        *("emit", "topics register", "topics retire", "topics complete", "topics fail", "topics complete-rollback"),
        *("topics cancel", "topics cancel-token", "topics roll-back"),
    },
    tokens: {"tokens create", "tokens rotate", "tokens revoke"},
    graphs: {"graph run"},
}
LOOK = {
    "artifacts list", "artifacts save", "artifacts show", "audit export", "dead-letters list", "dead-letters show",
    "definitions list", "doctor", "engines list", "engines overdue", "events list", "graph draw", "graph validate",
    "records list", "records show", "runs audit", "runs count", "runs definition", "runs drawing", "runs graph-events",
    "runs history", "runs list", "runs published", "runs show", "runs stream", "runs streams", "runs tokens",
    "runs tree", "runs waits", "runs watch", "tasks list", "tasks show", "tokens list", "topics hierarchy",
    "topics list", "topics message",
}  # fmt: skip
# What these change nobody else has, or it has an actor of its own.
OTHERWISE = {
    "new": "files",
    "events purge": "what has expired, which engines remove by themselves",
    "demo": "a store of its own, which is gone afterwards",
    "explore": "stores in memory, which are gone afterwards",
    "bench": "a store of its own, which is gone afterwards",
    "migrate": "the schema, which has versions and no actors",
    "worker": "what runs do, whose actor is the engine",
    "serve": "what callers ask for, whose actors they are",
}


def test_whatever_changes_something_says_who_called_it(shell: Shell) -> None:
    ann = Ann(shell)
    for tried in TRIED:
        tried(ann)


def test_of_every_verb_it_is_known_whether_it_changes_something() -> None:
    told = [*LOOK, *OTHERWISE, *(verb for tried in TRIED.values() for verb in tried)]
    assert sorted(told) == sorted(" ".join(verb) for verb in verbs(command()))
