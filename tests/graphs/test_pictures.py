"""Graphs as pictures: Mermaid by its text, SVG by what is in it and where."""

from __future__ import annotations

import threading
from itertools import combinations, pairwise
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import Misuse
from perdure.graph import (
    END,
    TERMINATE,
    Graph,
    GraphLimits,
    JoinTokens,
    NodeTokens,
    TokensView,
    all_of,
    any_of,
    append,
    artifact,
    assign,
    child,
    collect,
    human,
    llm,
    m_of,
    remote,
    terminate,
    timer,
    wait,
)
from perdure.models.graphs import layout as layouts
from perdure.models.graphs.layout import SLOTS_MAX, Box, Layout, Line, arrange
from perdure.testing import Environment

SVG = "{http://www.w3.org/2000/svg}"


async def make_plan(topic: Any = None) -> Any:
    return topic


def research() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("research")
    graph.node("plan", make_plan)
    graph.node("search", llm("gpt-5-mini", "x"), description="Looks for it")
    graph.node("write", assign({}))
    graph.edge("plan", "search", foreach="nodes.plan.queries")
    graph.edge("search", "write", join=all_of(), merge=append("state.notes"))
    return graph


def shop() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("shop")
    graph.node("intake", make_plan)
    graph.node("fraud", remote("gpu"))
    graph.node("stock", child("stock"))
    graph.node("meet", assign({}))
    graph.node("approve", human("managers"))
    graph.node("remind", timer(3600))
    graph.node("paid", wait("payments.paid"))
    graph.node("invoice", artifact("invoice", "1"))
    graph.node("reject", terminate("failed", "'no'"))
    graph.edge("intake", "fraud")
    graph.edge("intake", "stock")
    graph.edge(["fraud", "stock"], "meet", join=m_of(2))
    graph.edge("meet", "approve", when='state.who == "Ann" && state.total > 1000')
    graph.edge("meet", "paid", priority=1)
    graph.edge("approve", "remind", on_error=True)
    graph.edge("remind", "approve", limit=2)
    graph.edge("remind", "reject", priority=1)
    graph.edge("approve", "paid")
    graph.edge("paid", "paid", when="!nodes.paid.ok", limit=5)
    graph.edge("paid", "invoice", priority=1)
    graph.edge("invoice", TERMINATE, when="state.stop")
    graph.edge("invoice", END, priority=1)
    return graph


# ---------------------------------------------------------------------------------------------------------------------
# Mermaid


def test_a_graph_with_a_fork_and_a_join_in_mermaid() -> None:
    assert research().to_mermaid() == (
        """flowchart TD
    start(("start"))
    node_plan["<b>plan</b><br>function make_plan"]
    node_search["<b>search</b><br>llm gpt-5-mini"]
    node_write("<b>write</b><br>set")
    join_write_plan{{"all"}}
    start --> node_plan
    node_plan ==>|"each nodes.plan.queries"| node_search
    node_search --> join_write_plan
    join_write_plan --> node_write
"""
    )


def test_a_graph_with_all_sorts_of_arrows_in_mermaid() -> None:
    assert shop().to_mermaid() == (
        """flowchart TD
    start(("start"))
    node_intake["<b>intake</b><br>function make_plan"]
    node_fraud["<b>fraud</b><br>remote gpu"]
    node_stock[["<b>stock</b><br>workflow stock"]]
    node_meet("<b>meet</b><br>set")
    node_approve[/"<b>approve</b><br>human managers"/]
    node_remind(["<b>remind</b><br>timer 3600 s"])
    node_paid(["<b>paid</b><br>wait payments.paid"])
    node_invoice[("<b>invoice</b><br>artifact invoice")]
    node_reject((("<b>reject</b><br>terminate")))
    join_meet_intake{{"2 of n"}}
    terminate((("end of the run")))
    end_((("end")))
    start --> node_intake
    node_intake --> node_fraud
    node_intake --> node_stock
    node_fraud --> join_meet_intake
    join_meet_intake --> node_meet
    node_stock --> join_meet_intake
    node_meet -->|"state.who == #34;Ann#34; #38;#38; state.total #62; 1000"| node_approve
    node_meet -->|"else"| node_paid
    node_approve --> node_paid
    node_approve -.->|"error"| node_remind
    node_remind -->|"2 × at most"| node_approve
    node_remind -->|"else"| node_reject
    node_paid -->|"5 × at most, !nodes.paid.ok"| node_paid
    node_paid -->|"else"| node_invoice
    node_invoice -->|"state.stop"| terminate
    node_invoice -->|"else"| end_
"""
    )


