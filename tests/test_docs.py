"""What the docs repeat from the code is the same as in the code, and what they link to is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from perdure import Client, Engine, RunHandle
from perdure.cooperation import RootHandle
from perdure.kernel.status import Status, diagram

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
GUIDES = [page for page in PAGES if page.parent != DOCS / "decisions"]  # records may name what was replaced


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def first_cells(page: Path) -> set[str]:
    return set(re.findall(r"^\| `(\w+)` \|", page.read_text(), re.MULTILINE))


def test_the_diagram_of_statuses_is_the_table_of_the_kernel() -> None:
    drawn = re.findall(r"^```mermaid\n(.*?)\n```$", (DOCS / "statuses.md").read_text(), re.DOTALL | re.MULTILINE)
    assert drawn == [diagram()], "put the output of perdure.kernel.status.diagram() into docs/statuses.md"


@pytest.mark.parametrize("name", ["statuses.md", "glossary.md"])
def test_every_status_is_explained(name: str) -> None:
    assert first_cells(DOCS / name) == set(Status)


def test_every_decision_is_in_the_index() -> None:
    folder = DOCS / "decisions"
    index = (folder / "README.md").read_text()
    records = [path.name for path in folder.glob("*.md") if path.name != "README.md"]
    assert all(re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", name) for name in records), records
    assert [name for name in records if f"({name})" not in index] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
        target, _, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_of_pages_is_python(page: Path) -> None:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
    for code in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        compile(code.replace("…", "..."), str(page), "exec", flags)


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: str(page.relative_to(ROOT)))
def test_methods_that_pages_call_exist(page: Path) -> None:
    known = {"engine": Engine("memory://"), "client": Client("memory://"), "run": RunHandle, "root": RootHandle}
    missing = []
    for name, path in re.findall(r"\b(engine|client|run|root)\.([a-z_]+(?:\.[a-z_]+)?)(?=\()", page.read_text()):
        found: Any = known[name]
        for part in path.split("."):
            found = getattr(found, part, None)
        if found is None:
            missing.append(f"{name}.{path}")
    assert not missing


def files_of_topics() -> list[str]:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| topic | file |")[2].partition("\n\n")[0]
    return re.findall(r"`([^`]+)`", table)


def test_every_topic_names_a_file() -> None:
    lost = [name for name in files_of_topics() if not (ROOT / "src" / "perdure" / name).is_file()]
    assert files_of_topics()
    assert not lost, "CONTRIBUTING.md, 'Where things are', names files that do not exist"
