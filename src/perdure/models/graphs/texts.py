"""Graphs as text: YAML and JSON, read and written by one schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, reduce
from operator import or_
from typing import Any, Literal

import msgspec

from perdure.errors import InvalidDefinition, Misuse
from perdure.models.graphs.kinds.base import KINDS, Kind
from perdure.models.graphs.spec import GraphSpec, Name

Form = Literal["yaml", "json"]


def schema_type() -> Any:
    """The type of a whole definition, with all kinds of node that there are by now."""
    return _schema_type(tuple(KINDS.values()))


@cache
def _schema_type(known: tuple[type[Kind], ...]) -> Any:
    kinds: Any = reduce(or_, known)
    return msgspec.defstruct(
        "Graph",
        [("nodes", dict[Name, kinds])],  # pyright: ignore[reportInvalidTypeForm]
        bases=(GraphSpec,),
        kw_only=True,
        frozen=True,
        forbid_unknown_fields=True,
        omit_defaults=True,
        module=__name__,
    )


def json_schema() -> dict[str, Any]:
    return msgspec.json.schema(schema_type())


def checked(parts: Any, place: str) -> tuple[GraphSpec, dict[str, Kind]]:
    """A definition from JSON's own types. Raises InvalidDefinition, with the path of what does not fit."""
    try:
        spec: GraphSpec = msgspec.convert(parts, schema_type())
    except msgspec.ValidationError as error:
        raise InvalidDefinition(f"{place}: {error}", problems=[f"{place}: {error}"]) from error
    return spec, spec.nodes


def parse(text: str, place: str) -> tuple[GraphSpec, dict[str, Kind]]:
    """A definition from YAML or JSON. Raises InvalidDefinition; Misuse if YAML cannot be read here."""
    parts = _from_json(text, place) if text.lstrip().startswith("{") else _from_yaml(text, place)
    named = parts.get("graph") if isinstance(parts, dict) else None
    return checked(parts, f"graph {named!r}" if isinstance(named, str) else place)


def dump(spec: GraphSpec, form: Form) -> str:
    parts = msgspec.to_builtins(spec)
    if form == "json":
        return json.dumps(parts, indent=2, ensure_ascii=False) + "\n"
    text: str = _yaml("this graph").safe_dump(parts, sort_keys=False, allow_unicode=True, width=120)
    return text


def _from_json(text: str, place: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidDefinition(f"{place}: {twice!r} is there twice in one object")
        return found

    try:
        return json.loads(text, object_pairs_hook=once)
    except ValueError as error:
        raise InvalidDefinition(f"{place}: this is not JSON: {error}") from error


def _from_yaml(text: str, place: str) -> Any:
    yaml = _yaml(place)

    class Loader(yaml.SafeLoader):  # type: ignore[misc,name-defined]
        """Refuses what is there twice, where YAML's usual readers keep the last."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Mapping[Any, Any]:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            for number, key in enumerate(keys):
                if key in keys[:number]:
                    line = node.value[number][0].start_mark.line + 1
                    raise InvalidDefinition(f"{place}: {key!r} is there twice, in line {line} again")
            found: Mapping[Any, Any] = super().construct_mapping(node, deep)
            return found

    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise InvalidDefinition(f"{place}: this is not YAML: {error}") from error


def _yaml(place: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise Misuse(f"{place}: YAML needs PyYAML; install perdure[graphs], or use JSON") from error
    return yaml
