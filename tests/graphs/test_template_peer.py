"""Templates beside another implementation of Jinja's language (minijinja, in Rust): both give the same text, or both an
error. tests/graphs/test_template_bounds.py has what is done otherwise here."""

from __future__ import annotations

from typing import Any

import minijinja
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.models.graphs.jinja.budget import RenderingFailed, SyntaxWrong
from perdure.models.graphs.jinja.template import Compiled

FAILED = object()
VALUES: dict[str, Any] = {
    "x": [1, "a", None, True, 1.5, {"k": "v'\"\n"}],
    "d": {"b": 1, "a": [2]},
    "s": "héllo wörld",
    "n": None,
    "f": 1.0,
    "big": 1e20,
    "t": True,
    "l": [3, 1, 2],
    "w": ["b", "A", "c"],
    "rows": [{"n": "b", "v": 1}, {"n": "a", "v": 2}],
}
PEER = minijinja.Environment(
    undefined_behavior="strict", auto_escape_callback=lambda _: False, keep_trailing_newline=True
)

SOURCES = [
    "{{ x }} {{ d }} {{ n }} {{ t }} {{ f }} {{ big }}",
    "{{ [1, 'a', none] }} {{ {'a': 1} }} {{ (1, 2) }} {{ 1_000 }} {{ 0x10 }} {{ 1e3 }}",
    "{{ 1/2 }} {{ 7//2 }} {{ 7%3 }} {{ 2**3 }} {{ 2**-1 }} {{ -2**2 }}",
    "{{ -1|abs }} {{ 1.5|round }} {{ 1.55|round(1) }}",
    "{{ s[1:3] }} {{ l[0] }} {{ l[-1] }} {{ l[::-1] }} {{ l.0 }} {{ d['b'] }} {{ x[5].k }}",
    "{% if nope %}a{% endif %}",
    "{{ nope.x }}",
    "{{ nope is defined }} {{ d.nope is defined }} {{ l[9] is defined }}",
    "{{ d.nope }}",
    "{{ nope|default('z') }} {{ d.nope|default('q') }} {{ ''|default('e', true) }}",
    "{{ nope ~ 'a' }}",
    "{{ nope|upper }}",
    "{{ 'a' ~ 1 ~ none ~ true ~ [1] }} {{ 'a' + 'b' }} {{ [1]+[2] }} {{ 'a'*3 }} {{ [1]*2 }} {{ 1 + 1.5 }}",
    "{{ 1 < 2 < 3 }} {{ 'a' < 'b' }} {{ [1] < [2] }} {{ 'a' in s }} {{ 'b' in d }} {{ 1 in l }} {{ 1 not in l }}",
    "{{ none == none }} {{ 1 == 1.0 }} {{ 1 == true }} {{ '1' == 1 }} {{ 1 and 2 }} {{ 0 or 3 }} {{ not 1 }}",
    "{{ l|sort }} {{ l|sum }} {{ l|first }} {{ l|last }} {{ l|max }} {{ l|min }} {{ l|join('-') }} {{ l|reverse }}",
    "{{ rows|map(attribute='n')|list }} {{ rows|selectattr('v','gt',1)|list }} {{ rows|sort(attribute='n') }}",
    "{{ rows|groupby('n') }} {{ rows|sum(attribute='v') }} {{ rows|map(attribute='zz', default=3)|list }}",
    "{{ w|sort }} {{ w|map('upper')|list }} {{ w|unique }} {{ 'hello world'|title }} {{ 'HELLO'|capitalize }}",
    "{{ ' a '|trim }} {{ '<a>'|escape }} {{ '<a>'|e }} {{ '<a>'|safe }} {{ 'a b'|urlencode }} {{ l|pprint }}",
    "{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{% endfor %}",
    "{% for i in l %}{{ loop.revindex }}{{ loop.cycle('a','b') }} {% endfor %}",
    "{% for k,v in d|items %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}",
    "{% for i in l if i > 1 %}{{ i }}{{ loop.index }}{% else %}none{% endfor %}",
    "{% for i in l if i > 9 %}{{ i }}{% else %}none{% endfor %}",
    "{% for i in l %}{% if i==1 %}{% continue %}{% endif %}{{ i }}{% if i == 2 %}{% break %}{% endif %}{% endfor %}",
    "{% for i in [[1,[2]],[3]] recursive %}{{ i if i is number else loop(i) }},{% endfor %}",
    "{% set a = 1 %}{% for i in l %}{% set a = 2 %}{% endfor %}{{ a }}{% if t %}{% set a = 3 %}{% endif %}{{ a }}",
    "{% set a, b = (1, 2) %}{{ a }}{{ b }}{% set z %}abc{{ 1 }}{% endset %}{{ z }}",
    "{% set z | upper %}abc{% endset %}{{ z }}{% filter upper %}abc{% endfilter %}",
    "{% with a=1, b=2 %}{{ a+b }}{% endwith %}",
    "{% set ns = namespace(a=1) %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}",
    "{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }} {{ m(1,b=3) }}",
    "{% macro m(a) %}[{{ caller(a) }}]{% endmacro %}{% call(x) m(3) %}<{{ x }}>{% endcall %}",
    "{{ 'yes' if t else 'no' }} {{ 'yes' if false else 'b' if t else 'c' }}",
    "{{ range(3) }} {{ range(1,10,3)|list }} {{ '3'|int }} {{ '3.5'|float }} {{ dict(a=1) }}",
    "{{ 1 is odd }} {{ 2 is even }} {{ 4 is divisibleby(2) }} {{ 4 is divisibleby 3 }}",
    "{{ s is string }} {{ l is iterable }} {{ nope is none }} {{ nope is string }}",
    "{{ d is mapping }} {{ n is none }} {{ 1 is number }} {{ l is sequence }} {{ 'a' is eq 'a' }} {{ 'a' is in s }}",
    "{{ not n is none }} {{ n is not none }} {{ l|length is odd }} {{ 'ab' is startingwith('a') }}",
    "{{ l|batch(2) }} {{ l|slice(2) }} {{ 'a\nb'|lines }} {{ 'a b'|split }}",
    "{{ 'abc'|list }} {{ true|string }} {{ 0|bool }} {{ n|list }}{% for i in n %}x{% else %}e{% endfor %}",
    "{{ '%s-%d'|format('a',3) }} {{ d|items }} {{ d|dictsort }} {{ l|zip(w) }} {{ 'abc'|first }} {{ 'abc'|reverse }}",
    "{{ x|select('string')|list }} {{ x|reject('none')|list|length }} {{ d|attr('b') }} {{ 5|string|length }}",
    '{{ "a\\n\\t\\u00e9" }}{% block a %}q{% endblock %}{# no #}{% raw %}{{ raw }}{% endraw %}',
    "a  {{- 1 -}}  b {%- if t -%} c {%- endif %} d\n{% if t +%} e{% endif %}\n",
    "{{ s.upper() }} {{ 'a,b'.split(',') }} {{ d.items()|list|length }} {{ ' a'.strip() }} {{ d.get('zz', 4) }}",
    "{{ 10 / 0 }}",
    "{{ 'a' - 1 }}",
    "{{ 1 + 'a' }}",
    "{{ l|nope }}",
    "{{ l is nope }}",
    "{{ s.nope }}",
    "{{ n.x }}",
    "{% include 'x' %}",
    "{% for x in 5 %}{% endfor %}",
    "{{ }}",
    "{% if %}{% endif %}",
    "{% endif %}",
    "{% for a in l %}",
    "{{ 'a }}",
    "{% nope %}",
    "{{ a b }}",
]


