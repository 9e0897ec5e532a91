"""What is shipped is listed whole, and an audit that found nothing out does not pass for a good one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from release.audit import Finding, ask, ended, judge
from release.sbom import document, parts

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def floors(extra: str) -> dict[str, Version]:
    """The lowest version that `pip install perdure[extra]` may install, of each package that pyproject.toml names."""
    found: dict[str, Version] = {}
    for one in map(Requirement, [*PROJECT["dependencies"], *EXTRAS[extra]]):
        for name, floor in [floor for other in one.extras for floor in floors(other).items()]:
            found[name] = max(floor, found.get(name, Version("0")))
        for clause in one.specifier:
            assert clause.operator == ">=", one
            found[one.name.lower()] = max(Version(clause.version), found.get(one.name.lower(), Version("0")))
    return found


def holes() -> list[tuple[str, str, str]]:
    """Package, the version that closes it, and the hole, from the table in the docs."""
    text = (ROOT / "docs" / "security.md").read_text()
    return re.findall(r"^\| `([a-z0-9-]+)` \| ([0-9.]+) \| (CVE-[^|]+?) \|", text, re.MULTILINE)


@pytest.mark.parametrize("extra", [name for name in EXTRAS if name != "dev"])
def test_the_floors_of_each_extra_leave_out_every_hole_that_the_docs_name(extra: str) -> None:
    """Also of packages that others bring along: whoever installs one extra has no floor of another."""
    installed, least = parts("perdure", frozenset({extra})), floors(extra)
    low = [
        (package, version)
        for package, version, _ in holes()
        if package in installed and least.get(package, Version("0")) < Version(version)
    ]
    assert low == []


def test_the_docs_name_holes_of_packages_that_users_get() -> None:
    installed = parts("perdure", frozenset({"all"}))
    assert len(holes()) > 15
    assert [package for package, _, _ in holes() if package not in installed] == []
    assert [package for package, _, _ in holes() if package not in floors("all")] == []


def test_the_bill_of_materials_has_all_that_users_get_and_no_tool() -> None:
    made = document()
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    names = {one["name"].lower() for one in made["components"]}
    assert {"msgspec", "asyncpg", "litestar", "jinja2", "httpx", "h11", "typer", "mcp"} <= names
    assert not {"pytest", "mypy", "ruff", "hypothesis", "playwright", "perdure"} & names
    [h11] = [one for one in made["components"] if one["name"] == "h11"]
    assert h11["purl"] == f"pkg:pypi/h11@{version('h11')}"
    refs = {one["bom-ref"] for one in (made["metadata"]["component"], *made["components"])}
    told = {one["ref"]: one["dependsOn"] for one in made["dependencies"]}
    assert set(told) == refs
    assert {needed for needs in told.values() for needed in needs} <= refs
    assert h11["bom-ref"] in told[f"pkg:pypi/uvicorn@{version('uvicorn')}"]


CLEAN: dict[str, Any] = {"name": "h11", "version": "0.16.0", "vulns": []}
HOLED: dict[str, Any] = {"name": "h11", "version": "0.14.0", "vulns": [{"id": "CVE-1", "fix_versions": ["0.16.0"]}]}
SKIPPED: dict[str, Any] = {"name": "idna", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("told", "code", "says"),
    [
        ([CLEAN], 0, "none with a known hole"),
        ([HOLED], 1, "h11 0.14.0: CVE-1, fixed in 0.16.0"),
        ([], 3, "NOT AUDITED: 1 of 1 were not looked up: h11"),
        ([CLEAN, SKIPPED], 3, "NOT AUDITED: 1 of 2 were not looked up: idna"),
        ([HOLED, SKIPPED], 1, "not looked up: idna"),
    ],
)
def test_what_was_not_looked_up_is_not_taken_for_good(told: list[dict[str, Any]], code: int, says: str) -> None:
    wanted = {"h11", *(one["name"] for one in told)}
    finding = judge(wanted, {"dependencies": told})
    assert finding.code == code
    assert any(says in line for line in finding.lines), finding


def test_without_an_answer_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pip-audit, or one without a network: whichever this machine has, the answer is never "none"."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    finding = ask({"h11": "0.14.0"})
    assert isinstance(finding, Finding)
    assert finding.code == 3
    assert "NOT AUDITED" in finding.lines[0]


@pytest.mark.parametrize(("arguments", "code"), [([], 3), (["--offline"], 0)])
def test_whoever_goes_on_without_an_audit_is_told_so(arguments: list[str], code: int) -> None:
    nowhere = {**os.environ, "HTTPS_PROXY": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1"}
    command = [sys.executable, "-m", "release.audit", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=nowhere, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stdout.startswith("NOT AUDITED")
    assert ("GOING ON WITHOUT AN AUDIT" in done.stdout) is bool(arguments)


def test_being_offline_hides_no_hole_that_was_found() -> None:
    finding = judge({"h11", "idna"}, {"dependencies": [HOLED, SKIPPED]})
    assert ended(finding, is_offline=True) == (1, finding.lines)
    clean = judge({"h11"}, {"dependencies": [CLEAN]})
    assert ended(clean, is_offline=True) == (0, clean.lines)
