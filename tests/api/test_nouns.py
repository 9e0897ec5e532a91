"""One list of nouns, in one order, for all faces: facets, command line, HTTP API, dashboard, docs.

And one table of what a facet can do: where the command line and the HTTP API have it, or why they do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import RunHandle
from perdure.api.root_handle import RootHandle
from perdure.cli import app as cli
from perdure.dashboard.pages import PAGES
from perdure.http import create_app
from perdure.http.routes import MONITORED, ROUTERS
from tests.api.surface import facets, methods

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "perdure"
DOCS = ROOT / "docs"

NOUNS = (
    "runs",
    "tasks",
    "artifacts",
    "records",
    "events",
    "dead letters",
    "topics",
    "engines",
    "definitions",
    "audit",
    "tokens",
)
# The facet of tokens keeps the sessions of the dashboard too.
FACET_NOUNS = {"credentials": "tokens"}
# What watches a server, and what a developer does with a file.
MONITORING = ("health", "metrics")
TOOLS = ("graph",)


def in_order(found: Iterable[str]) -> list[str]:
    """Return the nouns that were found, in the order of the list. Fails for one that is not in it."""
    names = list(found)
    assert set(names) <= set(NOUNS), set(names) - set(NOUNS)
    return [noun for noun in NOUNS if noun in names]


def is_about_a_noun(module: str) -> bool:
    """Whether a module is named after a noun (runs), one of its things (run), or a part of one (run_details)."""
    nouns = {noun.replace(" ", "_") for noun in NOUNS}
    things = {noun.removesuffix("s") for noun in nouns}
    return module in nouns | things or any(module.startswith(f"{thing}_") for thing in things)


def modules(folder: str) -> set[str]:
    return {path.stem for path in (SRC / folder).glob("*.py")} - {"__init__"}


def groups() -> dict[str, Any]:
    """Return the groups of the command line, in their order."""
    command: Any = cli.command()
    return {name: found for name, found in command.commands.items() if hasattr(found, "commands")}


def routes() -> Iterator[tuple[str, str, str]]:
    """Return the method, the path and the tag of each route below the API's own path."""
    for path, found in create_app("memory://").document["paths"].items():
        for method, route in found.items():
            (tag,) = route["tags"]
            if path.startswith("/api/v1"):
                yield method.upper(), path.removeprefix("/api/v1"), tag


# ---------------------------------------------------------------------------------------------------------------------
# The nouns


def test_facets_are_nouns_in_order() -> None:
    found = [FACET_NOUNS.get(name, name.replace("_", " ")) for name in facets()]
    assert found == in_order(found)
    assert set(NOUNS) - set(found) == {"definitions"}, "which are what engines say that they have"


def test_groups_of_the_command_line_are_nouns_in_order() -> None:
    assert [name.replace("-", " ") for name in groups()] == [*NOUNS, *TOOLS]


def test_each_group_of_the_command_line_has_a_module_of_its_name() -> None:
    found = [module.__name__.rpartition(".")[2].replace("_", " ") for module in cli.NOUNS]
    assert found == [*NOUNS, "graphs"]


def test_tags_of_the_http_api_are_nouns_in_order() -> None:
    document = create_app("memory://").document
    assert [tag["name"] for tag in document["tags"]] == [*NOUNS, *MONITORING]
    tags = [tag for router in ROUTERS for tag in router.tags or ()]
    assert list(dict.fromkeys(tags)) == list(NOUNS), "the routes stand in the same order"
    assert [tag for router in MONITORED for tag in router.tags or ()] == list(MONITORING)


def test_each_module_of_routes_is_about_a_noun() -> None:
    assert {name for name in modules("http/routes") if not is_about_a_noun(name)} == set(MONITORING)


def test_each_route_begins_with_its_noun() -> None:
    for method, path, tag in routes():
        first = re.split(r"[/:]", path)[1].replace("-", " ")
        # What is sent to a run, or asked of one, stands below the run. A root is a handle that topics give.
        assert first == tag or first == "runs" or (first, tag) == ("roots", "topics"), f"{method} {path}: {tag}"


def test_pages_of_the_dashboard_are_nouns_in_order() -> None:
    first, *titles = [page.title.lower() for page in PAGES if page.title]
    assert first == "overview"
    assert titles == in_order(titles)
    assert set(NOUNS) - set(titles) == {"audit", "tokens"}, "which only administrators need"


