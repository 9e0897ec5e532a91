"""A reader of the words of a template's tag."""

from __future__ import annotations

from perdure.models.graphs.jinja.budget import SyntaxWrong
from perdure.models.graphs.jinja.lexer import Word, line_of


class WordReader:
    """Reads the words of one tag, from the left."""

    def __init__(self, source: str, words: list[Word]) -> None:
        self.source = source
        self._words = words
        self._at = 0

    @property
    def next(self) -> Word:
        return self._words[self._at]

    def take(self) -> Word:
        word = self._words[self._at]
        if word.kind != "end":
            self._at += 1
        return word

    def is_op(self, *texts: str) -> bool:
        return self.next.kind == "op" and self.next.text in texts

    def is_name(self, *texts: str) -> bool:
        return self.next.kind == "name" and self.next.text in texts

    def skip_op(self, text: str) -> bool:
        if self.is_op(text):
            self._at += 1
            return True
        return False

    def skip_name(self, text: str) -> bool:
        if self.is_name(text):
            self._at += 1
            return True
        return False

    def need_op(self, text: str) -> None:
        if not self.skip_op(text):
            raise self.wrong(f"{text!r} is expected")

    def need_name(self, text: str | None = None) -> str:
        if self.next.kind != "name" or (text is not None and self.next.text != text):
            raise self.wrong("a name is expected" if text is None else f"{text!r} is expected")
        return self.take().text

    def need_end(self) -> None:
        if self.next.kind != "end":
            raise self.wrong("nothing more is expected")

    def wrong(self, why: str) -> SyntaxWrong:
        word = self.next
        found = "the end of the tag" if word.kind == "end" else repr(word.text[:40])
        return SyntaxWrong(f"line {line_of(self.source, word.begin)}: {why}, and there is {found}")


__all__ = ["WordReader"]