SEEN = TokensView(
    run_id="r",
    workflow="research",
    version="",
    status="suspended",
    nodes={
        "plan": NodeTokens(completed=1),
        "search": NodeTokens(standing=2, completed=12, failed=1, cancelled=3),
        "write": NodeTokens(),
    },
    joins=(JoinTokens(target="write", fork="plan", arrived=12, branches=18),),
)


def test_the_tokens_of_a_run_in_mermaid() -> None:
    text = research().to_mermaid(SEEN)
    assert 'node_plan["<b>plan</b><br>function make_plan<br>✓ 1"]' in text
    assert 'node_search["<b>search</b><br>llm gpt-5-mini<br>● 2  ✓ 12  ✗ 1  – 3"]' in text
    assert 'join_write_plan{{"all: 12/18"}}' in text
    assert text.endswith(
        "    classDef active fill:#dbeafe,stroke:#2563eb,color:#111827\n    class node_search active\n"
    )


def test_what_mermaid_would_take_for_its_own_is_escaped() -> None:
    graph: Graph[Any, Any] = Graph("odd")
    graph.node("end", wait('a"b<c>`d#e;\nf'))
    assert 'node_end(["<b>end</b><br>wait a#34;b#60;c#62;#96;d#35;e; f"])' in graph.to_mermaid()


# ---------------------------------------------------------------------------------------------------------------------
# SVG


Frame = tuple[float, float, float, float]


def frames(root: ET.Element) -> dict[str, Frame]:
    """The boxes that are drawn, by id: left, top, right, bottom."""
    found: dict[str, Frame] = {}
    for group in root.iter(f"{SVG}g"):
        if (id := group.get("data-box")) is not None:
            circle, rect = group.find(f"{SVG}circle"), group.find(f"{SVG}rect")
            if rect is not None:
                found[id] = _frame(rect)
            else:
                assert circle is not None
                x, y, r = (float(circle.get(name, "")) for name in ("cx", "cy", "r"))
                found[id] = (x - r, y - r, x + r, y + r)
    return found


def _frame(rect: ET.Element) -> Frame:
    x, y, width, height = (float(rect.get(name, "")) for name in ("x", "y", "width", "height"))
    return x, y, x + width, y + height


def labels(root: ET.Element) -> list[Frame]:
    return [_frame(rect) for rect in root.iter(f"{SVG}rect") if rect.get("class") == "behind"]


def overlap(one: Frame, other: Frame) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def check(text: str, graph: Graph[Any, Any]) -> ET.Element:
    root = ET.fromstring(text)
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    drawn = frames(root)
    assert {f"node_{name}" for name in graph.definition.nodes} <= set(drawn)
    solid = [*drawn.values(), *labels(root)]
    assert not [pair for pair in combinations(solid, 2) if overlap(*pair)]
    for left, top, right, bottom in solid:
        assert 0 <= left + 20 <= right + 20 <= width + 1
        assert 0 <= top + 20 <= bottom + 20 <= height + 1
    for group in root.iter(f"{SVG}g"):
        if (source := group.get("data-from")) is not None:
            assert {source, group.get("data-to")} <= set(drawn)
    return root


@pytest.mark.parametrize("make", [research, shop])
def test_a_graph_is_drawn(make: Any) -> None:
    root = check(make().to_svg(), make())
    assert root.find(f"{SVG}title") is not None
    text = " ".join(root.itertext())
    for name in make().definition.nodes:
        assert name in text


def test_forks_joins_loops_and_errors_can_be_seen() -> None:
    root = check(research().to_svg(), research())
    assert {"fork_plan_0", "join_write_plan"} <= set(frames(root))
    edges = {(group.get("data-from"), group.get("data-to")): group.get("class") for group in root.iter(f"{SVG}g")}
    assert edges["fork_plan_0", "node_search"] == "edge multiple"
    root = check(shop().to_svg(), shop())
    edges = {(group.get("data-from"), group.get("data-to")): group.get("class") for group in root.iter(f"{SVG}g")}
    assert edges["node_approve", "node_remind"] == "edge error"
    assert edges["node_remind", "node_approve"] == "edge back"
    assert edges["node_paid", "node_paid"] == "edge back"
    assert edges["node_approve", "node_paid"] == "edge"
    drawn = frames(root)
    for upper, lower in [("start", "node_intake"), ("node_meet", "node_approve"), ("node_approve", "node_remind")]:
        assert drawn[upper][3] < drawn[lower][1]


