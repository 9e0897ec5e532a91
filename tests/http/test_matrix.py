"""Route × scope × caller: each route of the document, asked by everybody, about runs within reach, out of it and none.

The routes come from the OpenAPI document, so a new one without a rule here fails. What is to change something is sent
with a body that no route takes: whoever may not do it is refused before anybody looks at it, and nothing changes. In CI
two callers of each outcome ask each route, one of them drawn by lot; in `make soak` everybody asks everything.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

import pytest

from perdure.http import create_app, make_token, request_checks, revoke_token, rotate_token
from perdure.http.scopes import Grants, Scope, parse_scopes
from perdure.ports import Store
from tests.http.site import JSON, Site, site

READ, OPERATE, ADMIN = Scope


class About(Enum):
    """What a route is about, and so who is let through: see `expected`."""

    NOTHING = "nothing that needs a token"
    EVERYTHING = "everything, or what is not of a run"
    RUN = "the run, task or artifact that its path names"
    SOME = "a list of what is within reach, or what its body names"


class Rule(NamedTuple):
    about: About
    level: Scope = READ


EVERYTHING, RUN, SOME = About.EVERYTHING, About.RUN, About.SOME

RULES: dict[str, Rule] = {
    "GET /health/live": Rule(About.NOTHING),
    "GET /health/ready": Rule(About.NOTHING),
    "GET /metrics": Rule(EVERYTHING),
    "POST /runs": Rule(SOME, OPERATE),
    "GET /runs": Rule(SOME),
    "GET /runs/{run_id}": Rule(RUN),
    "PATCH /runs/{run_id}": Rule(RUN, OPERATE),
    **{f"POST /runs/{{run_id}}/{verb}": Rule(RUN, OPERATE) for verb in ("cancel", "retry", "pause", "resume")},
    **{f"POST /runs/{{run_id}}/{verb}": Rule(RUN, OPERATE) for verb in ("complete", "fail", "complete-rollback")},
    "POST /runs/{run_id}/events": Rule(RUN, OPERATE),
    **{f"GET /runs/{{run_id}}/{noun}": Rule(RUN) for noun in ("history", "audit", "tree", "waits", "tokens")},
    **{f"GET /runs/{{run_id}}/{noun}": Rule(RUN) for noun in ("graph-events", "drawing", "definition", "streams")},
    **{f"GET /runs/{{run_id}}/{noun}": Rule(RUN) for noun in ("published", "message", "changes")},
    "GET /runs/{run_id}/published/{key}": Rule(RUN),
    "GET /runs/{run_id}/streams/{name}": Rule(RUN),
    "GET /runs/{run_id}/streams/{name}/follow": Rule(RUN),
    "GET /runs:changes": Rule(SOME),
    "GET /runs:count": Rule(EVERYTHING),
    "GET /runs:get-many": Rule(EVERYTHING),
    **{
        f"POST /runs:{verb}": Rule(EVERYTHING, OPERATE) for verb in ("start-many", "cancel", "pause", "resume", "retry")
    },
    "GET /records/{kind}": Rule(EVERYTHING),
    "GET /records/{kind}/{name}": Rule(EVERYTHING),
    "PUT /records/{kind}/{name}": Rule(EVERYTHING, OPERATE),
    "GET /roots/{root_id}": Rule(EVERYTHING),
    "POST /events": Rule(EVERYTHING, OPERATE),
    "GET /events": Rule(EVERYTHING),  # without to=…
    "POST /events:purge": Rule(EVERYTHING, OPERATE),
    "GET /dead-letters": Rule(EVERYTHING),
    "GET /dead-letters/{letter_id}": Rule(EVERYTHING),
    "POST /dead-letters/{letter_id}/replay": Rule(EVERYTHING, OPERATE),
    "DELETE /dead-letters/{letter_id}": Rule(EVERYTHING, OPERATE),
    "GET /artifacts": Rule(SOME),
    "GET /artifacts/{artifact_id}": Rule(RUN),
    "GET /artifacts/{artifact_id}/content": Rule(RUN),
    "GET /tasks": Rule(SOME),
    "GET /tasks/{task_id}": Rule(RUN),
    "POST /tasks/{task_id}/answer": Rule(RUN, OPERATE),
    "POST /tasks:claim": Rule(EVERYTHING, OPERATE),
    **{f"POST /tasks/{{task_id}}/{verb}": Rule(RUN, OPERATE) for verb in ("heartbeat", "complete", "fail", "release")},
    "GET /topics": Rule(EVERYTHING),
    "POST /topics/{topic}/messages": Rule(EVERYTHING, OPERATE),
    "POST /topics/{topic}/handlers": Rule(EVERYTHING, OPERATE),
    "POST /topics/{topic}/handlers/{name}/retire": Rule(EVERYTHING, OPERATE),
    "POST /roots/{root_id}/cancel": Rule(EVERYTHING, OPERATE),
    "POST /roots/{root_id}/roll-back": Rule(EVERYTHING, OPERATE),
    "POST /topics:cancel-token": Rule(EVERYTHING, OPERATE),
    "GET /definitions": Rule(SOME),
    "GET /engines": Rule(EVERYTHING),
    "GET /engines:overdue": Rule(EVERYTHING),
    "GET /audit": Rule(EVERYTHING, ADMIN),
    "GET /tokens": Rule(EVERYTHING, ADMIN),
    "POST /tokens": Rule(EVERYTHING, ADMIN),
    "POST /tokens/{name}/rotate": Rule(EVERYTHING, ADMIN),
    "DELETE /tokens/{name}": Rule(EVERYTHING, ADMIN),
}

CALLERS = (
    ["read"],
    ["operate"],
    ["admin"],
    ["read:workflow=asks"],
    ["operate:workflow=asks"],
    ["read:tag=tenant=acme"],
    ["operate:tag=tenant=acme"],
    ["operate:workflow=nobody", "read:tag=tenant=nobody"],
    ["read", "operate:workflow=asks"],
    ["read:workflow=asks", "operate:tag=tenant=acme"],
)
OF_NO_RUN = "of no run"
# Workflow and tags of what is asked for, by the ids that stand in paths.
TARGETS = {
    "mine": ("asks", {"tenant": "acme"}),
    "theirs": ("makes", {"tenant": "other"}),
    "none": (OF_NO_RUN, {}),
}
MADE = ("mine", "theirs")
SEED = int(os.environ.get("SEED", random.randrange(2**32)))
SIZES = ["some", pytest.param("all", marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
NOT_FOUND = {"run_not_found", "task_not_found", "artifact_not_found"}


@cache
def routes() -> list[tuple[str, str]]:
    """All that are in the document: methods and paths, as in RULES."""
    found = create_app("memory://").document["paths"]
    return [
        (method.upper(), path.removeprefix("/api/v1").rstrip("/") or path)
        for path, methods in found.items()
        for method in methods
    ]


def test_each_route_of_the_document_has_a_rule() -> None:
    assert {f"{method} {path}" for method, path in routes()} == set(RULES)


def expected(rule: Rule, grants: Grants | None, workflow: str, tags: dict[str, str]) -> str:
    """How a request about such a run ends, of whoever has these scopes (None: no valid token)."""
    if rule.about is About.NOTHING:
        return "through"
    if grants is None:
        return "401"
    if rule.about is About.EVERYTHING:
        return "through" if grants.includes(rule.level) else "403"
    if not grants.reaches(rule.level):
        return "403"
    if rule.about is About.SOME or grants.includes(rule.level) or grants.allows(rule.level, workflow, tags):
        return "through"
    return "403" if grants.allows(READ, workflow, tags) and workflow != OF_NO_RUN else "404"


class World(NamedTuple):
    here: Site
    ids: dict[str, dict[str, str]]  # target -> what stands in paths for it

    async def ask(self, method: str, path: str, target: str, headers: dict[str, str]) -> tuple[int, str]:
        """The status, and the code of a problem."""
        base = self.here.url if path.startswith(("/health", "/metrics")) else f"{self.here.url}/api/v1"
        body: dict[str, Any] = {} if method in ("GET", "DELETE") else {"json": {"nobody takes this": 1}}
        url = base + path.format(**self.ids[target])
        async with self.here.http.stream(method, url, headers={**headers, "if-match": "*"}, **body) as answer:
            if answer.headers.get("content-type") != "application/problem+json":
                return answer.status_code, ""
            await answer.aread()
            return answer.status_code, answer.json()["code"]


async def furnish(here: Site) -> World:
    """A run with a task, and one with artifacts, of different workflows and tags."""
    ids = {
        "key": "order",
        "letter_id": "none",
        "kind": "prompt",
        "topic": "nobody",
        "root_id": "none",
        "name": "nobody",
    }
    made: dict[str, dict[str, str]] = {}
    for target in MADE:
        tags = TARGETS[target][1]
        # Each has both a task and an artifact: those of the other workflow belong to runs with its tags.
        for workflow, input in (("asks", {"order": target}), ("makes", {"name": target, "text": "x"})):
            run = {"workflow": workflow, "id": f"{workflow}-{target}", "input": input, "tags": tags}
            assert (await here.http.post("/runs", json=run)).status_code == 201
        await here.until(f"makes-{target}", "succeeded")
        task = await here.task(run=f"asks-{target}")
        artifacts = (await here.http.get("/artifacts", params={"run": f"makes-{target}"})).json()["artifacts"]
        made[target] = ids | {
            "run_id": f"{TARGETS[target][0]}-{target}",
            "task_id": task["id"],
            "artifact_id": artifacts[0]["id"],
        }
    made["none"] = {**dict.fromkeys(made["mine"], "none"), "key": "order"}
    return World(here, made)


class Caller(NamedTuple):
    name: str
    grants: Grants | None  # None: there is no valid token
    headers: dict[str, str]


async def everybody(here: Site) -> list[Caller]:
    """Whoever might ask: with every kind of scope, and without a valid token in every way."""
    found: list[Caller] = []
    for number, scopes in enumerate(CALLERS):
        token = await make_token(here.client, f"c-{number}", scopes)
        found.append(Caller(str(scopes), parse_scopes(scopes), {"authorization": f"Bearer {token}", **JSON}))
    root = str(here.http.headers["authorization"])
    gone = await make_token(here.client, "gone", "admin")
    await revoke_token(here.client, "gone")
    brief = await make_token(here.client, "brief", "admin", expires=timedelta(microseconds=1))
    former = await make_token(here.client, "former", "admin")
    await rotate_token(here.client, "former")
    for name, shown in (
        ("nobody", {"authorization": ""}),
        ("revoked", {"authorization": f"Bearer {gone}"}),
        ("expired", {"authorization": f"Bearer {brief}"}),
        ("rotated", {"authorization": f"Bearer {former}"}),
        ("wrong", {"authorization": f"{root[:-1]}{'a' if root[-1] != 'a' else 'b'}"}),
        ("another's secret", {"authorization": root.replace("perdure_root_", "perdure_c-0_")}),
        ("start-up", {"authorization": "Bearer perdure_startup_guess"}),
        ("basic", {"authorization": root.replace("Bearer", "Basic")}),
        ("cookie", {"authorization": "", "cookie": f"perdure_session={root}; token={root}"}),
        ("proxied", {"authorization": "", "x-forwarded-for": "127.0.0.1", "forwarded": "for=127.0.0.1"}),
    ):
        found.append(Caller(name, None, {**shown, **JSON}))
    return found


@pytest.fixture(params=["tasks", "artifacts", "runs"])
def part(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def is_in(part: str, path: str) -> bool:
    if "{task_id}" in path:
        return part == "tasks"
    return part == "artifacts" if "{artifact_id}" in path else part == "runs"


def drawn(callers: list[tuple[Caller, str]], size: str, lot: random.Random) -> list[tuple[Caller, str]]:
    """All of them, or two of each outcome: one by lot, and whoever may do most of all. If somebody who may not is let
    through, it is most likely the one who just about may not."""
    if size == "all":
        return callers
    by_outcome: dict[str, list[tuple[Caller, str]]] = {}
    for one in callers:
        by_outcome.setdefault(one[1], []).append(one)
    return [
        one for found in by_outcome.values() for one in (max(found, key=lambda one: _may(one[0])), lot.choice(found))
    ]


def _may(caller: Caller) -> tuple[bool, ...]:
    grants = caller.grants
    if grants is None:
        return ()
    return (*(grants.includes(level) for level in (ADMIN, OPERATE, READ)), grants.reaches(OPERATE))


@pytest.mark.parametrize("size", SIZES)
async def test_everybody_gets_what_their_scopes_say(
    make_store: Callable[[], Store], part: str, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        request_checks, "_keep_pace", lambda *_: None
    )  # Strangers would be slowed down, and told nothing else.
    lot = random.Random(SEED)
    wrong: list[str] = []
    outcomes: Counter[str] = Counter()
    async with site(make_store, stream_s_max=0.05) as here:
        world = await furnish(here)
        callers = await everybody(here)
        root = {"authorization": here.http.headers["authorization"], **JSON}
        for method, path in routes():
            if not is_in(part, path):
                continue
            rule = RULES[f"{method} {path}"]
            for target in TARGETS if rule.about is RUN else MADE[:1]:
                # A task is of a run of `asks`, an artifact of one of `makes`, whichever tags they have.
                about = _with_workflow(path, target)
                through = await world.ask(method, path, target, root)
                assert through[0] < 500, f"{method} {path}: {through}"
                assert through[0] not in (401, 403, 429), f"{method} {path}: {through}"
                wanted = [(one, expected(rule, one.grants, about, TARGETS[target][1])) for one in callers]
                for caller, want in drawn(wanted, size, lot):
                    got = await world.ask(method, path, target, caller.headers)
                    outcomes[want] += 1
                    if not _fits(want, got, through):
                        place = f"{caller.name} {method} {path} ({target})"
                        wrong.append(f"{place}: {got}, expected {want}, an admin {through}")
    assert not wrong, "\n".join(wrong) + f"\nSEED={SEED}"
    print(f"{outcomes.total()} requests: {dict(outcomes)}, SEED={SEED}")  # noqa: T201 - for the record
    assert {"401", "404", "through"} <= set(outcomes)


def _with_workflow(path: str, target: str) -> str:
    if "{task_id}" in path and target in MADE:
        return "asks"
    return "makes" if "{artifact_id}" in path and target in MADE else TARGETS[target][0]


def _fits(want: str, got: tuple[int, str], through: tuple[int, str]) -> bool:
    status, code = got
    match want:
        case "401":
            return (status, code) == (401, "unauthenticated")
        case "403":
            return (status, code) == (403, "forbidden")
        case "404":
            return status == 404 and code in NOT_FOUND
        case _:
            return got == through and status not in (401, 403)


# ---------------------------------------------------------------------------------------------------------------------
# What lists and starts let through


async def test_lists_have_only_what_is_within_reach(make_store: Callable[[], Store]) -> None:
    async with site(make_store) as here:
        await furnish(here)
        for scopes, runs in (
            (["read:workflow=asks"], {"asks-mine", "asks-theirs"}),
            (["read:tag=tenant=acme"], {"asks-mine", "makes-mine"}),
            (["read:workflow=asks", "operate:tag=tenant=acme"], {"asks-mine", "asks-theirs", "makes-mine"}),
            (["read:workflow=nobody"], set()),
        ):
            token = {"authorization": f"Bearer {await make_token(here.client, 'some', scopes)}"}

            async def get(path: str, token: dict[str, str] = token, **params: Any) -> Any:
                return (await here.http.get(path, headers=token, params=params)).json()

            assert {run["id"] for run in (await get("/runs"))["runs"]} == runs
            paged: list[str] = []
            cursor = None
            while page := await get("/runs", limit=1, **({"cursor": cursor} if cursor else {})):
                paged += [run["id"] for run in page["runs"]]
                if (cursor := page["cursor"]) is None:
                    break
            assert paged == [run["id"] for run in (await get("/runs"))["runs"]]
            assert {run["id"] for run in (await get("/runs", workflow="makes"))["runs"]} == runs & {
                "makes-mine",
                "makes-theirs",
            }
            assert {one["run_id"] for one in (await get("/tasks"))["tasks"]} == {run for run in runs if "asks" in run}
            assert {one["run_id"] for one in (await get("/artifacts"))["artifacts"]} == {
                run for run in runs if "makes" in run
            }
            assert {one["workflow"] for one in await get("/definitions")} == (
                {"asks"} if "read:workflow=asks" in scopes else set()
            )
            async with here.http.stream("GET", "/runs:changes", headers=token) as stream:
                seen = set()
                async for line in stream.aiter_lines():
                    if line.startswith("data: ") and '"ids"' in line:
                        seen = {
                            run for run in ("asks-mine", "asks-theirs", "makes-mine", "makes-theirs") if run in line
                        }
                        break
                assert seen == runs


async def test_many_tasks_out_of_reach_do_not_hide_those_within(make_store: Callable[[], Store]) -> None:
    async with site(make_store) as here:
        for number in range(12):
            tags = {"tenant": "acme" if number == 11 else "other"}
            await here.client.start("asks", {"order": "o"}, id=f"r-{number:02}", tags=tags)
        for number in range(12):
            await here.task(run=f"r-{number:02}")
        token = {"authorization": f"Bearer {await make_token(here.client, 'some', 'read:tag=tenant=acme')}"}
        found: list[str] = []
        after = None
        while True:
            params = {"limit": "1", **({"after": after} if after else {})}
            page = (await here.http.get("/tasks", params=params, headers=token)).json()
            found += [one["run_id"] for one in page["tasks"]]
            if (after := page["cursor"]) is None:
                break
        assert found == ["r-11"]


async def test_a_start_is_for_what_the_scopes_say_and_tells_nothing_of_others(make_store: Callable[[], Store]) -> None:
    async with site(make_store) as here:
        await here.start("greet", "theirs", name="a secret")
        by_workflow = {"authorization": f"Bearer {await make_token(here.client, 'w', 'operate:workflow=pays')}"}
        by_tag = {"authorization": f"Bearer {await make_token(here.client, 't', 'operate:tag=tenant=acme')}"}
        acme = {"tenant": "acme"}

        async def start(token: dict[str, str], workflow: str, id: str | None = None, **more: Any) -> tuple[int, str]:
            body = {"workflow": workflow, **({"id": id} if id else {}), **more}
            answer = await here.http.post("/runs", json=body, headers=token)
            assert "a secret" not in answer.text
            return answer.status_code, answer.json().get("code", "")

        order = {"order": "o"}
        own = "workflow=pays/p-1"
        assert await start(by_workflow, "pays", own, input=order) == (201, "")
        assert await start(by_workflow, "greet", input={"name": "x"}) == (403, "forbidden")
        # Whether there is a run with an id that is not one of its own makes no difference.
        assert await start(by_workflow, "pays", "theirs", input=order) == (403, "forbidden")
        assert await start(by_workflow, "pays", "nobody's", input=order) == (403, "forbidden")
        assert await start(by_tag, "greet", input={"name": "x"}) == (403, "forbidden")
        assert await start(by_tag, "greet", input={"name": "x"}, tags={"tenant": "other"}) == (403, "forbidden")
        assert await start(by_tag, "greet", "tag=tenant=acme/t-1", input={"name": "x"}, tags=acme) == (201, "")
        assert await start(by_tag, "pays", own, input=order, tags=acme) == (403, "forbidden")
        # Somebody whose scope is for everything has taken an id of this scope: the same arguments, and others.
        await here.start("greet", "tag=tenant=acme/taken", name="x")
        for name in ("x", "y"):
            taken = await start(by_tag, "greet", "tag=tenant=acme/taken", input={"name": name}, tags=acme)
            assert taken == (409, "run_exists")
        answer = await here.http.post("/runs", json={"workflow": "unknown", "tags": acme}, headers=by_tag)
        assert answer.json()["code"] == "unknown_workflow"
        assert "sleeps" not in answer.text


async def test_a_run_cannot_be_put_out_of_ones_own_reach(make_store: Callable[[], Store]) -> None:
    async with site(make_store) as here:
        token = {"authorization": f"Bearer {await make_token(here.client, 't', 'operate:tag=tenant=acme')}"}
        run = {"workflow": "pays", "id": "p", "input": {"order": "o"}, "tags": {"tenant": "acme"}}
        assert (await here.http.post("/runs", json=run)).status_code == 201
        headers = {**token, "if-match": "*"}
        moved = await here.http.patch("/runs/p", json={"tags": {"tenant": "other"}}, headers=headers)
        assert moved.status_code == 403
        more = {"tags": {"tenant": "acme", "by": "t"}}
        assert (await here.http.patch("/runs/p", json=more, headers=headers)).status_code == 200
        sent = await here.http.post("/runs/p/events", json={"name": "x"}, headers=token)
        assert sent.status_code == 202
        assert (await here.http.get("/events", params={"to": "p"}, headers=token)).status_code == 200
        hidden = await here.http.get("/events", params={"to": "nobody"}, headers=token)
        assert hidden.status_code == 404


async def test_a_tree_has_only_the_children_within_reach(make_store: Callable[[], Store]) -> None:
    async with site(make_store) as here:
        await here.start("family", "f")
        await here.until("f", "succeeded")
        both = await make_token(here.client, "both", ["read:workflow=family", "read:workflow=greet"])
        one = await make_token(here.client, "one", "read:workflow=family")
        for token, children in ((both, 1), (one, 0)):
            tree = await here.http.get("/runs/f/tree", headers={"authorization": f"Bearer {token}"})
            assert len(tree.json()["children"]) == children
