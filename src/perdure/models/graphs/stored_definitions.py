"""Definitions in the store. Each definition is stored once, by its digest. They are for runs whose code has changed or
is not in this process.

A stored definition is read back without any code, because the results of functions are in the journal. So nothing is
imported. Every process can draw a run, and show where its tokens are and were.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from perdure.errors import InvalidDefinition
from perdure.models.functions.define import Workflow, step
from perdure.models.graphs import texts
from perdure.models.graphs.kinds.base import KINDS, Kind
from perdure.models.graphs.kinds.function import Custom
from perdure.models.graphs.references import imported, remembered_reducer
from perdure.models.graphs.spec import GraphSpec

RECORD_KIND: Final = "graph"
KEY: Final = "perdure.definition"  # the key of the definition in runs that began before outlines had it
_UNKNOWN: Final = "unknown"


class StoredDefinition(Struct, frozen=True, kw_only=True):
    """A graph in the form in which the store keeps it: its definition, and the names of its children by their
    references.
    """

    definition: dict[str, Any]
    children: dict[str, tuple[str, str]] = {}


class DefinitionView(Struct, frozen=True, kw_only=True):
    """The definition that a run was started with.

    `is_current` says whether the graph in this process has the same definition. It is None if this process has no graph
    with that name.
    """

    run_id: str
    workflow: str
    version: str
    digest: str
    is_current: bool | None
    definition: Any


def digest_of(definition: GraphSpec) -> str:
    """Return the digest that identifies a definition."""
    return hashlib.sha256(texts.dump(definition, "json").encode()).hexdigest()[:32]


def stored(definition: GraphSpec, objects: Mapping[str, Any]) -> StoredDefinition:
    """Return a definition in the form in which the store keeps it. `objects` are the objects that the definition refers
    to by name.
    """
    children: dict[str, tuple[str, str]] = {}
    for node in definition.nodes.values():
        reference = getattr(node, "workflow", "")
        found = objects.get(reference) or imported(reference)
        if reference and isinstance(found, Workflow):
            children[reference] = (found.name, found.version)
    return StoredDefinition(definition=json.loads(texts.dump(definition, "json")), children=children)


def readable(kept: StoredDefinition) -> tuple[GraphSpec, dict[str, Kind], dict[str, Any]]:
    """Return a stored definition in a form that can be built without its code. Placeholders replace its objects. Raises
    InvalidDefinition.
    """
    parts = {name: part for name, part in kept.definition.items() if name not in ("input_schema", "output_schema")}
    name = parts.get("graph")
    nodes: Any = parts.get("nodes")
    if not isinstance(nodes, dict):
        raise InvalidDefinition(f"the kept definition of graph {name!r} has no nodes")
    objects: dict[str, Any] = {_UNKNOWN: _anything}
    parts["nodes"] = {key: _node(node, kept.children, objects) for key, node in nodes.items()}
    for edge in parts.get("edges", ()):
        merges = edge.get("merge", ())
        for merge in [merges] if isinstance(merges, dict) else merges:
            if reducer := merge.get("reducer"):
                objects[reducer] = remembered_reducer(reducer) or _all_of_them
    spec, kinds = texts.checked(parts, f"graph {name!r}")
    return spec, kinds, objects


def _node(node: dict[str, Any], children: Mapping[str, tuple[str, str]], objects: dict[str, Any]) -> dict[str, Any]:
    """Return a node that needs no code. This is enough, because a replay calls no function and checks no answer
    again.
    """
    kept = {name: part for name, part in node.items() if name != "retry"}
    if isinstance(kept.get("schema"), str):
        del kept["schema"]
    kind = KINDS.get(str(kept.get("kind")))
    if kind is None or issubclass(kind, Custom):
        common = {name: part for name, part in kept.items() if name in Kind.__struct_fields__}
        return {**common, "kind": "function", "function": _UNKNOWN}
    if "function" in kept:
        objects[kept["function"]] = _anything
    if (child := children.get(kept.get("workflow", ""))) is not None:
        kept["workflow"], kept["version"] = child
    return kept


@step(name="unknown")
async def _anything(**given: Any) -> Any:
    """A placeholder for a function. It is never called, because the function's results are in the journal."""
    raise InvalidDefinition(f"a definition that was read back has no code to call with {given!r:.80}")


def _all_of_them(values: list[Any]) -> Any:
    """A placeholder for the reducer of a graph that was not built in this process."""
    return values


__all__ = ["KEY", "RECORD_KIND", "DefinitionView", "StoredDefinition", "digest_of", "readable", "stored"]