def test_nodes_in_a_row_stand_below_each_other() -> None:
    graph: Graph[Any, Any] = Graph("row")
    names = ["a", "longer_name_of_a_node", "c", "d"]
    for name in names:
        graph.node(name, assign({}))
    for one, other in pairwise(names):
        graph.edge(one, other)
    drawn = frames(check(graph.to_svg(), graph))
    middles = {round((left + right) / 2, 1) for left, _, right, _ in drawn.values()}
    assert len(middles) == 1


def test_the_tokens_of_a_run_are_drawn() -> None:
    root = check(research().to_svg(SEEN), research())
    looks = {group.get("data-box"): group.get("class") for group in root.iter(f"{SVG}g")}
    assert looks["node_search"] == "node llm active"
    assert looks["node_plan"] == "node function"
    badges = [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "badge-text"]
    assert badges == ["✓ 1", "● 2  ✓ 12  ✗ 1  – 3"]
    assert "all: 12/18" in "".join(root.itertext())


def test_what_is_no_text_for_xml_is_escaped_or_replaced() -> None:
    graph: Graph[Any, Any] = Graph("odd <&> ]]>")
    graph.node("a", wait("</text><script>alert('1')</script>\"\x07\ufffe"), description="& <b>")
    graph.node("b", wait("漢字" * 20))
    graph.edge("a", "b", when="input.x < 3 && input.y == '\u0001'")
    text = graph.to_svg()
    check(text, graph)
    assert "<script" not in text
    assert "漢字漢字" in text


async def test_a_run_can_be_drawn_with_its_tokens() -> None:
    graph: Graph[Any, Any] = Graph("drawn")
    graph.node("begin", assign({}))
    graph.node("nap", timer("branch.item"))
    graph.node("meet", assign({}))
    graph.edge("begin", "nap", foreach="[1, 2, 30]")
    graph.edge("nap", "meet", join=any_of(on_early="let_finish"), merge=collect("state.got"))
    async with Environment([graph], autojump_s=None) as env:
        await env.engine.start(graph(), id="r")
        await env.advance(10)
        tokens = await env.engine.handle("r").tokens()
        assert "● 1  ✓ 2" in graph.to_svg(tokens)
        await env.advance(30)
        assert "✓ 3" in graph.to_mermaid(await env.engine.handle("r").tokens())


# ---------------------------------------------------------------------------------------------------------------------
# Any graph


@st.composite
def graphs(draw: st.DrawFn) -> Graph[Any, Any]:
    """A graph whose nodes can all be reached, with edges in all directions."""
    size = draw(st.integers(1, 14))
    graph: Graph[Any, Any] = Graph("any", limits=GraphLimits())
    names = [draw(st.sampled_from(["n", "rather_long_name_"])) + str(number) for number in range(size)]
    for name in names:
        graph.node(name, assign({}), otherwise="end")
    seen: set[tuple[int, int]] = set()
    for number in range(1, size):
        seen.add((draw(st.integers(0, number - 1)), number))
    more = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))
    seen |= set(draw(st.lists(more, max_size=size)))
    for one, other in sorted(seen):
        when = draw(st.sampled_from([None, "input.x > 3", "nodes.n0.some.longer.path == 'and a text in it'"]))
        if when is not None and "nodes" in when:
            when = when.replace("nodes.n0", f"nodes.{names[0]}")
        graph.edge(
            names[one],
            names[other],
            when=when,
            limit="unlimited",
            priority=draw(st.integers(0, 2)),
            on_error=draw(st.booleans()) and draw(st.booleans()),
            spawn=draw(st.sampled_from([None, None, None, 3])),
        )
    return graph


@settings(max_examples=40)
@given(graphs())
def test_no_box_or_label_is_drawn_on_another(graph: Graph[Any, Any]) -> None:
    check(graph.to_svg(), graph)
    assert graph.to_mermaid().startswith("flowchart TD\n")


@st.composite
def shapes(draw: st.DrawFn) -> tuple[list[Box], list[Line]]:
    size = draw(st.integers(1, 12))
    side = st.floats(1, 200)
    boxes = [Box(str(number), draw(side), draw(side)) for number in range(size)]
    ends = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))
    lines = [
        Line(str(one), str(other), *draw(st.sampled_from([(0.0, 0.0), (80.0, 17.0), (240.0, 17.0)])))
        for one, other in draw(st.lists(ends, max_size=24))
    ]
    return boxes, lines


def _inside(point: tuple[float, float], box: Box, layout: Layout) -> bool:
    x, y = layout.boxes[box.id]
    return abs(point[0] - x) < box.width / 2 - 0.01 and abs(point[1] - y) < box.height / 2 - 0.01


