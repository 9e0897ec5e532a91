"""Graphs that simulated engines run. Their random input determines their expected output."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from msgspec import Struct, field

from perdure.graph import Graph, all_of, any_of, append, assign, child, collect, m_of, timer, wait
from perdure.models.functions.define import step
from perdure.testing.simulate.workload import GRAPHS, Job, Word, clerk, started, work
from perdure.values.retry import Retry

__all__ = ["AT_ONCE", "DRAWN", "Drawn"]


class Drawn(Struct, kw_only=True):
    """A graph's input, and everything else that its run needs: events, and jobs in these lanes. `expected` is the
    graph's output, or a function that returns whether an output is correct.
    """

    name: str
    input: Any
    expected: Any
    words: int = 0
    lanes: list[int] = field(default_factory=list)


Seconds = Callable[[float], float]

AT_ONCE: Final = {"turns": 1, "bounded": 2}  # by graph: how many of its steps may run at once
_NEVER_S: Final = 100_000.0


@step(retry=Retry.never())
async def refuse_odd(number: int) -> int:
    with started():
        if number % 2:
            raise ValueError("odd")
        return number


def _begun(name: str) -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph(f"simulate.{name}")
    graph.node("begin", assign({}))
    GRAPHS[name] = graph
    return graph


def _work(graph: Graph[Any, Any], name: str = "work", item: str = "branch.item") -> str:
    wanted = {"number": f"{item}[0]", "failures": f"{item}[1]", "seconds": f"{item}[2]"}
    return graph.node(name, work, input=wanted).name


def _spread(name: str, join: Any, merge: Any) -> None:
    graph = _begun(name)
    _work(graph)
    graph.node("meet", assign({}))
    graph.edge("begin", "work", foreach="input")
    graph.edge("work", "meet", join=join, merge=merge)
    graph.output("state.got")


def _table() -> None:
    graph = _begun("table")
    graph.node("inner", assign({}))
    _work(graph)
    graph.node("row", assign({}))
    graph.node("end", assign({}))
    graph.edge("begin", "inner", foreach="input")
    graph.edge("inner", "work", foreach="branch.item")
    graph.edge("work", "row", join=all_of(), merge=collect("state.row"))
    graph.edge("row", "end", join=all_of(), merge=collect("state.table", source="state.row"))
    graph.output("state.table")


def _laps() -> None:
    graph = _begun("laps")
    _work(graph)
    graph.node("rest", timer(0.5))
    graph.node("meet", assign({}))
    graph.node("over", assign({}))
    graph.edge("begin", "work", foreach="input")
    graph.edge("work", "rest")
    graph.edge("rest", "meet", join=all_of(), merge=append("state.got", source="nodes.work"))
    graph.edge("meet", "begin", limit=2)
    graph.edge("meet", "over", priority=1)
    graph.output("state.got")


def _errors() -> None:
    graph = _begun("errors")
    graph.node("work", refuse_odd, input={"number": "branch.item"}, on_error="branch_error")
    graph.node("meet", assign({}))
    graph.node("again", refuse_odd, input={"number": 3})
    graph.node("rescue", assign({"state.why": "error.message"}))
    graph.edge("begin", "work", foreach="input")
    graph.edge("work", "meet", join=m_of(1, on_early="let_finish"), merge=collect("state.got"))
    graph.edge("meet", "rescue", on_error=True)
    graph.edge("meet", "again")
    graph.edge("again", "rescue", on_error=True)
    graph.output("state.why")


def _hears() -> None:
    graph = _begun("hears")
    received = "(has(state.received) ? state.received : []) + [nodes.hear.number]"
    graph.node("hear", wait(Word), output={"state.received": received})
    graph.node("over", assign({}))
    graph.edge("begin", "hear")
    graph.edge("hear", "hear", when="size(state.received) < input.times", limit="unlimited")
    graph.edge("hear", "over", priority=1)
    graph.output("state.received")
    graph = _begun("all_hear")
    graph.node("hear", wait(Word))
    graph.node("meet", assign({}))
    graph.edge("begin", "hear", foreach="input.listeners")
    graph.edge("hear", "meet", join=all_of(), merge=collect("state.received", source="nodes.hear.number"))
    graph.output("state.received")


def _hurry() -> None:
    """Wait until a job arrives or a timeout has passed. If the timeout wins, the run must not get the job."""
    graph = _begun("hurry")
    graph.node("take", wait(Job, where={"lane": "input.lane"}))
    graph.node("late", timer("input.seconds"))
    graph.node("meet", assign({}))
    for name in ("take", "late"):
        graph.edge("begin", name)
        graph.edge(name, "meet", join=any_of())
    graph.output("'met'")


def _family() -> None:
    graph = _begun("family")
    graph.node("child", child(clerk, on_failure="catch"), input={"plan": "branch.item"})
    graph.node("meet", assign({}))
    graph.edge("begin", "child", foreach="input")
    graph.edge("child", "meet", join=all_of(), merge=collect("state.got"))
    graph.output("state.got")


def _turns() -> None:
    graph = _begun("turns")
    _work(graph)
    graph.node("rest", timer(0.2))
    graph.node("meet", assign({}))
    graph.edge("begin", "work", foreach="input")
    graph.edge("work", "rest")
    graph.edge("rest", "meet", join=all_of(), merge=collect("state.got", source="nodes.work"))
    graph.exclusive(["work", "rest"], keep=True)
    graph.output("state.got")


def _bounded() -> None:
    graph = _begun("bounded")
    _work(graph)
    graph.node("meet", assign({}))
    graph.edge("begin", "work", foreach="input", at_once=AT_ONCE["bounded"])
    graph.edge("work", "meet", join=all_of(), merge=collect("state.got"))
    graph.output("state.got")


def _twice() -> None:
    """Split each branch. Both of its tokens arrive at the join of the outer fork, which counts the branch once."""
    graph = _begun("twice")
    graph.node("split", assign({}))
    _work(graph, "left")
    graph.node("right", timer("branch.item[3]"))
    graph.node("meet", assign({}))
    graph.edge("begin", "split", foreach="input")
    for name in ("left", "right"):
        graph.edge("split", name)
        graph.edge(name, "meet", join=m_of(2, "begin"), merge=collect("state.got", source="branch.item[0]"))
    graph.output("state.got")


def _halves() -> None:
    """Split each branch. One of its tokens may fail while the other arrives: then the branch has failed."""
    graph = _begun("halves")
    graph.node("split", assign({}))
    graph.node("left", refuse_odd, input={"number": "branch.item"}, on_error="branch_error")
    graph.node("right", timer(0.5))
    graph.node("rest", timer(0.2))
    graph.node("meet", assign({}))
    graph.edge("begin", "split", foreach="input")
    graph.edge("split", "rest")
    graph.edge("rest", "left")
    graph.edge("split", "right")
    for name in ("left", "right"):
        graph.edge(
            name, "meet", join=all_of("begin", tolerate=9), merge=collect("state.got", source="string(branch.item)")
        )
    graph.output("state.got")


_spread("all", all_of(), collect("state.got"))
_spread("any", any_of(), collect("state.got"))
_spread("two", m_of(2), collect("state.got"))
_spread("late", any_of(on_early="late_merge"), append("state.got"))
_table()
_laps()
_errors()
_hears()
_hurry()
_family()
_turns()
_bounded()
_twice()
_halves()


# ---------------------------------------------------------------------------------------------------------------------
# Random inputs


def _items(lot: Random, seconds: Seconds, least: int = 0) -> list[Any]:
    return [[lot.randint(1, 99), lot.choice((0, 0, 0, 1)), seconds(2)] for _ in range(lot.randint(least, 4))]


def _squares(items: list[Any]) -> list[int]:
    return [number * number for number, *_ in items]


def _draw_list(name: str, least: int, right: Callable[[list[int], Any], bool]) -> Callable[[Random, Seconds], Drawn]:
    def draw(lot: Random, seconds: Seconds) -> Drawn:
        items = _items(lot, seconds, least)
        squares = _squares(items)
        return Drawn(name=name, input=items, expected=lambda got: right(squares, got))

    return draw


def _draw_table(lot: Random, seconds: Seconds) -> Drawn:
    rows = [_items(lot, seconds) for _ in range(lot.randint(1, 3))]
    return Drawn(name="table", input=rows, expected=[_squares(row) for row in rows])


def _draw_errors(lot: Random, _seconds: Seconds) -> Drawn:
    numbers = [lot.randint(1, 9) for _ in range(lot.randint(1, 3))]
    is_hopeless = all(number % 2 for number in numbers)
    return Drawn(name="errors", input=numbers, expected=lambda why: (why != "odd") == is_hopeless)


def _draw_hears(lot: Random, _seconds: Seconds) -> Drawn:
    times = lot.randint(1, 3)
    if lot.random() < 0.5:
        return Drawn(name="hears", input={"times": times}, words=times, expected=list(range(times)))
    listeners = list(range(times))
    return Drawn(
        name="all_hear", input={"listeners": listeners}, words=times, expected=lambda got: sorted(got) == listeners
    )


def _draw_hurry(lot: Random, seconds: Seconds) -> Drawn:
    lane = lot.randint(0, 1)
    within_s = _NEVER_S if lot.random() < 0.3 else seconds(20)  # There is a job for each run that waits for one.
    return Drawn(name="hurry", input={"lane": lane, "seconds": within_s}, lanes=[lane], expected="met")


def _draw_twice(lot: Random, seconds: Seconds) -> Drawn:
    items = [[number, 0, seconds(2), number % 4] for number in lot.sample(range(1, 100), lot.randint(2, 4))]
    known = {number for number, *_ in items}
    return Drawn(name="twice", input=items, expected=lambda got: len(set(got)) == len(got) == 2 and set(got) <= known)


def _draw_halves(lot: Random, _seconds: Seconds) -> Drawn:
    numbers = [lot.randint(1, 9) for _ in range(lot.randint(1, 3))] + [2]
    return Drawn(
        name="halves",
        input=numbers,
        expected=lambda got: (
            [one if isinstance(one, str) else "" for one in got]
            == ["" if number % 2 else str(number) for number in numbers]
        ),
    )


def _draw_family(lot: Random, seconds: Seconds) -> Drawn:
    items = _items(lot, seconds)
    return Drawn(
        name="family",
        input=[[["work", *item]] for item in items],
        expected=[[square] for square in _squares(items)],
    )


DRAWN: Final[list[Callable[[Random, Seconds], Drawn]]] = [
    _draw_list("all", 0, lambda squares, got: bool(got == squares)),
    _draw_list("any", 1, lambda squares, got: len(got) == 1 and got[0] in squares),
    _draw_list("two", 2, lambda squares, got: len(got) == 2 and all(one in squares for one in got)),
    _draw_list("late", 1, lambda squares, got: sorted(got) == sorted(squares)),
    _draw_list("laps", 0, lambda squares, got: bool(got == 3 * squares)),
    _draw_list("turns", 0, lambda squares, got: bool(got == squares)),
    _draw_list("bounded", 3, lambda squares, got: bool(got == squares)),
    _draw_table,
    _draw_twice,
    _draw_halves,
    _draw_errors,
    _draw_hurry,
    _draw_family,
    _draw_hears,
]