def test_each_module_of_pages_is_about_a_noun() -> None:
    apart = {"overview", "sign_in", "many_runs", "handlers"}  # handlers are those of topics
    assert {name for name in modules("dashboard/pages") if not is_about_a_noun(name)} == apart


def test_the_index_of_the_docs_has_the_nouns_in_order() -> None:
    text = (DOCS / "README.md").read_text().partition("## By noun")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([a-z ]+) \| ", text, re.MULTILINE)
    assert rows == ["noun", *NOUNS]
    linked = set(re.findall(r"\]\(([a-z]+\.md)", (DOCS / "README.md").read_text()))
    assert {page.name for page in DOCS.glob("*.md")} - linked == {"README.md"}


@pytest.mark.parametrize(
    ("page", "heading", "row"),
    [
        ("cli.md", "## Verbs", r"^\| `([a-z-]+) "),
        ("http.md", "## Routes", r"^\| `[A-Z]+ /([a-z-]+)"),
        ("dashboard.md", "# The dashboard", r"^\| ([A-Z][a-z ]+) \|"),
    ],
)
def test_pages_of_the_docs_have_the_nouns_in_order(page: str, heading: str, row: str) -> None:
    text = (DOCS / page).read_text().partition(f"{heading}\n")[2].partition("\n## ")[0]
    found = [name.replace("-", " ").lower() for name in re.findall(row, text, re.MULTILINE)]
    nouns = [noun for noun in dict.fromkeys(found) if noun in NOUNS]
    assert len(nouns) >= len(NOUNS) - 2
    assert nouns == in_order(nouns)


# ---------------------------------------------------------------------------------------------------------------------
# What can be done with each, and where. A text in brackets says why there is nothing.

PYTHON_ONLY = "(values of Python)"
IN_PROCESS = "(of this process: GET /metrics)"
BY_PAGE = "(of the dashboard)"
BY_ENGINE = "(engines do it)"

