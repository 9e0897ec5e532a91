"""The lexer: it splits a template into texts and tags, and tags into words."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from perdure.models.graphs.jinja.budget import SyntaxWrong

_TAG: Final = re.compile(r"\{\{[-+]?|\{%[-+]?|\{#[-+]?")
_RAW: Final = re.compile(r"\{%[-+]?\s*raw\s*(-?)%\}")
_END_RAW: Final = re.compile(r"\{%(-?)\+?\s*endraw\s*([-+]?)%\}")
_WORD: Final = re.compile(
    r"""(?P<space>\s+)
    |(?P<float>\d[\d_]*\.\d[\d_]*(?:[eE][+-]?\d+)?|\d[\d_]*[eE][+-]?\d+)
    |(?P<int>0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+|\d[\d_]*)
    |(?P<name>[^\W\d]\w*)
    |(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    |(?P<op>\*\*|//|==|!=|<=|>=|[-+*/%~|.,:()\[\]{}=<>])""",
    re.VERBOSE | re.DOTALL,
)
_BREAK: Final = re.compile("\n")
TAG_CHARS_MAX: Final = 2_000  # not counting texts in quotes
# in all tags together; each tag counts as three more words Parsing so many words takes about 50 ms.
WORDS_MAX: Final = 10_000
_TAG_WORDS: Final = 3
_NUMBER_CHARS_MAX: Final = 400
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}


class Word(Struct, frozen=True):
    """A word of a tag. `kind` is float, int, name, string or op. After the last word comes a word of kind end."""

    kind: str
    text: str
    value: Any
    begin: int
    end: int


class Tag(Struct, frozen=True):
    """A tag: the words between {{ and }} (`kind` "show") or {% and %} ("do"). A Tag can also be a text between two
    tags. Then the text is its only word.
    """

    kind: str
    words: list[Word]
    begin: int
    end: int


def line_of(source: str, position: int) -> int:
    return bisect_left(_breaks(source), position) + 1


@lru_cache(maxsize=4)
def _breaks(source: str) -> list[int]:
    return [found.start() for found in _BREAK.finditer(source)]


def tags_of(source: str) -> Iterator[Tag]:
    """Yield the tags and texts of a template. Raises SyntaxWrong."""
    at, strip_next, count = 0, False, 0
    while True:
        found = _TAG.search(source, at)
        text = source[at:] if found is None else source[at : found.start()]
        if strip_next:
            text = text.lstrip()
        if found is not None and found[0].endswith("-"):
            text = text.rstrip()
        if text:
            yield Tag("text", [Word("string", text, text, at, at)], at, at)
        if found is None:
            return
        if found[0].startswith("{#"):
            end = source.find("#}", found.end())
            if end < 0:
                raise SyntaxWrong(f"line {line_of(source, found.start())}: a comment has no end")
            strip_next = source[end - 1] == "-" and end > found.end()
            at = end + 2
        elif raw := _RAW.match(source, found.start()):
            end_raw = _END_RAW.search(source, raw.end())
            if end_raw is None:
                raise SyntaxWrong(f"line {line_of(source, found.start())}: raw has no endraw")
            text = source[raw.end() : end_raw.start()]
            text = text.lstrip() if raw[1] else text
            text = text.rstrip() if end_raw[1] else text
            if text:
                yield Tag("text", [Word("string", text, text, at, at)], at, at)
            strip_next, at = end_raw[2] == "-", end_raw.end()
        else:
            closing = "}}" if found[0].startswith("{{") else "%}"
            words, at, strip_next = _words(source, found.end(), closing)
            count += _TAG_WORDS + len(words)
            if count > WORDS_MAX:
                where = f"line {line_of(source, found.start())}"
                raise SyntaxWrong(f"{where}: its tags have more than {WORDS_MAX:,} words; have a step make the text")
            yield Tag("show" if closing == "}}" else "do", words, found.start(), at)


def _words(source: str, at: int, closing: str) -> tuple[list[Word], int, bool]:
    words: list[Word] = []
    depth, begin, chars = 0, at, 0
    while True:
        if not depth:
            for mark in ("-", "+", ""):
                if source.startswith(mark + closing, at):
                    words.append(Word("end", closing, None, at, at))
                    return words, at + len(mark + closing), mark == "-"
        found = _WORD.match(source, at)
        if found is None:
            what = "it ends in the middle of a tag" if at >= len(source) else f"{source[at]!r} is unexpected"
            raise SyntaxWrong(f"line {line_of(source, min(at, len(source)))}: {what}")
        kind, text = str(found.lastgroup), found[0]
        chars += 2 if kind == "string" else len(text)
        if chars > TAG_CHARS_MAX:
            why = f"has more than {TAG_CHARS_MAX:,} characters, and a tag has at most so many"
            raise SyntaxWrong(f"line {line_of(source, begin)}: {source[begin - 2 : begin + 38]}… {why}")
        if text in ("{", "(", "["):
            depth += 1
        elif text in ("}", ")", "]"):
            depth -= 1
        if kind != "space":
            words.append(Word(kind, text, _value(kind, text, source, begin), at, found.end()))
        at = found.end()


def _value(kind: str, text: str, source: str, at: int) -> Any:
    if kind in ("int", "float"):
        if len(text) > _NUMBER_CHARS_MAX:
            raise SyntaxWrong(f"line {line_of(source, at)}: a number has {len(text):,} digits")
        plain = text.replace("_", "")
        if kind == "float":
            return float(plain)
        return int(plain, 0) if plain[:2].lower() in ("0x", "0b", "0o") else int(plain)
    if kind == "string":
        return _ESCAPE.sub(lambda found: _unescaped(found, source, at), text[1:-1]) if "\\" in text else text[1:-1]
    return text


def _unescaped(found: re.Match[str], source: str, at: int) -> str:
    code = found[1]
    if code[0] in "ux" and len(code) > 1:
        return chr(int(code[1:], 16))
    plain = _ESCAPES.get(code, code if code in "\\\"'/" else None)
    if plain is None:
        raise SyntaxWrong(f"line {line_of(source, at)}: \\{code} in a text means nothing")
    return plain
