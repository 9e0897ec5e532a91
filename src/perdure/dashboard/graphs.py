"""Pictures of runs of graphs, made fit for a page: its colours are the page's, in light and in dark."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from markupsafe import Markup

from perdure.client import Client
from perdure.errors import Misuse
from perdure.views import RunView

_STYLE: Final = re.compile(r"<style>.*?</style>", re.DOTALL)


class Graphs:
    """Graphs to draw runs with, beside those that the client has itself: it has some if it is an engine."""

    def __init__(self, graphs: Iterable[Any]) -> None:
        self._known = {(graph.name, graph.version): graph for graph in graphs if getattr(graph, "model", "") == "graph"}

    def knows(self, workflow: str, version: str) -> bool:
        return (workflow, version) in self._known

    async def picture(self, client: Client, run: RunView) -> Markup | None:
        """A run with its tokens; None if it is none of a graph, or of one whose code is not here, or has changed."""
        try:
            drawn = await client.drawing(run.id, graph=self._known.get((run.workflow, run.workflow_version)))
        except Misuse:
            return None
        return for_page(drawn)

    def plain(self, workflow: str, version: str) -> Markup | None:
        """A graph without a run."""
        graph = self._known.get((workflow, version))
        return None if graph is None else for_page(graph.to_svg())


def for_page(drawn: str) -> Markup:
    """A picture without its own style, which a strict page does not allow. What is in it was escaped by who drew it."""
    return Markup(_STYLE.sub("", drawn))  # noqa: S704


__all__ = ["Graphs", "for_page"]
