"""Graphs as text: YAML and JSON, read and written with one schema."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import cache, reduce
from math import isfinite
from operator import or_
from typing import Any, Final, Literal

import msgspec

from perdure.errors import InvalidDefinition, Misuse
from perdure.models.graphs.kinds.base import KINDS, Kind
from perdure.models.graphs.places import Lines, Path, invalid, place_of, wrong_parts
from perdure.models.graphs.spec import EdgeSpec, GraphSpec, Name

Form = Literal["yaml", "json"]
# Matches an unknown field of a node or an edge. The place of a field inside such a field has a dot or a bracket, and
# does not match.
_MISNAMED: Final = re.compile(r", (?:node '(?P<node>\w+)'|edge [^,]*), (\w+): Object contains unknown field `\2`")
CHARS_MAX: Final = 1_000_000
PARTS_MAX: Final = 100_000
DEPTH_MAX: Final = 100
_INT_BITS_MAX: Final = 13_288  # 4,000 digits; Python refuses to write numbers from 4,300 digits on
_HALF: Final = re.compile("[\ud800-\udfff]")
_DATE_TAG: Final = "tag:yaml.org,2002:timestamp"
_TEXT_TAG: Final = "tag:yaml.org,2002:str"
_NUMBER_TAGS: Final = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})


def schema_type() -> Any:
    """Return the type of a whole definition, with all kinds of node that are registered now."""
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
    """Return the definition that is given in JSON's own types. Raises InvalidDefinition, with the place of every
    problem.
    """
    return _checked(parts, place, None)


def _checked(parts: Any, place: str, lines: Lines | None) -> tuple[GraphSpec, dict[str, Kind]]:
    _check_depth(parts, place)
    if unstorable := list(_unstorable(parts, ())):
        raise invalid([f"{place}, {place_of(path, parts)}: {why}" for path, why in unstorable], lines)
    wanted = schema_type()
    try:
        spec: GraphSpec = msgspec.convert(parts, wanted)
    except msgspec.ValidationError as error:
        found = wrong_parts(parts, lambda part: msgspec.convert(part, wanted), place)
        raise invalid([_with_choice(one, parts) for one in found] or [f"{place}: {error}"], lines) from error
    return spec, spec.nodes


def _check_depth(parts: Any, place: str) -> None:
    """Check that the nesting of the definition is not too deep for recursive code. Raises InvalidDefinition."""
    layer, depth = [parts], 0
    while layer:
        layer = [
            inner
            for part in layer
            if isinstance(part, dict | list)
            for inner in (part.values() if isinstance(part, dict) else part)
        ]
        depth += 1
        if depth > DEPTH_MAX:
            raise InvalidDefinition(f"{place}: it nests deeper than {DEPTH_MAX}")


def _unstorable(part: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the keys, texts and numbers that have no JSON form. They are refused, because stores keep a run's
    definition as JSON.
    """
    if isinstance(part, dict):
        for key, inner in part.items():
            if isinstance(key, str):
                yield from _unstorable(key, path)
                yield from _unstorable(inner, (*path, key))
            else:  # YAML reads the keys `on`, `yes` and `no` as true or false.
                yield path, f"the key {key!r:.80} is no text: quote it"
    elif isinstance(part, list):
        for number, inner in enumerate(part):
            yield from _unstorable(inner, (*path, number))
    elif isinstance(part, str) and _HALF.search(part) is not None:
        yield path, f"{part!r:.80} has half a character (a surrogate)"
    elif isinstance(part, float) and not isfinite(part):
        yield path, f"JSON has no {part}"
    elif isinstance(part, int) and part.bit_length() > _INT_BITS_MAX:
        yield path, "the number has more than 4,000 digits"


def _with_choice(problem: str, parts: Any) -> str:
    """Return a problem. If it is an unknown kind or field, add the known kinds or fields to it."""
    if ", kind: Invalid value " in problem:
        return f"{problem}; kinds are {', '.join(sorted(KINDS))}"
    if (misnamed := _MISNAMED.search(problem)) is None:
        return problem
    if misnamed["node"] is None:
        return f"{problem}; an edge has {', '.join(EdgeSpec.__struct_encode_fields__)}"
    kind = KINDS[parts["nodes"][misnamed["node"]]["kind"]]
    own = [name for name in kind.__struct_encode_fields__ if name not in Kind.__struct_encode_fields__]
    return f"{problem}; a node of this kind has {', '.join([*own, *Kind.__struct_encode_fields__])}"


def parse(text: str, place: str) -> tuple[GraphSpec, dict[str, Kind], Lines | None]:
    """Return a definition from YAML or JSON, and for YAML the lines of its parts. Raises InvalidDefinition. Raises
    Misuse if PyYAML is not installed.
    """
    if len(text) > CHARS_MAX:
        raise InvalidDefinition(f"{place}: it has {len(text):,} characters, and a definition has at most {CHARS_MAX:,}")
    if text.lstrip().startswith("{"):
        parts = _from_json(text, place)
        return *_checked(parts, _named(parts, place), None), None
    parts, by_path, dates = _from_yaml(text, place)
    place = _named(parts, place)
    lines = Lines(place, parts, by_path)
    if dates:
        raise invalid([_unquoted(place, parts, path, value) for path, value in dates], lines)
    return *_checked(parts, place, lines), lines


