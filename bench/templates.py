"""Templates: what a rendering takes at worst, within the budget: `python -m bench.templates`.

Each template does as much of one kind of work as it can. Calls of Python and of C are counted, which is the same on
every machine; the time is that of this thread, the best of several. No rendering may stand in the loop's way for more
than 50 ms, on a machine that has other things to do too.
"""

from __future__ import annotations

import cProfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from perdure.models.graphs.jinja.budget import RenderingFailed, TooMuch
from perdure.models.graphs.jinja.template import Compiled

BLOCKED_MAX_MS: Final = 50.0
SIZES: Final = (1, 10, 100, 1_000, 3_000, 10_000, 30_000, 100_000)

# NN is how often it goes round: just about as often as fits, or too often.
WORST: Final = {
    "loop": "{% for i in range(NN) %}{% endfor %}",
    "write": "{% for i in range(NN) %}{{ i }}{% endfor %}",
    "write text": "{% for i in range(NN) %}{{ t }}{% endfor %}",
    "loopvar": "{% for i in range(NN) %}{{ loop.index }}{{ loop.last }}{% endfor %}",
    "macro": "{% macro m(a,b=1) %}{{ a }}{% endmacro %}{% for i in range(NN) %}{{ m(i) }}{% endfor %}",
    "call": "{% macro m() %}{{caller()}}{% endmacro %}{% for i in range(NN) %}{% call m() %}{% endcall %}{% endfor %}",
    "set": "{% for i in range(NN) %}{% set z = i %}{% endfor %}",
    "setblock": "{% for i in range(NN) %}{% set z %}a{% endset %}{% endfor %}",
    "ns": "{% set n = namespace(v=0) %}{% for i in range(NN) %}{% set n.v = n.v + i %}{% endfor %}",
    "if": "{% for i in range(NN) %}{% if i > 3 and i < 9 or not i %}{% elif i %}{% endif %}{% endfor %}",
    "attrs": "{% for i in range(NN) %}{{ deep.a.b.c.d }}{% endfor %}",
    "tojson": "{% for i in range(NN) %}{{ objs|tojson|length }}{% endfor %}",
    "tojson ind": "{% for i in range(NN) %}{{ objs|tojson(indent=2)|length }}{% endfor %}",
    "show": "{% for i in range(NN) %}{% set z = objs ~ '' %}{% endfor %}",
    "sort": "{% for i in range(NN) %}{% set z = shuf|sort %}{% endfor %}",
    "sort texts": "{% for i in range(NN) %}{% set z = texts|sort %}{% endfor %}",
    "sort attr": "{% for i in range(NN) %}{% set z = objs|sort(attribute='id') %}{% endfor %}",
    "groupby": "{% for i in range(NN) %}{% set z = objs|groupby('id') %}{% endfor %}",
    "unique": "{% for i in range(NN) %}{% set z = texts|unique|list %}{% endfor %}",
    "map": "{% for i in range(NN) %}{% set z = objs|map(attribute='id')|list %}{% endfor %}",
    "map filter": "{% for i in range(NN) %}{% set z = texts|map('upper')|list %}{% endfor %}",
    "map string": "{% for i in range(NN) %}{% set z = shuf|map('string')|list %}{% endfor %}",
    "map int": "{% for i in range(NN) %}{% set z = texts|map('int', 0)|list %}{% endfor %}",
    "map default": "{% for i in range(NN) %}{% set z = objs|map(attribute='a.b.c.d.e', default=0)|list %}{% endfor %}",
    "select": "{% for i in range(NN) %}{% set z = shuf|select('even')|list %}{% endfor %}",
    "selectattr": "{% for i in range(NN) %}{% set z = objs|selectattr('id', 'gt', 5)|list %}{% endfor %}",
    "rejectattr": "{% for i in range(NN) %}{% set z = objs|rejectattr('nope', 'undefined')|list %}{% endfor %}",
    "sum": "{% for i in range(NN) %}{% set z = shuf|sum %}{% endfor %}",
    "sum attr": "{% for i in range(NN) %}{% set z = objs|sum(attribute='id') %}{% endfor %}",
    "join": "{% for i in range(NN) %}{% set z = texts|join(',') %}{% endfor %}",
    "join ints": "{% for i in range(NN) %}{% set z = shuf|join(',') %}{% endfor %}",
    "upper": "{% for i in range(NN) %}{% set z = uml|upper %}{% endfor %}",
    "title": "{% for i in range(NN) %}{% set z = uml|title %}{% endfor %}",
    "capitalize": "{% for i in range(NN) %}{% set z = uml|capitalize %}{% endfor %}",
    "escape": "{% for i in range(NN) %}{% set z = uml|e %}{% endfor %}",
    "urlencode": "{% for i in range(NN) %}{% set z = uml|urlencode %}{% endfor %}",
    "replace": "{% for i in range(NN) %}{% set z = t|replace('a','bb') %}{% endfor %}",
    "split": "{% for i in range(NN) %}{% set z = t|split('a') %}{% endfor %}",
    "split ws": "{% for i in range(NN) %}{% set z = sp|split %}{% endfor %}",
    "wordcount": "{% for i in range(NN) %}{% set z = sp|wordcount %}{% endfor %}",
    "lines": "{% for i in range(NN) %}{% set z = lines.splitlines() %}{% endfor %}",
    "indent": "{% for i in range(NN) %}{% set z = lines|indent(4) %}{% endfor %}",
    "trim": "{% for i in range(NN) %}{% set z = t|trim('ab') %}{% endfor %}",
    "batch": "{% for i in range(NN) %}{% set z = shuf|batch(3)|list %}{% endfor %}",
    "slice": "{% for i in range(NN) %}{% set z = shuf|slice(100)|list %}{% endfor %}",
    "dictsort": "{% for i in range(NN) %}{% set z = dct|dictsort %}{% endfor %}",
    "items": "{% for i in range(NN) %}{% set z = dct|items|list %}{% endfor %}",
    "reverse": "{% for i in range(NN) %}{% set z = shuf|reverse|list %}{% endfor %}",
    "eq": "{% for i in range(NN) %}{% set z = objs == objs2 %}{% endfor %}",
    "in": "{% for i in range(NN) %}{% set z = -1 in shuf %}{% endfor %}",
    "in obj": "{% for i in range(NN) %}{% set z = {'id':-1} in objs %}{% endfor %}",
    "in text": "{% for i in range(NN) %}{% set z = 'aab' in t %}{% endfor %}",
    "count": "{% for i in range(NN) %}{% set z = t.count('a') %}{% endfor %}",
    "rfind": "{% for i in range(NN) %}{% set z = t.rfind('baaa') %}{% endfor %}",
    "format": "{% for i in range(NN) %}{% set z = '%s %d %.3f %10s'|format('a', 1, 2.5, 'b') %}{% endfor %}",
    "pow": "{% for i in range(NN) %}{% set z = 2 ** 60 %}{% endfor %}",
    "bigmul": "{% set y = 2 ** 60 %}{% for i in range(NN) %}{% set z = y * y %}{% endfor %}",
    "float": "{% for i in range(NN) %}{% set z = '1.5e3'|float|round(2) %}{% endfor %}",
    "dict build": "{% for i in range(NN) %}{% set z = {'a': i, 'b': [i, i], 'c': {'d': 'e'}} %}{% endfor %}",
    "list build": "{% for i in range(NN) %}{% set z = [i,i,i,i] %}{% endfor %}",
    "concat": "{% for i in range(NN) %}{% set z = shuf + shuf %}{% endfor %}",
    "slice list": "{% for i in range(NN) %}{% set z = shuf[1:] %}{% endfor %}",
    "slice text": "{% for i in range(NN) %}{% set z = t[::2] %}{% endfor %}",
    "truncate": "{% for i in range(NN) %}{% set z = t|truncate(10) %}{% endfor %}",
    "default": "{% for i in range(NN) %}{% set z = nope|default(1) %}{% endfor %}",
    "minmax": "{% for i in range(NN) %}{% set z = shuf|max %}{% endfor %}",
    "for text": "{% for i in range(NN) %}{% for c in t %}{% endfor %}{% endfor %}",
    "for objs": "{% for i in range(NN) %}{% for o in objs %}{{ o.id }}{% endfor %}{% endfor %}",
    "cond": "{% for i in range(NN) %}{{ 'a' if i is odd else 'b' }}{% endfor %}",
    "tests": "{% for i in range(NN) %}{{ i is divisibleby 3 }}{{ i is number }}{{ i is defined }}{% endfor %}",
    "dict items for": "{% for i in range(NN) %}{% for k, v in dct.items() %}{% endfor %}{% endfor %}",
}