# Method: command, route.
FACETS: dict[str, dict[str, tuple[str, str]]] = {
    "runs": {
        "get": ("runs show", "GET /runs/{run_id}"),
        "get_many": ("(runs show, for each)", "GET /runs:get-many"),
        "list": ("runs list", "GET /runs"),
        "count": ("runs count", "GET /runs:count"),
        "tally": (BY_PAGE, BY_PAGE),
        "timers": (BY_PAGE, BY_PAGE),
        "cancel": ("runs cancel", "POST /runs:cancel"),
        "pause": ("runs pause", "POST /runs:pause"),
        "resume": ("runs resume", "POST /runs:resume"),
        "retry": ("runs retry", "POST /runs:retry"),
    },
    "tasks": {
        "list": ("tasks list", "GET /tasks"),
        "get": ("tasks show", "GET /tasks/{task_id}"),
        "answer": ("tasks answer", "POST /tasks/{task_id}/answer"),
        "claim": ("tasks claim", "POST /tasks:claim"),
        "heartbeat": ("tasks heartbeat", "POST /tasks/{task_id}/heartbeat"),
        "release": ("tasks release", "POST /tasks/{task_id}/release"),
        "fail": ("tasks fail", "POST /tasks/{task_id}/fail"),
    },
    "artifacts": {
        "list": ("artifacts list", "GET /artifacts"),
        "get": ("artifacts show", "GET /artifacts/{artifact_id}"),
        "read": ("artifacts save", "GET /artifacts/{artifact_id}/content"),
        "open": ("artifacts save", "GET /artifacts/{artifact_id}/content"),
    },
    "records": {
        "list": ("records list", "GET /records/{kind}"),
        "get": ("records show", "GET /records/{kind}/{name}"),
        "put": ("records put", "PUT /records/{kind}/{name}"),
    },
    "events": {
        "pending": ("events list", "GET /events"),
        "purge": ("events purge", "POST /events:purge"),
    },
    "dead_letters": {
        "list": ("dead-letters list", "GET /dead-letters"),
        "get": ("dead-letters show", "GET /dead-letters/{letter_id}"),
        "replay": ("dead-letters replay", "POST /dead-letters/{letter_id}/replay"),
        "remove": ("dead-letters remove", "DELETE /dead-letters/{letter_id}"),
    },
    "topics": {
        "handlers": ("topics list", "GET /topics"),
        "register": ("topics register", "POST /topics/{topic}/handlers"),
        "retire": ("topics retire", "POST /topics/{topic}/handlers/{name}/retire"),
        "message": ("topics message", "GET /runs/{run_id}/message"),
        "complete": ("topics complete", "POST /runs/{run_id}/complete"),
        "fail": ("topics fail", "POST /runs/{run_id}/fail"),
        "complete_rollback": ("topics complete-rollback", "POST /runs/{run_id}/complete-rollback"),
        "root": ("topics hierarchy", "GET /roots/{root_id}"),
        "cancel_token": ("topics cancel-token", "POST /topics:cancel-token"),
    },
    "engines": {
        "list": ("engines list", "GET /engines"),
        "overdue": ("engines overdue", "GET /engines:overdue"),
        "mark_dead": (BY_ENGINE, BY_ENGINE),
        "stats": (IN_PROCESS, IN_PROCESS),
    },
    "audit": {"export": ("audit export", "GET /audit")},
}
HANDLES: dict[type[Any], dict[str, tuple[str, str]]] = {
    RunHandle: {
        "result": ("start", "GET /runs/{run_id}"),
        "status": ("runs show", "GET /runs/{run_id}"),
        "view": ("runs show", "GET /runs/{run_id}"),
        "history": ("runs history", "GET /runs/{run_id}/history"),
        "audit": ("runs audit", "GET /runs/{run_id}/audit"),
        "tree": ("runs tree", "GET /runs/{run_id}/tree"),
        "hierarchy": ("topics hierarchy", "GET /roots/{root_id}"),
        "waits": ("runs waits", "GET /runs/{run_id}/waits"),
        "tokens": ("runs tokens", "GET /runs/{run_id}/tokens"),
        "drawing": ("runs drawing", "GET /runs/{run_id}/drawing"),
        "graph_events": ("runs graph-events", "GET /runs/{run_id}/graph-events"),
        "definition": ("runs definition", "GET /runs/{run_id}/definition"),
        "published": ("runs published", "GET /runs/{run_id}/published"),
        "stream": ("runs stream", "GET /runs/{run_id}/streams/{name}"),
        "streams": ("runs streams", "GET /runs/{run_id}/streams"),
        "send": ("send", "POST /runs/{run_id}/events"),
        "cancel": ("runs cancel", "POST /runs/{run_id}/cancel"),
        "pause": ("runs pause", "POST /runs/{run_id}/pause"),
        "resume": ("runs resume", "POST /runs/{run_id}/resume"),
        "retry": ("runs retry", "POST /runs/{run_id}/retry"),
        "update": ("runs update", "PATCH /runs/{run_id}"),
        "roll_back": ("topics roll-back", "POST /roots/{root_id}/roll-back"),
    },
    RootHandle: {
        "finished": ("emit", "GET /roots/{root_id}"),
        "returned": (PYTHON_ONLY, PYTHON_ONLY),
        "tree": ("runs tree", "GET /runs/{run_id}/tree"),
        "hierarchy": ("topics hierarchy", "GET /roots/{root_id}"),
        "cancel": ("topics cancel", "POST /roots/{root_id}/cancel"),
        "roll_back": ("topics roll-back", "POST /roots/{root_id}/roll-back"),
    },
}


def commands() -> set[str]:
    command: Any = cli.command()
    alone = {name for name, found in command.commands.items() if not hasattr(found, "commands")}
    return alone | {f"{name} {below}" for name, group in groups().items() for below in group.commands}


def check(has: dict[str, Any], table: dict[str, tuple[str, str]]) -> None:
    assert set(has) == set(table), "say where the command line and the HTTP API have it, or why they do not"
    known = commands() | {f"{method} {path}" for method, path, _ in routes()}
    missing = {place for places in table.values() for place in places if not place.startswith("(")} - known
    assert not missing


@pytest.mark.parametrize("name", FACETS)
def test_what_a_facet_can_do_all_faces_can(name: str) -> None:
    check(methods(facets()[name]), FACETS[name])


@pytest.mark.parametrize("kind", HANDLES, ids=lambda kind: kind.__name__)
def test_what_a_handle_can_do_all_faces_can(kind: type[Any]) -> None:
    check(methods(kind), HANDLES[kind])


def test_no_facet_is_left_out() -> None:
    assert set(facets()) - set(FACETS) == {"credentials"}, "its verbs are those of perdure.http: make_token and others"
