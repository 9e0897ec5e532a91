"""What no template may do: write without end, go round without end, or overflow the stack."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import pytest

from perdure import Engine
from perdure.errors import InvalidDefinition, RunFailed, TemplateFailed
from perdure.graph import Graph, artifact
from perdure.models.graphs.kinds.base import Preparing
from perdure.models.graphs.templates import Template


class Empty:
    def root(self, name: str) -> Any:
        return {}


def rendered(source: str, **values: Any) -> str:
    about = Preparing("g", "n", resolve=lambda *_: None, knows=lambda _: False, input_fields=None)
    return Template(source, about, "prompt", frozenset(values)).render(values, {}, Empty())


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("x" * 200_000 + "{{ x }}", "it has 200,007 characters, and a template has at most 100,000"),
        ("{{ x" + " + 1" * 20_000 + " }}", "and a template has at most 100,000|has more than 2,000 characters"),
        ("{{ x" + "+1" * 20_000 + " }}", "has more than 2,000 characters, and a tag has at most so many"),
        ("{{ x" + "|e" * 20_000 + " }}", "has more than 2,000 characters, and a tag has at most so many"),
        ("{% if x" + ".x" * 20_000 + " %}{% endif %}", "has more than 2,000 characters, and a tag has at most so many"),
        ("{{ " + "(" * 900 + "x" + ")" * 900 + " }}", "more than 30 brackets, or the like, inside each other"),
        ("{{ " + "[" * 900 + "]" * 900 + " }}", "more than 30 brackets, or the like, inside each other"),
        ("{{ " + "-" * 500 + "x" + ".x" * 200 + " }}", "more than 100 fields, calls or filters one after the other"),
        ("{{ " + "1 if x else " * 100 + "2 }}", "more than 30 brackets, or the like, inside each other"),
        ("{{ x }}" * 14_000, "line 1: its tags have more than 10,000 words; have a step make the text"),
        (("{{ [" + "1," * 900 + "] }}\n") * 50, "line 6: its tags have more than 10,000 words"),
        ("{% if x %}" * 300 + "{% endif %}" * 300, "more than 40 statements inside each other"),
    ],
)
def test_a_source_that_is_too_much_is_refused_when_the_graph_is_built(source: str, why: str) -> None:
    with pytest.raises(InvalidDefinition, match=why) as refused:
        rendered(source, x=1)
    assert str(refused.value).startswith("graph 'g', node 'n', prompt: ")
    assert len(str(refused.value)) < 500


MANY = list(range(10_000))
WRITES = "it writes more than 4,000,000 characters"
TAKES = "it takes more than 100,000 steps"
MEMORY_MAX_BYTES = 100_000_000


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{% for i in x %}" + "y" * 5_000 + "{% endfor %}", WRITES),
        ("{% for i in x %}{{ t }}{% endfor %}", WRITES),
        ("{% for i in x %}{{ x }}{% endfor %}", TAKES),
        ("{% for i in x %}{{ x|tojson|length }}{% endfor %}", TAKES),
        ("{% macro m() %}" + "y" * 5_000 + "{% endmacro %}{% for i in x %}{{ m() }}{% endfor %}", TAKES),
        ("{% macro m() %}" + "y" * 5_000 + "{% endmacro %}{% for i in x %}{% set z = m() %}{% endfor %}", TAKES),
        ("{% for i in x %}{% for j in x %}{% endfor %}{% endfor %}", TAKES),
        # What a template keeps grows, and is never written.
        ("{% set y = t %}" + "{% set y = y ~ y %}" * 40, TAKES),
        ("{% set y = t %}" + "{% set y = y + y %}" * 40, TAKES),
        ("{% set y = x %}" + "{% set y = y + y %}" * 40, TAKES),
        ("{% set y = 'x' * 1000000000 %}", TAKES),
        ("{% set y = [1] * 1000000000 %}", TAKES),
        ("{% set n = namespace(v=t) %}{% for i in x %}{% set n.v = n.v ~ n.v %}{% endfor %}", TAKES),
        ("{% macro m(a) %}{{ m(a ~ a) }}{% endmacro %}{{ m(t) }}", TAKES),
        ("{% set y = x %}" + "{% set y = [y, y] %}" * 40 + "{{ y }}", TAKES),
        ("{% set y = x %}" + "{% set y = [y, y] %}" * 40 + "{{ y|tojson|length }}", TAKES),
        ("{% set y = x %}" + "{% set y = [y, y] %}" * 40 + "{% set z = y == y %}", TAKES),
        ("{% set y = t * 300 %}{% for i in x %}{% set z = y|upper %}{% endfor %}", TAKES),
        ("{% for i in x %}{% set z = x|sort %}{% endfor %}", TAKES),
        ("{% for i in x %}{% set z = 'z' in t %}{% endfor %}", TAKES),
        ("{% for i in x %}{% set z = -1 in x %}{% endfor %}", TAKES),
        ("{% for i in x %}{% set z = x|unique|map('string')|join(t) %}{% endfor %}", TAKES),
        ("{% set z %}{% for i in x %}{{ t }}{% endfor %}{% endset %}", WRITES),
        ("{{ ([t] * 10000)|join|length }}", TAKES),
        ("{{ 'a\\nb'|indent(100000000) }}", TAKES),
        ("{{ t|replace('y', t) }}", TAKES),
        ("{{ x|slice(100000000)|list }}", TAKES),
        ("{{ x|batch(100000000, 1)|list }}", TAKES),
        ("{{ '%1000000000d'|format(1) }}", "format does not know '%1000000000d'"),
        ("{{ 10 ** 10 ** 10 }}", "cannot be calculated"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "more than 30 calls inside each other"),
        ("{% macro m(a=m()) %}{% endmacro %}{{ m() }}", "more than 30 calls inside each other"),
    ],
)
def test_what_takes_too_much_is_an_error_with_the_place(source: str, why: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TemplateFailed) as failed:
            rendered(source, x=MANY, t="y" * 10_000)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_MAX_BYTES
    finally:
        tracemalloc.stop()
    assert str(failed.value).startswith("graph 'g', node 'n', prompt")
    assert why in str(failed.value)
    assert failed.value.place == "graph 'g', node 'n', prompt"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for i in x %}{{ i }},{% endfor %}", "1,2,"),
        ("{% for i in x -%}  \n {{ i }} {%- endfor %}", "12"),
        ("{% for i in x %}  {{- i -}}  {% endfor %}", "12"),
        ("{% for i in [] %}a{% else %}none{% endfor %}", "none"),
        ("{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(1) }}{{ m(2) }}", "<1><2>"),
        ("{% macro m() %}[{{ caller(3) }}]{% endmacro %}{% call(a) m() %}x{{ a }}{% endcall %}", "[x3]"),
        ("{% raw %}{% for %}{{ {% endraw %}{{ x }}", "{% for %}{{ [1, 2]"),
        ("{# {% for #}{{ '}}' }}{{ '%}' }}", "}}%}"),
        ("{{ 'a\\nb\\n\\nc\\n'|indent(2) }}|{{ 'a'|indent(1, true) }}", "a\n  b\n\n  c| a"),
        ("{{ 'abab'|replace('b', '-') }} {{ [1, 2, 3]|slice(2)|list }}", "a-a- [[1, 2], [3]]"),
        ("{% for i in x %}{% for j in x %}{{ i * j }}{% endfor %};{% endfor %}", "12;24;"),
        ("{{ '" + "y" * 5_000 + "'|length }}", "5000"),
        ("{% if x %}a" + "{% elif x %}b" * 300 + "{% endif %}", "a"),
        ("{{ 0" + "+1" * 900 + " }}", "900"),
    ],
)
def test_what_is_counted_is_written_as_it_was(source: str, text: str) -> None:
    assert rendered(source, x=[1, 2]) == text


@pytest.mark.parametrize(
    "filtered", ["x|tojson", "x|replace('a', 'b')", "[x]", "x|list", "'a' ~ x", "x == 1", "1 in x"]
)
def test_what_is_missing_is_missed_by_every_filter_and_operator(filtered: str) -> None:
    with pytest.raises(TemplateFailed, match=r"prompt, line 1: 'x' is not defined") as failed:
        rendered("{{ " + filtered + " }}")
    assert failed.value.variable == "x"


def test_ten_thousand_items_are_sorted_filtered_and_joined() -> None:
    text = rendered("{{ x|sort(reverse=true)|map('string')|join(',') }}", x=MANY)
    assert text == ",".join(str(number) for number in reversed(MANY))
    assert rendered("{{ x|select('even')|list|length }}", x=MANY) == "5000"


def test_what_is_missing_in_a_loop_is_named_though_loops_are_counted() -> None:
    with pytest.raises(TemplateFailed, match=r"line 2: 'i\.nope' is not defined") as failed:
        rendered("Ä\n{% for i in x %}ü{% for j in x %}{{ i.nope }}{% endfor %}{% endfor %}", x=[{"a": 1}])
    assert failed.value.variable == "i.nope"


def test_a_list_of_ten_thousand_is_not_too_much() -> None:
    assert len(rendered("{% for i in x %}- item {{ i }}\n{% endfor %}", x=MANY)) > 100_000


async def test_a_run_fails_at_the_node_whose_template_writes_too_much() -> None:
    graph = Graph("wordy")
    graph.node("write", artifact("page", template="{% for i in input.items %}" + "y" * 5_000 + "{% endfor %}"))
    async with Engine("memory://", workflows=[graph]) as engine:
        with pytest.raises(RunFailed, match=r"'write', template, line 1: it writes more than 4,000,000"):
            await engine.run(graph({"items": MANY}))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{{ t|trim('b' * 20000 ~ w) }}", TAKES),
        ("{{ t.lstrip(w) }}", TAKES),
        ("{{ t.rstrip(w) }}", TAKES),
        ("{% set p = 'a.' * 1000 %}{{ x|map(attribute=p, default=0)|length }}", "at most 1,000 characters, not 2,000"),
        ("{% set p = 'a.' * 1000 %}{{ x|selectattr(p, 'undefined')|length }}", "at most 1,000 characters, not 2,000"),
        ("{% set p = 'a.' * 1000 %}{{ x|sum(attribute=p) }}", "at most 1,000 characters, not 2,000"),
        ("{% set p = 'a.' * 1000 %}{{ {}|attr(p) }}", "at most 1,000 characters, not 2,000"),
        ("{% set p = 'a.' * 400 %}{{ x|map(attribute=p, default=0)|length }}", TAKES),
        ("{{ ('a' * 3000000)|title|length }}", TAKES),
        ("{{ ('ü' * 3000000)|urlencode|length }}", TAKES),
        ("{{ {'a': 'ü' * 3000000}|urlencode|length }}", TAKES),
        ("{{ ('\"' * 3000000)|escape|length }}", TAKES),
        ("{{ ('\\r' * 1000000).splitlines()|length }}", TAKES),
        ("{{ ('\\u2028' * 1000000)|lines|length }}", TAKES),
        ("{{ ('a\\t' * 1000000)|split|length }}", TAKES),
        ("{{ ('a\\t' * 1000000)|wordcount }}", TAKES),
        ("{{ ('a,' * 1000000).split(',')|length }}", TAKES),
        ("{{ ('\\n' * 1000000)|indent(0)|length }}", TAKES),
        ("{{ ('%%' * 1000000)|format|length }}", TAKES),
        ("{% set n = '1' * 1000000 %}{% for i in x %}{% set z = n|float %}{% endfor %}", TAKES),
        ("{% set d = dict(a) %}{% for i in x %}{% set z = d|first %}{% endfor %}", TAKES),
    ],
)
def test_a_filter_pays_before_it_does_its_work(source: str, why: str) -> None:
    """So it takes neither the time nor the memory."""
    wide = "".join(map(chr, range(0x4E00, 0x9000)))
    tracemalloc.start()
    try:
        with pytest.raises(TemplateFailed, match=why):
            rendered(source, x=MANY, t="y" * 10_000, w=wide, a={str(number): 1 for number in MANY})
        assert tracemalloc.get_traced_memory()[1] < MEMORY_MAX_BYTES // 3
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "{{ 'xxabcxx'|trim('xy') }} {{ 'xxaxx'.lstrip('xxx') }} {{ 'xxaxx'.rstrip('x') }} {{ ' a '|trim }}",
            "abc axx xxa a",
        ),
        ("{{ 'a b\tc\\nd'|split }} {{ 'a b c'.split(' ', 1) }}", "['a', 'b', 'c', 'd'] ['a', 'b c']"),
        ("{{ 'a,b,c'|split(',') }} {{ 'abc'|split('') }}", "['a', 'b', 'c'] ['a', 'b', 'c']"),
        ("{{ 'a\\r\\nb\\u2028c'|lines }}", "['a', 'b', 'c']"),
        ("{{ 'abcab'.rfind('ab') }} {{ 'abc'.rfind('x') }} {{ 'abc'.rfind('') }} {{ 'abcab'.find('b') }}", "3 -1 3 1"),
        ("{{ 'aXb-cD'|title }} {{ 'a b/ü'|urlencode }} {{ {'a': 'b&c'}|urlencode }}", "Axb-Cd a%20b/%C3%BC a=b%26c"),
        ("{{ '<a href=\"b\">'|e }} {{ '%.2f %s%%'|format(1.234, 'a') }}", "&lt;a href=&quot;b&quot;&gt; 1.23 a%"),
        ("{{ [{'a': {'b': 1}}, {}]|map(attribute='a.b', default=0)|list }}", "[1, 0]"),
        ("{{ {'a': 1, 'b': 2}|first }} {{ {'a': 1, 'b': 2}|last }} {{ '1.5'|float }}", "a b 1.5"),
    ],
)
def test_filters_of_texts_do_what_they_did(source: str, text: str) -> None:
    assert rendered(source) == text


# A search that compares the part at each place takes half a minute for these, and a linear one some milliseconds.
def test_a_search_from_the_end_takes_linear_time() -> None:
    begun = time.process_time()
    assert rendered("{{ t.rfind('ab' ~ 'a' * 300000) }}", t="a" * 600_000) == "-1"
    assert time.process_time() - begun < 10


@pytest.mark.parametrize(
    "source", ["t.find(p)", "t.rfind(p)", "t.count(p)", "p in t", "t|replace(p, '')", "t.split(p)"]
)
def test_a_search_in_a_short_text_pays_for_the_product_of_both_lengths(source: str) -> None:
    """CPython compares the part at each place of a short text."""
    with pytest.raises(TemplateFailed, match=TAKES):
        rendered(
            "{% for i in range(1000) %}{% set z = " + source + " %}{% endfor %}",
            t="a" * 2_400,
            p="a" * 600 + "b" + "a" * 600,
        )


class Loud(list[int]):
    """A list that counts how often it was written whole."""

    written = 0

    def __repr__(self) -> str:
        Loud.written += 1
        return "loud"


@pytest.mark.parametrize("source", ["{{ x|int(0) }}", "{{ x|float(0) }}"])
def test_a_default_is_taken_without_writing_what_it_stands_for(source: str) -> None:
    """To write a large value for a message that nobody reads took milliseconds, for one step."""
    Loud.written = 0
    assert rendered(source, x=Loud([1])) in ("0", "0.0")
    assert Loud.written == 0


@pytest.mark.parametrize("source", ["{{ x|int }}", "{{ 'a'|indent(x) }}", "{{ 'a'[x:] }}"])
def test_an_error_shows_the_beginning_of_a_value_only(source: str) -> None:
    x = [["a" * 1_000_000] * 10, Loud([1])]
    Loud.written = 0
    with pytest.raises(TemplateFailed) as failed:
        rendered(source, x=x)
    assert len(str(failed.value)) < 1_000
    assert Loud.written == 0
