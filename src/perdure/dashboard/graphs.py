"""Pictures of graphs and of their runs, in the colours of the page's stylesheet."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Any, Final

from markupsafe import Markup
from msgspec import Struct

from perdure.engine import AnyClient
from perdure.errors import Misuse
from perdure.graph import GraphToken
from perdure.views import RunView

_OVER: Final = frozenset({"completed", "failed", "timed_out", "cancelled"})
_TOKENS_MAX: Final = 100
_STYLE: Final = re.compile(r"<style>.*?</style>", re.DOTALL)


class Drawn(Struct, frozen=True, kw_only=True):
    """A picture of a run, and its tokens: first the live ones, then those that ended last. Without a picture,
    `no_picture` says why there is none."""

    picture: Markup | None
    no_picture: str
    tokens: list[GraphToken]
    total: int
    living: int


class Graphs:
    """The graphs with which runs are drawn. If the client is an engine, its own graphs are used too."""

    def __init__(self, graphs: Iterable[Any]) -> None:
        self._known = {(graph.name, graph.version): graph for graph in graphs if getattr(graph, "model", "") == "graph"}

    def knows(self, workflow: str, version: str) -> bool:
        """Return whether a graph has this name and version."""
        return (workflow, version) in self._known

    async def drawn(self, client: AnyClient, run: RunView) -> Drawn | None:
        """Return a picture of a run with its tokens. Return None if the run is not a run of a graph, or if no
        definition fits it. The definition that the run was started or last retried with is tried first. A graph that is
        too large for a picture still has its tokens."""
        for graph in (None, self._known.get((run.workflow, run.workflow_version))):
            try:
                tokens = await client.handle(run.id).tokens(graph=graph)
            except Misuse:
                continue
            picture, no_picture = None, ""
            try:
                picture = for_page(await client.handle(run.id).drawing(graph=graph, tokens=tokens))
            except Misuse as error:
                no_picture = str(error)
            living = [token for token in tokens.tokens if token.state not in _OVER]
            ended = [token for token in tokens.tokens if token.state in _OVER]
            rows = [*living, *ended[::-1]][:_TOKENS_MAX]
            return Drawn(
                picture=picture, no_picture=no_picture, tokens=rows, total=tokens.tokens_total, living=len(living)
            )
        return None

    async def plain(self, workflow: str, version: str) -> Markup | None:
        """Return a picture of a graph without a run. Return None if the graph is unknown or too large for a picture."""
        graph = self._known.get((workflow, version))
        if graph is None:
            return None
        graph.build()
        try:
            return for_page(await asyncio.to_thread(graph.to_svg))
        except Misuse:
            return None


def for_page(drawn: str) -> Markup:
    """Return a picture without its own style sheet, because the security policy of the pages forbids style sheets in
    pages. The texts in the picture are already escaped.
    """
    return Markup(_STYLE.sub("", drawn))  # noqa: S704


__all__ = ["Drawn", "Graphs", "for_page"]
