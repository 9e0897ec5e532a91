"""The software bill of materials: what `perdure[all]` consists of in this environment, as CycloneDX 1.6.

Only what users get is in it, not the tools of development. It needs no network: `python -m release.sbom FILE`.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def parts(root: str, extras: frozenset[str]) -> dict[str, tuple[Distribution, set[str]]]:
    """What a package needs, and what that needs, by name: each with the names of what it needs itself."""
    found: dict[str, tuple[Distribution, set[str]]] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(canonicalize_name(root), extras)]
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        here = distribution(name)
        needs = found.setdefault(name, (here, set()))[1]
        for one in _needs(here, wanted):
            other = canonicalize_name(one.name)
            try:
                distribution(other)
            except PackageNotFoundError:
                raise SystemExit(f"{other}, which {name} needs, is not installed; run `make` first") from None
            if other != name:
                needs.add(other)
            waiting.append((other, frozenset(one.extras)))
    return found


def _needs(here: Distribution, extras: frozenset[str]) -> Iterator[Requirement]:
    for text in here.requires or ():
        one = Requirement(text)
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield one


def _purl(here: Distribution) -> str:
    return f"pkg:pypi/{canonicalize_name(here.name)}@{here.version}"


def _component(here: Distribution, kind: str = "library") -> dict[str, Any]:
    told: dict[str, Any] = {
        "type": kind,
        "bom-ref": _purl(here),
        "name": here.name,
        "version": here.version,
        "purl": _purl(here),
    }
    if "License-Expression" in here.metadata:
        told["licenses"] = [{"expression": here.metadata["License-Expression"]}]
    elif "License" in here.metadata and 0 < len(name := here.metadata["License"]) < 100:
        told["licenses"] = [{"license": {"name": name}}]
    return told


def document(root: str = "perdure", extras: frozenset[str] = frozenset({"all"})) -> dict[str, Any]:
    found = parts(root, extras)
    whole = found[canonicalize_name(root)][0]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
            "component": _component(whole, "application"),
        },
        "components": [_component(here) for _, (here, _) in sorted(found.items()) if here is not whole],
        "dependencies": [
            {"ref": _purl(here), "dependsOn": sorted(_purl(found[name][0]) for name in needs)}
            for _, (here, needs) in sorted(found.items())
        ],
    }


def main(arguments: list[str]) -> None:
    made = document()
    text = json.dumps(made, indent=2) + "\n"
    if arguments:
        path = Path(arguments[0])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        print(f"{path}: {len(made['components'])} components")
    else:
        print(text, end="")


if __name__ == "__main__":
    main(sys.argv[1:])