def by_peer(source: str) -> Any:
    try:
        return PEER.render_str(source, "peer", **VALUES)
    except minijinja.TemplateError:
        return FAILED


def by_us(source: str) -> Any:
    try:
        return Compiled(source).render(VALUES)
    except (SyntaxWrong, RenderingFailed):
        return FAILED


@pytest.mark.parametrize("source", SOURCES)
def test_both_give_the_same(source: str) -> None:
    assert by_us(source) == by_peer(source)


ATOMS = st.sampled_from(
    ["1", "2", "0", "1.5", "'a'", "'b'", "s", "l", "w", "d", "n", "t", "nope", "d.b", "l[0]", "rows"]
)


def _combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operator = st.sampled_from(["+", "-", "*", "//", "~", "==", "!=", "<", ">=", "and", "or", "in", "not in"])
    filters = ["|length", "|upper", "|first", "|list", "|default(1)", "|join('-')", "[0]"]
    suffix = st.sampled_from([*filters, " is defined", " is string", " is none"])
    return st.one_of(
        st.tuples(inner, operator, inner).map(lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"),
        st.tuples(inner, suffix).map(lambda parts: f"(({parts[0]}){parts[1]})"),
        st.tuples(inner, inner, inner).map(lambda parts: f"({parts[0]} if {parts[1]} else {parts[2]})"),
        inner.map(lambda part: f"(not {part})"),
        inner.map(lambda part: f"[{part}]"),
    )


@settings(max_examples=400)
@given(st.recursive(ATOMS, _combined, max_leaves=6))
def test_generated_expressions_give_the_same(expression: str) -> None:
    source = "{{ " + expression + " }}"
    own, peer = by_us(source), by_peer(source)
    if own is FAILED and ("nope" in expression or "[0]" in expression):
        return  # In lists and some filters, the other implementation passes over what is missing.
    assert own == peer
