"""What no template may do: write without end, go round without end, or overflow the stack."""

from __future__ import annotations

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
        ("{{ x" + " + 1" * 20_000 + " }}", "and a template has at most 100,000|and a tag has at most 2,000"),
        ("{{ x" + "+1" * 20_000 + " }}", "has 40,007 characters, and a tag has at most 2,000"),
        ("{{ x" + "|e" * 20_000 + " }}", "and a tag has at most 2,000"),
        ("{% if x" + ".x" * 20_000 + " %}{% endif %}", "and a tag has at most 2,000"),
        ("{% if x %}" + "{% elif x %}" * 3_000 + "{% endif %}", "it has 3,000 times elif"),
        ("{{ " + "(" * 900 + "x" + ")" * 900 + " }}", "exceeds maximum recursion"),
    ],
)
def test_a_source_that_is_too_much_is_refused_when_the_graph_is_built(source: str, why: str) -> None:
    with pytest.raises(InvalidDefinition, match=why) as refused:
        rendered(source, x=1)
    assert str(refused.value).startswith("graph 'g', node 'n', prompt: ")
    assert len(str(refused.value)) < 500


MANY = list(range(10_000))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{% for i in x %}" + "y" * 5_000 + "{% endfor %}", "it writes more than 4,000,000 characters"),
        ("{% for i in x %}{{ x }}{% endfor %}", "it writes more than 4,000,000 characters"),
        ("{% for i in x %}{{ x|tojson }}{% endfor %}", "it writes more than 4,000,000 characters"),
        ("{% for i in x %}{{ x|tojson|length }}{% endfor %}", "it writes more than 4,000,000 characters"),
        (
            "{% macro m() %}" + "y" * 5_000 + "{% endmacro %}{% for i in x %}{{ m() }}{% endfor %}",
            "it writes more than 4,000,000 characters",
        ),
        ("{{ 'y' * 50000000 }}", "it writes more than 4,000,000 characters"),
        ("{{ 'a\\nb'|indent(100000000) }}", "it writes more than 4,000,000 characters"),
        ("{{ t|replace('y', t) }}", "it writes more than 4,000,000 characters"),
        ("{{ x|slice(100000000)|list }}", "it writes more than 4,000,000 characters"),
        ("{% for i in x %}{% for j in x %}{% endfor %}{% endfor %}", "line 1: it takes more than 200,000 instructions"),
    ],
)
def test_what_takes_too_much_is_an_error_with_the_place(source: str, why: str) -> None:
    with pytest.raises(TemplateFailed) as failed:
        rendered(source, x=MANY, t="y" * 10_000)
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
    ],
)
def test_what_is_counted_is_written_as_it_was(source: str, text: str) -> None:
    assert rendered(source, x=[1, 2]) == text


def test_what_is_missing_in_a_loop_is_named_though_loops_are_counted() -> None:
    with pytest.raises(TemplateFailed, match=r"line 2: 'i\.nope' is not there") as failed:
        rendered("Ä\n{% for i in x %}ü{% for j in x %}{{ i.nope }}{% endfor %}{% endfor %}", x=[{"a": 1}])
    assert failed.value.variable == "i.nope"


def test_a_list_of_ten_thousand_is_not_too_much() -> None:
    assert len(rendered("{% for i in x %}- item {{ i }}\n{% endfor %}", x=MANY)) > 100_000


async def test_a_run_fails_at_the_node_whose_template_writes_too_much() -> None:
    graph = Graph("wordy")
    graph.node("write", artifact("page", template="{% for i in input.items %}" + "y" * 5_000 + "{% endfor %}"))
    async with Engine("memory://", workflows=[graph]) as engine:
        with pytest.raises(RunFailed, match=r"node 'write', template: it writes more than 4,000,000 characters"):
            await engine.run(graph({"items": MANY}))
