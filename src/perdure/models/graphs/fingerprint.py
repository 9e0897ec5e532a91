"""The canonical form of a definition. The fingerprint is computed from it.

Python, YAML and JSON can express the same definition in several ways: with or without a default, with one source or a
list of sources, with or without the fork of a join. All these ways have the same canonical form. Runs keep the outline
of their definition. It leaves out the parts that may change without an effect on the run: descriptions, limits, and
retry policies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import NODEFAULT, Struct

from perdure.models.functions.definition_outlines import Outline
from perdure.models.graphs.plan import Plan
from perdure.models.graphs.rules_versions import RULES
from perdure.models.graphs.spec import GraphLimits, GraphSpec, MergeSpec
from perdure.models.graphs.validate import ways_of

_REFERENCES: Final = ("function", "workflow", "schema", "reducer")
_CHANGEABLE: Final = ("description", "retry")


def outline_of(spec: GraphSpec, plan: Plan, reference: Callable[[str], str], digest: str) -> Outline:
    """Return the outline of a definition. The store keeps the definition under `digest`. `reference` is a function that
    returns the usual name of an object that the definition refers to.
    """
    parts = _canonical(spec, plan, reference)
    hashes: dict[str, list[str]] = {}
    for name, part in parts:
        hashes.setdefault(name, []).append(_hash(part)[:8])
    names = {name: "".join(found) for name, found in hashes.items()}
    return Outline(fingerprint=_hash(parts)[:16], rules=RULES, parts=names, digest=digest)


def fingerprint_of(spec: GraphSpec, outline: Outline) -> str:
    """Return the fingerprint of a definition. It covers everything except descriptions."""
    retries = {name: _plain(kind.retry) for name, kind in spec.nodes.items() if kind.retry is not None}
    return _hash([outline.fingerprint, retries, _plain(spec.limits or GraphLimits())])[:16]


def _canonical(spec: GraphSpec, plan: Plan, reference: Callable[[str], str]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = [("start", plan.start)]
    for name, schema in (("input_schema", spec.input_schema), ("output_schema", spec.output_schema)):
        found += [] if schema is None else [(name, reference(schema) if isinstance(schema, str) else schema)]
    found += [(f"node {name!r}", _node(spec.nodes[name], reference)) for name in sorted(spec.nodes)]
    found += _edges(spec, plan, reference)
    found += [("exclusive", {"nodes": sorted(part.nodes), "keep": part.keep}) for part in spec.exclusive]
    found += [("output", spec.output)] if spec.output is not None else []
    found += [("timeout", spec.timeout)] if spec.timeout is not None else []
    return found


def _node(kind: Any, reference: Callable[[str], str]) -> dict[str, Any]:
    return _named({name: value for name, value in _plain(kind).items() if name not in _CHANGEABLE}, reference)


def _edges(spec: GraphSpec, plan: Plan, reference: Callable[[str], str]) -> list[tuple[str, Any]]:
    joins = {
        edge.number: edge.join
        for node in plan.nodes.values()
        for tiers in (node.onward, node.on_failure)
        for tier in tiers
        for edge in tier
    }
    found: list[tuple[str, Any]] = []
    for way in ways_of(spec):
        edge = _plain(way.spec) | {"from": way.source}
        join = joins.get(way.number)
        if join is not None:
            edge["join"] = _plain(way.spec.join) | {"fork": join.fork}
        if way.spec.merges:
            edge["merge"] = [_merge(merge, reference) for merge in way.spec.merges]
        if way.spec.cancel:
            edge["cancel"] = sorted(set(way.spec.cancel))
        found.append((f"edge {way.source} -> {way.target}", edge))
    return found


def _merge(merge: MergeSpec, reference: Callable[[str], str]) -> dict[str, Any]:
    return _named(_plain(merge), reference)


def _named(parts: Mapping[str, Any], reference: Callable[[str], str]) -> dict[str, Any]:
    return {
        name: reference(value) if name in _REFERENCES and isinstance(value, str) else value
        for name, value in parts.items()
    }


def _plain(part: Any) -> Any:
    """Return a part of a definition in JSON's own types, without defaults. (msgspec omits a default only if it is the
    identical object.)
    """
    if isinstance(part, Struct):
        config = part.__struct_config__
        found: dict[str, Any] = {} if config.tag_field is None else {config.tag_field: config.tag}
        for field in msgspec.structs.fields(part):
            value = getattr(part, field.name)
            factory = field.default_factory
            default = field.default if factory is NODEFAULT else factory()
            if value != default:
                found[field.encode_name] = _plain(value)
        return found
    if isinstance(part, Mapping):
        return {key: _plain(value) for key, value in part.items()}
    return [_plain(value) for value in part] if isinstance(part, list | tuple) else part


def _hash(part: Any) -> str:
    return hashlib.sha256(json.dumps(part, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


__all__ = ["fingerprint_of", "outline_of"]
