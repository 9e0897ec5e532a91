"""Expressions: what an evaluation costs, and for how long the worst ones that the budget lets through take.

`python -m bench.expressions` measures usual conditions, and then whatever takes most time per step: each kind of work
on as much as the budget allows. No evaluation may stand in the loop's way for more than 50 ms.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from perdure.errors import ExpressionFailed
from perdure.models.graphs.expressions import Expression

BLOCKED_MAX_MS = 50.0

USUAL = {
    "a path": "state.x",
    "a condition": "state.x + 1 == 3 && state.name != 'a'",
    "a test": "has(state.x) && state.x > 1 ? 'many' : 'few'",
    "a text": "'order ' + string(state.x) + ' of ' + state.name",
    "a pattern": "state.name.matches('^[a-z]+@[a-z]+$')",
    "a filter over 100": "state.hundred.filter(i, i > 50).size()",
}
# Each does as much of one kind of work as it can; N is what makes it just about fit, or too much.
WORST = {
    "map": "lists.range({n}).map(i, i + 1)",
    "nested map": "lists.range(300).map(i, lists.range({n}).map(j, i * j))",
    "maps over maps": "lists.range({n}).map(a, a).map(b, b).map(c, c).map(d, [d, d]).map(e, {{'a': e, 'b': e}})",
    "objects": "lists.range({n}).map(i, {{'a': i, 'b': [i, i], 'c': {{'d': 'e'}}}})",
    "selects": "lists.range({n}).map(i, state.deep.a.b.c.d)",
    "whole roots": "lists.range({n}).map(i, size(state))",
    "errors": "lists.range({n}).exists(i, state.nope == i)",
    "errors in or": "lists.range({n}).filter(i, state.nope == i || true)",
    "no overload": "lists.range({n}).filter(i, 'a' < 1 || true)",
    "conversions": "lists.range({n}).map(i, string(double(i)) + string(duration('1h30m')))",
    "times": "lists.range({n}).map(i, timestamp('2030-01-01T00:00:00.5+02:00').getDayOfYear())",
    "doubling": "lists.range({n}).map(i, 'x').map(a, state.text + state.text)",
    "equality": "lists.range({n}).filter(i, state.thousand == state.other_thousand)",
    "deep equality": "lists.range({n}).filter(i, state.nested == state.other_nested)",
    "in a list": "lists.range({n}).filter(i, i in state.thousand)",
    "in texts": "lists.range({n}).filter(i, 'zz' in state.texts)",
    "contains": "lists.range({n}).filter(i, state.text.contains('aaaaaaaaab'))",
    "last index": "lists.range({n}).map(i, state.text.lastIndexOf('baaaaaaaaa'))",
    "replace": "lists.range({n}).map(i, state.text.replace('a', 'bb').size())",
    "split": "lists.range({n}).map(i, state.text.split('a').size())",
    "characters": "lists.range({n}).map(i, state.text.split('').size())",
    "join": "lists.range({n}).map(i, state.texts.join(','))",
    "case": "lists.range({n}).map(i, state.umlauts.upperAscii().size())",
    "quote": "lists.range({n}).map(i, strings.quote(state.umlauts).size())",
    "base64": "lists.range({n}).map(i, base64.encode(state.umlauts).size())",
    "sort": "lists.range({n}).map(i, state.shuffled.sort().size())",
    "sort texts": "lists.range({n}).map(i, state.texts.sort().size())",
    "distinct": "lists.range({n}).map(i, state.thousand.distinct().size())",
    "distinct lists": "lists.range({n}).map(i, state.lists.distinct().size())",
    "sets": "lists.range({n}).filter(i, sets.equivalent(state.thousand, state.other_thousand))",
    "flatten": "lists.range({n}).map(i, state.lists.flatten().size())",
    "sum": "lists.range({n}).map(i, state.thousand.sum())",
    "greatest": "lists.range({n}).map(i, math.greatest(state.thousand))",
    "pattern, long text": "lists.range({n}).filter(i, state.text.matches('b$'))",
    "pattern, many states": "lists.range({n}).filter(i, state.umlauts.matches('(a|b|ä){{0,150}}c'))",
    "pattern, new states": "lists.range({n}).filter(i, state.varied.matches('(?i)([^x]*x){{20}}y'))",
    "patterns": "lists.range({n}).filter(i, 'a'.matches('a{{0,100}}' + string(i)))",
    "the same again": "lists.range({n}).map(i, state.objects)",
    "parts again": "lists.range({n}).map(i, state.objects[i % 1000])",
    "results": "lists.range({n}).map(i, [[i], [i]])",
}


class State:
    """A context with large values of each kind, none larger than an engine takes."""

    def __init__(self) -> None:
        nested: Any = 0
        for _ in range(90):
            nested = [nested]
        self._state: Mapping[str, Any] = {
            "x": 2,
            "name": "ada@lovelace",
            "hundred": list(range(100)),
            "deep": {"a": {"b": {"c": {"d": 1}}}},
            "text": "a" * 100_000,
            "umlauts": "äab" * 1_000,
            "varied": "".join(chr(97 + i * i % 26) for i in range(10_000)),
            "thousand": list(range(1_000)),
            "other_thousand": list(range(1_000)),
            "shuffled": [i * 7919 % 10_007 for i in range(10_000)],
            "texts": [f"a common beginning {i}" for i in range(1_000)],
            "lists": [[i, i] for i in range(1_000)],
            "objects": [{"id": i, "tags": ["a", "b"]} for i in range(1_000)],
            "nested": nested,
            "other_nested": [nested],
        }

    def root(self, name: str) -> Any:
        return self._state if name == "state" else {}


def took_ms(source: str, state: State, times: int) -> float:
    """Time of this thread alone, and the best of several: other work on the machine only makes one slower."""
    expression = Expression(source, "here")
    best = float("inf")
    for _ in range(times):
        began = time.thread_time()
        try:
            expression.evaluate(state)
        except ExpressionFailed as error:
            if "steps" not in str(error) and "there is no" not in str(error):
                raise
        best = min(best, time.thread_time() - began)
    return best * 1e3


def main() -> None:
    state = State()
    for what, source in USUAL.items():
        print(f"{what:>24}: {took_ms(source, state, 2_000) * 1e3:8.1f} µs   {source}")
    worst = {
        what: max(
            took_ms(source.format(n=n), state, 3) for n in (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)
        )
        for what, source in WORST.items()
    }
    for what, ms in sorted(worst.items(), key=lambda pair: -pair[1]):
        verdict = "" if ms <= BLOCKED_MAX_MS else f"   more than {BLOCKED_MAX_MS:g}"
        print(f"{what:>24}: {ms:8.2f} ms at worst{verdict}")


if __name__ == "__main__":
    main()
