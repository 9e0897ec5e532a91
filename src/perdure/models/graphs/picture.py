"""The content of a graph's picture: boxes for nodes and joins, and arrows with labels. All drawing formats use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from perdure.models.graphs.kinds.base import Kind
from perdure.models.graphs.plan import Edge, Join, Plan
from perdure.models.graphs.spec import END, TERMINATE
from perdure.models.graphs.token_views import NodeTokens, TokensView

BoxKind = Literal["node", "join", "fork", "start", "end", "terminate"]

# For each kind, the field that says most about a node.
_TELLING: Final[Mapping[str, str]] = {
    "action": "action",
    "artifact": "name",
    "function": "function",
    "http": "method",
    "human": "queue",
    "llm": "model",
    "mcp": "tool",
    "metric": "name",
    "remote": "queue",
    "timer": "seconds",
    "wait": "event",
    "workflow": "workflow",
}


class Shown(Struct, frozen=True, kw_only=True):
    """A box. `tag` is the kind of the node. `tokens` is set if the picture shows a run."""

    id: str
    kind: BoxKind
    title: str = ""
    caption: str = ""
    tag: str = ""
    about: str = ""
    tokens: NodeTokens | None = None


class Arrow(Struct, frozen=True, kw_only=True):
    """An arrow. `is_multiple` says that the arrow forks a token into several tokens."""

    source: str
    target: str
    label: str = ""
    is_error: bool = False
    is_multiple: bool = False


class Picture(Struct, frozen=True):
    boxes: Sequence[Shown]
    arrows: Sequence[Arrow]


def picture_of(plan: Plan, kinds: Mapping[str, Kind], tokens: TokensView | None, *, forks: bool) -> Picture:
    """Return the boxes and arrows to draw. The beginning is the first box. With `forks`, each fork has a box."""
    drawn = _Drawn(plan, kinds, tokens, forks)
    return Picture(list(drawn.boxes.values()), drawn.arrows)


class _Drawn:
    def __init__(self, plan: Plan, kinds: Mapping[str, Kind], tokens: TokensView | None, forks: bool) -> None:
        self.boxes: dict[str, Shown] = {"start": Shown(id="start", kind="start", about="Here a run begins")}
        self.arrows: list[Arrow] = [Arrow(source="start", target=_id(plan.start))]
        self._after: list[Arrow] = []  # the arrows from a join onward, once an arrow leads to the join
        self._tokens = tokens
        self._forks = forks
        for name, kind in kinds.items():
            tag = str(type(kind).__struct_config__.tag)
            seen = None if tokens is None else tokens.nodes.get(name, NodeTokens())
            caption = _caption(kind, tag)
            about = kind.description or f"{name}: {caption}"
            box = Shown(id=_id(name), kind="node", title=name, caption=caption, tag=tag, about=about, tokens=seen)
            self.boxes[box.id] = box
        for name, node in plan.nodes.items():
            for is_error, tiers in ((False, node.onward), (True, node.on_failure)):
                for number, tier in enumerate(tiers):
                    self._tier(name, tier, number, is_error=is_error)

    def _tier(self, name: str, tier: Sequence[Edge], number: int, *, is_error: bool) -> None:
        source = _id(name)
        ways = [edge for edge in tier if edge.target != END]
        comes_apart = len(ways) > 1 or any(edge.is_multiple for edge in ways)
        if comes_apart and self._forks:
            fork = f"fork_{name}_{'error_' if is_error else ''}{number}"
            about = f"Here branches come apart: at {name}"
            self.boxes[fork] = Shown(id=fork, kind="fork", about=about)
            label = " ".join([*(["error"] if is_error else []), *(["else"] if number else [])])
            self.arrows.append(Arrow(source=source, target=fork, label=label, is_error=is_error))
            source, is_error, number = fork, False, 0
        for edge in tier:
            self.arrows.append(
                Arrow(
                    source=source,
                    target=self._target(edge),
                    label=", ".join(_words(edge, number, is_error=is_error)),
                    is_error=is_error,
                    is_multiple=edge.is_multiple,
                )
            )
            self.arrows += self._after
            self._after.clear()

    def _target(self, edge: Edge) -> str:
        if edge.join is not None:
            return self._join(edge.join)
        if edge.target == END:
            self.boxes.setdefault("end", Shown(id="end", kind="end", about="Here a token ends"))
            return "end"
        if edge.target == TERMINATE:
            self.boxes.setdefault("terminate", Shown(id="terminate", kind="terminate", about="Here the run ends"))
            return "terminate"
        return _id(edge.target)

    def _join(self, join: Join) -> str:
        id = f"join_{join.target}_{join.fork}"
        if id not in self.boxes:
            need = join.spec.need
            title = f"{need} of n" if isinstance(need, int) else need
            if (tolerate := join.spec.tolerate) is not None:
                title = (
                    f"{title}, {tolerate:.0%} may fail"
                    if isinstance(tolerate, float)
                    else f"{title}, {tolerate} may fail"
                )
            about = f"Here branches meet that came apart at {join.fork}: {title}"
            if self._tokens is not None:
                waiting = [one for one in self._tokens.joins if (one.target, one.fork) == (join.target, join.fork)]
                if waiting:
                    arrived, branches = sum(one.arrived for one in waiting), sum(one.branches for one in waiting)
                    title = f"{title}: {arrived}/{branches}"
            self.boxes[id] = Shown(id=id, kind="join", title=title, about=about)
            self._after.append(Arrow(source=id, target=_id(join.target)))
        return id


def _id(node: str) -> str:
    return f"node_{node}"


def _caption(kind: Kind, tag: str) -> str:
    value: Any = getattr(kind, _TELLING.get(tag, ""), None)
    if tag == "llm" and value is None:
        value = getattr(kind, "profile", None)
    if tag == "timer":
        value = (
            getattr(kind, "until", None) if value is None else f"{value:g} s" if not isinstance(value, str) else value
        )
    if tag == "workflow" and not value:
        value = getattr(kind, "name_from", None)
    elif tag in ("function", "workflow"):
        value = str(value).rpartition(":")[2]
    return tag if value is None or value == tag else f"{tag} {value}"


def _words(edge: Edge, tier: int, *, is_error: bool) -> Iterator[str]:
    """Return the label of an arrow."""
    if is_error:
        yield "error"
    if edge.limit is not None:
        yield f"{edge.limit} × at most"
    if edge.limit_us is not None:
        yield f"for {edge.limit_us / 1_000_000:g} s at most"
    if edge.when is not None:
        yield f"else if {edge.when.source}" if tier else edge.when.source
    elif tier:
        yield "else"
    if edge.foreach is not None:
        yield f"each {edge.foreach.source}"
    if edge.spawn is not None:
        yield f"{edge.spawn} ×"
    if edge.at_once is not None:
        yield f"{edge.at_once} at once"
    if edge.cancel:
        yield f"cancels {'the others' if '*' in edge.cancel else ' and '.join(sorted(edge.cancel))}"


def counts(tokens: NodeTokens | None) -> str:
    """Return the counts of a node's tokens as a short text."""
    if tokens is None:
        return ""
    signs = (("●", tokens.standing), ("✓", tokens.completed), ("✗", tokens.failed), ("–", tokens.cancelled))
    return "  ".join(f"{sign} {count}" for sign, count in signs if count)
