"""The named queries of queries.sql."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from perdure.errors import InvariantViolated

_FRAGMENT = re.compile(r"\{(\w+)\}")
_VARIABLE = re.compile(r"(?<!:):(\w+)")


class Query(Struct, frozen=True):
    """A statement with numbered parameters, and the parameter names that the file uses."""

    sql: str
    names: tuple[str, ...]
    text: str  # the text in the file

    def arguments(self, variables: Mapping[str, Any]) -> list[Any]:
        return [variables[name] for name in self.names]


def load_queries(text: str) -> Mapping[str, Query]:
    """Return queries by name. Comments are removed, and fragments are filled in. A fragment must come before its first
    use.
    """
    texts: dict[str, str] = {}
    for block in text.split("-- name:")[1:]:
        name, _, body = block.partition("\n")
        lines = (line for line in body.splitlines() if not line.startswith("--"))
        if name.strip() in texts:
            raise InvariantViolated(f"two queries are named {name.strip()!r}")
        texts[name.strip()] = _FRAGMENT.sub(lambda match: texts[match[1]], "\n".join(lines).strip())
    return {name: to_query(sql) for name, sql in texts.items()}


def to_query(sql: str) -> Query:
    names = list(dict.fromkeys(_VARIABLE.findall(sql)))
    return Query(_VARIABLE.sub(lambda match: f"${names.index(match[1]) + 1}", sql), tuple(names), sql)


QUERIES: Final = load_queries(Path(__file__).with_name("queries.sql").read_text("utf-8"))