@given(shapes())
def test_any_layout_keeps_boxes_labels_and_lines_apart(shape: tuple[list[Box], list[Line]]) -> None:
    boxes, lines = shape
    layout = arrange(boxes, lines)
    assert arrange(boxes, lines) == layout
    solid = [_around(layout.boxes[box.id], box.width, box.height) for box in boxes]
    for line, route in zip(lines, layout.routes, strict=True):
        if line.source == line.target:
            assert route.is_back
            continue
        if line.label_width:
            solid.append(_around(route.label, line.label_width - 0.02, line.label_height - 0.02))
        ups = [one[1] - other[1] for one, other in pairwise(route.points)]
        assert all(up > 0 for up in ups) if route.is_back else all(up < 0 for up in ups)
        assert not [box for box in boxes for point in route.points if _inside(point, box, layout)]
    assert not [pair for pair in combinations(solid, 2) if overlap(*pair)]


def _around(middle: tuple[float, float], width: float, height: float) -> Frame:
    x, y = middle
    return x - width / 2 + 0.01, y - height / 2 + 0.01, x + width / 2 - 0.01, y + height / 2 - 0.01


def test_a_layout_without_crossings_is_found() -> None:
    boxes = [Box(name, 40, 20) for name in ["top", "a", "b", "c", "x", "y", "z"]]
    pairs = [("top", "a"), ("top", "b"), ("top", "c"), ("c", "x"), ("b", "y"), ("a", "z")]
    layout = arrange(boxes, [Line(one, other) for one, other in pairs])
    places = layout.boxes
    above = sorted("abc", key=lambda name: places[name][0])
    below = sorted("xyz", key=lambda name: places[name][0])
    assert [{"c": "x", "b": "y", "a": "z"}[name] for name in above] == below


def test_a_large_graph_is_drawn_in_time() -> None:
    """Linear enough: a thousand nodes in layers of twenty, each with two edges on."""
    boxes = [Box(str(number), 90, 40) for number in range(1000)]
    lines = [Line(str(number), str(number + 20 + step)) for number in range(975) for step in (0, 3)]
    layout = arrange(boxes, lines)
    assert len(layout.boxes) == 1000


# ---------------------------------------------------------------------------------------------------------------------
# How much a picture may cost. Work is counted, not time.


def dense(boxes: int, lines: int) -> tuple[list[Box], list[Line]]:
    """A chain of boxes, with lines between those that are far apart, the longest first."""
    pairs = sorted(combinations(range(boxes), 2), key=lambda pair: pair[0] - pair[1])[:lines]
    chain = list(pairwise(range(boxes)))
    return [Box(str(n), 90, 30) for n in range(boxes)], [Line(str(a), str(b)) for a, b in [*chain, *pairs]]


@pytest.mark.parametrize(("boxes", "lines"), [(20, 20), (40, 150), (60, 180), (100, 100)])
def test_the_work_for_a_picture_is_bounded(boxes: int, lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[int] = []
    original = layouts._fitted

    def counted(layer: Any, wanted: Any) -> list[float]:
        fitted.append(len(layer))
        return original(layer, wanted)

    monkeypatch.setattr(layouts, "_fitted", counted)
    arrange(*dense(boxes, lines))
    assert 0 < sum(fitted) <= 4 * SLOTS_MAX


def test_a_picture_with_too_many_places_is_refused() -> None:
    with pytest.raises(Misuse, match="draw it as Mermaid"):
        arrange(*dense(60, 400))


async def test_a_graph_that_is_too_large_for_a_picture_is_drawn_as_text_and_all_pictures_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph: Graph[Any, Any] = Graph("dense")
    for n in range(60):
        graph.node(f"n{n}", assign({}))
    for source, target in combinations(range(60), 2):
        graph.edge(f"n{source}", f"n{target}", when=None if target == source + 1 else "input.x == 1")
    with pytest.raises(Misuse, match="too large for a picture"):
        graph.to_svg()
    assert "n59" in graph.to_mermaid()

    threads: list[threading.Thread] = []
    original = Graph.to_svg

    def seen(self: Graph[Any, Any], tokens: TokensView | None = None) -> str:
        threads.append(threading.current_thread())
        return original(self, tokens)

    monkeypatch.setattr(Graph, "to_svg", seen)
    plain = research()
    async with Environment([plain]) as env:
        run = await env.engine.start(plain({}))
        assert "<svg" in await run.drawing()
    assert threads
    assert threading.main_thread() not in threads