def _named(parts: Any, place: str) -> str:
    named = parts.get("graph") if isinstance(parts, dict) else None
    return f"graph {named!r}" if isinstance(named, str) else place


def _unquoted(place: str, parts: Any, path: Path, value: str) -> str:
    """Return the problem for a date or a time without quotes, because YAML does not read it as a text."""
    where = place_of(path, parts)
    quoted = f"\"'{value}'\" where expressions go, and '{value}' elsewhere"
    return f"{place}, {where}: {value} is a date in YAML, and no text: quote it, as {quoted}"


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
            seen: set[str] = set()
            twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            raise InvalidDefinition(f"{place}: {twice!r} is there twice in one object")
        return found

    try:
        return json.loads(text, object_pairs_hook=once)
    except ValueError as error:
        raise InvalidDefinition(f"{place}: this is not JSON: {error}") from error
    except RecursionError:
        raise InvalidDefinition(f"{place}: it nests deeper than {DEPTH_MAX}") from None


def _from_yaml(text: str, place: str) -> tuple[Any, dict[Path, int], list[tuple[Path, str]]]:
    """Return the content of a YAML text, the lines of its parts, and the dates in it."""
    yaml = _yaml(place)
    try:
        loader = _loader(yaml, place)(text)
        try:
            node = loader.get_single_node()
            lines: dict[Path, int] = {}
            dates: list[tuple[Path, str]] = []
            if node is not None:
                _go_through(node, (), lines, dates)
            return None if node is None else loader.construct_document(node), lines, dates
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError) as error:  # an invalid date, or a number with too many digits
        raise InvalidDefinition(f"{place}: this is not YAML: {error}") from error


def _loader(yaml: Any, place: str) -> Any:
    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """A YAML loader that refuses duplicate keys. YAML's usual loaders keep the last of them. It also refuses texts
        whose nesting is too deep, or that would be too large with all aliases written out. `1:30` is a text, as in YAML
        1.2, and not a number in base 60. The time for reading a number in base 60 grows with the square of its digits.
        """

        def __init__(self, text: str) -> None:
            super().__init__(text)
            self._depth = 0
            # the size of each node with its contents; repeated contents count repeatedly
            self._sizes: dict[Any, int] = {}

        def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
            tag = super().resolve(kind, value, implicit)
            return _TEXT_TAG if tag in _NUMBER_TAGS and ":" in value else tag

        def compose_node(self, parent: Any, index: Any) -> Any:
            line = self.peek_event().start_mark.line + 1
            self._depth += 1
            if self._depth > DEPTH_MAX:
                raise InvalidDefinition(f"{place}: it nests deeper than {DEPTH_MAX} (line {line})")
            is_alias = self.check_event(yaml.AliasEvent)
            node = super().compose_node(parent, index)
            self._depth -= 1
            if node.tag in _NUMBER_TAGS and ":" in node.value:
                raise InvalidDefinition(f"{place}: {node.value!r:.80} is no number (line {line})")
            if not is_alias:
                self._sizes[node] = 1 + sum(map(self._size, _parts_of(node)))
            elif node not in self._sizes:
                raise InvalidDefinition(f"{place}: an alias stands for something that it is in itself (line {line})")
            if self._sizes[node] > PARTS_MAX:
                raise InvalidDefinition(
                    f"{place}: with its aliases written out it has more than {PARTS_MAX:,} parts (line {line})"
                )
            return node

        def _size(self, node: Any) -> int:
            return self._sizes.get(node, 1)

        def construct_mapping(self, node: Any, deep: bool = False) -> Mapping[Any, Any]:
            seen: set[Any] = set()
            for key_node, _ in node.value:
                key = self.construct_object(key_node, deep=True)
                if not isinstance(key, Hashable):
                    continue  # The key is refused below.
                if key in seen:
                    line = key_node.start_mark.line + 1
                    raise InvalidDefinition(f"{place}: {key!r:.80} is there twice, in line {line} again")
                seen.add(key)
            found: Mapping[Any, Any] = super().construct_mapping(node, deep)
            return found

    return Loader


def _parts_of(node: Any) -> Iterable[Any]:
    if node.id == "mapping":
        return (part for pair in node.value for part in pair)
    return node.value if node.id == "sequence" else ()


def _go_through(node: Any, path: Path, lines: dict[Path, int], dates: list[tuple[Path, str]]) -> None:
    """Note the line of each part of a text, and the values that YAML reads as dates."""
    if path in lines:
        return
    lines[path] = node.start_mark.line + 1
    if node.id == "mapping":
        for key, value in node.value:
            inner = (*path, str(key.value))
            _go_through(value, inner, lines, dates)
            lines[inner] = key.start_mark.line + 1
    elif node.id == "sequence":
        for number, value in enumerate(node.value):
            _go_through(value, (*path, number), lines, dates)
    elif node.tag == _DATE_TAG:
        dates.append((path, node.value))


def _yaml(place: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise Misuse(f"{place}: YAML needs PyYAML; install perdure[graphs], or use JSON") from error
    return yaml