def values() -> Mapping[str, Any]:
    """Large values of each kind, none larger than an engine takes."""
    objects = [[{"id": i, "tags": ["a", "b"]} for i in range(1_000)] for _ in range(2)]
    return {
        "t": "a" * 100_000,
        "uml": "äab" * 1_000,
        "texts": [f"a common beginning {i}" for i in range(1_000)],
        "shuf": [i * 7919 % 10_007 for i in range(10_000)],
        "objs": objects[0],
        "objs2": objects[1],
        "deep": {"a": {"b": {"c": {"d": 1}}}},
        "sp": "ab " * 10_000,
        "lines": "ab\n" * 10_000,
        "dct": {str(i): i for i in range(1_000)},
    }


def renderings(source: str, given: Mapping[str, Any], sizes: Sequence[int] = SIZES) -> list[Callable[[], None]]:
    """The same work in each of the sizes."""

    def rendering(size: int) -> Callable[[], None]:
        template = Compiled(source.replace("NN", str(size)))

        def render() -> None:
            try:
                template.render(dict(given))
            except TooMuch:
                pass
            except RenderingFailed as error:
                if "range" not in str(error):
                    raise

        return render

    return [rendering(size) for size in sizes]


def calls_of(render: Callable[[], None]) -> int:
    profile = cProfile.Profile()
    profile.runcall(render)
    return sum(entry.callcount for entry in profile.getstats())


def took_ms(render: Callable[[], None], times: int = 3) -> float:
    best = float("inf")
    for _ in range(times):
        began = time.thread_time()
        render()
        best = min(best, time.thread_time() - began)
    return best * 1e3


def main() -> None:
    given = values()
    worst: dict[str, tuple[float, int]] = {}
    for what, source in WORST.items():
        every = renderings(source, given)
        worst[what] = max(took_ms(one) for one in every), max(calls_of(one) for one in every)
    for what, (ms, calls) in sorted(worst.items(), key=lambda pair: -pair[1][0]):
        verdict = "" if ms <= BLOCKED_MAX_MS else f"   more than {BLOCKED_MAX_MS:g}"
        print(f"{what:>16}: {ms:8.2f} ms, {calls:8,} calls at worst{verdict}")


if __name__ == "__main__":
    main()
