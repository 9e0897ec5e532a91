"""A template. Its statements are compiled to functions that write to a frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from perdure.models.graphs.jinja.budget import DEPTH_MAX, Frame, RenderingFailed, SyntaxWrong
from perdure.models.graphs.jinja.expressions import Expression, Names, Words, called
from perdure.models.graphs.jinja.lexer import Tag, line_of, tags_of
from perdure.models.graphs.jinja.values import Fields, Function, items_in, need, text_of, truth

Statement = Callable[[Frame, list[str]], None]
CHARS_MAX: Final = 100_000  # characters of a source
_NESTING_MAX: Final = 40  # the nesting of statements
_FOLLOWING: Final = {
    "for": ("else", "endfor"),
    "if": ("elif", "else", "endif"),
    "else": ("endfor", "endif"),
    "macro": ("endmacro",),
    "call": ("endcall",),
    "set": ("endset",),
    "with": ("endwith",),
    "filter": ("endfilter",),
    "block": ("endblock",),
    "autoescape": ("endautoescape",),
}
_KNOWN: Final = "block, break, call, continue, do, filter, for, if, macro, raw, set, with"


class _Leave(Exception):
    """`break` and `continue`."""

    def __init__(self, *, is_break: bool) -> None:
        self.is_break = is_break


class Compiled:
    """A template that can be rendered. `names` are the paths whose values it needs."""

    __slots__ = ("_statements", "names")

    def __init__(self, source: str) -> None:
        """Raises SyntaxWrong."""
        if len(source) > CHARS_MAX:
            raise SyntaxWrong(f"it has {len(source):,} characters, and a template has at most {CHARS_MAX:,}")
        parsing = _Parsing(source)
        self._statements = parsing.all()
        self.names: frozenset[str] = frozenset(parsing.names.free)

    def render(self, values: Mapping[str, Any]) -> str:
        """Return the rendered text. Raises RenderingFailed."""
        frame, out = Frame(values), list[str]()
        _run(self._statements, frame, out)
        return "".join(out)


class _Parsing:
    def __init__(self, source: str) -> None:
        self._source = source
        self._tags: Iterator[Tag] = tags_of(source)
        self.names = Names()
        self._depth = 0
        self._loops = 0
        self._words: Words | None = None

    def all(self) -> list[Statement]:
        statements, _ = self._until(())
        return statements

    def _until(self, ends: tuple[str, ...]) -> tuple[list[Statement], str]:
        """Return the statements before the first of these words, and the word."""
        self._depth += 1
        if self._depth > _NESTING_MAX:
            raise SyntaxWrong(f"there are more than {_NESTING_MAX} statements inside each other")
        statements: list[Statement] = []
        for tag in self._tags:
            line = line_of(self._source, tag.begin)
            if tag.kind == "text":
                statements.append(_text(tag.words[0].value))
                continue
            self._words = words = Words(self._source, tag.words, self.names)
            if tag.kind == "show":
                shown = words.tuple_or_expression()
                words.need_end()
                statements.append(_located(_show(shown), line))
                continue
            name = words.need_name()
            if name in ends:
                self._depth -= 1
                return statements, name
            statements.append(_located(self._statement(name, words), line))
        if ends:
            raise SyntaxWrong(f"line {line_of(self._source, len(self._source))}: {' or '.join(ends)} is missing")
        self._depth -= 1
        return statements, ""

    def _statement(self, name: str, words: Words) -> Statement:
        match name:
            case "for":
                return self._for(words)
            case "if":
                return self._if(words)
            case "set":
                return self._set(words)
            case "with":
                return self._with(words)
            case "macro":
                return self._macro(words)
            case "call":
                return self._call(words)
            case "filter":
                return self._filter(words)
            case "do":
                value = words.expression()
                words.need_end()
                return lambda frame, _: need(value(frame)) and None
            case "break" | "continue" if self._loops:
                words.need_end()
                return _leave(is_break=name == "break")
            case "block" | "autoescape":
                words.need_name() if name == "block" else words.expression()
                words.need_end()
                return _scoped(self._body(name))
            case _:
                raise words.wrong(f"{name!r} is no statement here; there are {_KNOWN}")

    def _body(self, name: str) -> list[Statement]:
        """Return the statements between a statement and its end tag. These statements have names of their own."""
        self.names.enter()
        statements, _ = self._until(_FOLLOWING[name])
        if name == "block" and self._words is not None and self._words.next.kind == "name":
            self._words.take()
        self._end()
        self.names.leave()
        return statements

    def _end(self) -> None:
        assert self._words is not None
        self._words.need_end()

    def _targets(self, words: Words) -> list[str]:
        has_bracket = words.skip_op("(")
        found = [words.need_name()]
        while words.skip_op(",") and words.next.kind == "name":
            found.append(words.need_name())
        if has_bracket:
            words.need_op(")")
        return found

    def _for(self, words: Words) -> Statement:
        targets = self._targets(words)
        words.need_name("in")
        # The condition sees the loop's targets, but the list does not. An `if` after the list belongs to the loop.
        items = words.without_choice()
        self.names.enter()
        for target in (*targets, "loop"):
            self.names.define(target)
        condition = words.expression() if words.skip_name("if") else None
        is_recursive = words.skip_name("recursive")
        words.need_end()
        self._loops += 1
        body, end = self._until(_FOLLOWING["for"])
        self._loops -= 1
        self._end()
        self.names.leave()
        otherwise: list[Statement] = []
        if end == "else":
            otherwise, end = self._until(("endfor",))
            self._end()
        return _loop(items, targets, condition, body, otherwise, is_recursive=is_recursive)

    def _if(self, words: Words) -> Statement:
        choices: list[tuple[Expression | None, list[Statement]]] = []
        condition: Expression | None = words.expression()
        words.need_end()
        while True:
            body, end = self._until(_FOLLOWING["if"] if condition is not None else ("endif",))
            choices.append((condition, body))
            assert self._words is not None
            if end == "elif":
                condition = self._words.expression()
            elif end == "else":
                condition = None
            self._end()
            if end == "endif":
                return _chosen(choices)

    def _set(self, words: Words) -> Statement:
        targets = self._targets(words)
        field = words.need_name() if len(targets) == 1 and words.skip_op(".") else None
        if words.skip_op("="):
            value = words.tuple_or_expression()
            words.need_end()
        else:
            value = self._captured(words)
        if field is not None:
            self.names.use(targets)
            return _set_field(targets[0], field, value)
        for target in targets:
            self.names.define(target)
        return lambda frame, _: _assign(frame.scopes[-1], targets, need(value(frame)), frame)

    def _captured(self, words: Words) -> Expression:
        """Return the text that is written up to the end of the block. If there are filters, apply them to the text."""
        value, put = _held()
        while words.skip_op("|"):
            value = words.filtered(value)
        words.need_end()
        body = self._body("set")
        return lambda frame: put(frame, _written(body, frame), value)

    def _with(self, words: Words) -> Statement:
        pairs: list[tuple[list[str], Expression]] = []
        self.names.enter()
        while words.next.kind != "end":
            targets = self._targets(words)
            words.need_op("=")
            pairs.append((targets, words.expression()))
            for target in targets:
                self.names.define(target)
            words.skip_op(",")
        body = self._body("with")
        self.names.leave()

        def run(frame: Frame, out: list[str]) -> None:
            scope: dict[str, Any] = {}
            frame.scopes.append(scope)
            try:
                for targets, value in pairs:
                    _assign(scope, targets, need(value(frame)), frame)
                _run(body, frame, out)
            finally:
                frame.scopes.pop()

        return run

    def _parameters(self, words: Words) -> list[tuple[str, Expression | None]]:
        found: list[tuple[str, Expression | None]] = []
        words.need_op("(")
        while not words.skip_op(")"):
            name = words.need_name()
            found.append((name, words.expression() if words.skip_op("=") else None))
            if not words.skip_op(","):
                words.need_op(")")
                break
        return found

    def _function(self, name: str, words: Words, parameters: list[tuple[str, Expression | None]]) -> Any:
        words.need_end()
        self.names.enter()
        for parameter, _ in (*parameters, ("caller", None), ("varargs", None), ("kwargs", None)):
            self.names.define(parameter)
        loops, self._loops = self._loops, 0
        body = self._body("macro" if name != "caller" else "call")
        self._loops = loops
        self.names.leave()
        return lambda frame: _macro(name, parameters, body, list(frame.scopes))

    def _macro(self, words: Words) -> Statement:
        name = words.need_name()
        self.names.define(name)
        make = self._function(name, words, self._parameters(words))
        return lambda frame, _: frame.scopes[-1].__setitem__(name, make(frame))

    def _call(self, words: Words) -> Statement:
        parameters = self._parameters(words) if words.is_op("(") else []
        name = words.need_name()
        self.names.use([name])
        given, named = words.arguments()
        make = self._function("caller", words, parameters)

        def run(frame: Frame, out: list[str]) -> None:
            function = frame.find(name, None)
            if not isinstance(function, Function):
                raise RenderingFailed(f"{name!r} is no macro", variable=name)
            options = {key: value(frame) for key, value in named.items()}
            text = called(frame, function, [one(frame) for one in given], {**options, "caller": make(frame)})
            frame.write(out, text_of(frame, text))

        return run

    def _filter(self, words: Words) -> Statement:
        value, put = _held()
        value = words.filtered(value)
        while words.skip_op("|"):
            value = words.filtered(value)
        words.need_end()
        body = self._body("filter")
        return lambda frame, out: frame.write(out, text_of(frame, put(frame, _written(body, frame), value)))


# The functions that compiled statements call.


def _run(statements: list[Statement], frame: Frame, out: list[str]) -> None:
    frame.depth += 1
    if frame.depth > DEPTH_MAX:
        raise RenderingFailed(f"there are more than {DEPTH_MAX} statements inside each other, those of macros included")
    for statement in statements:
        statement(frame, out)
    frame.depth -= 1


def _located(statement: Statement, line: int) -> Statement:
    def located(frame: Frame, out: list[str]) -> None:
        frame.left -= 1
        if frame.left < 0:
            frame.spend(0)
        try:
            statement(frame, out)
        except RenderingFailed as error:
            if not error.line:
                error.line = line
            raise
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise RenderingFailed(str(error), line=line) from error

    return located


def _text(text: str) -> Statement:
    return lambda frame, out: frame.write(out, text)


def _show(value: Expression) -> Statement:
    return lambda frame, out: frame.write(out, text_of(frame, value(frame)))


def _leave(*, is_break: bool) -> Statement:
    def leave(_: Frame, __: list[str]) -> None:
        raise _Leave(is_break=is_break)

    return leave


def _written(statements: list[Statement], frame: Frame) -> str:
    """Return the text that statements write, without adding it to the output."""
    out: list[str] = []
    frame.scopes.append({})
    try:
        _run(statements, frame, out)
    finally:
        frame.scopes.pop()
    # The characters count only when the text is shown. The steps for writing the text are already spent.
    frame.chars_left += sum(map(len, out))
    return "".join(out)


def _held() -> tuple[Expression, Callable[[Frame, str, Expression], Any]]:
    """Return a placeholder for the text of a block, and a function that fills it. The text is known only after the
    block has run.
    """
    name = " captured"  # a name that no source can contain

    def put(frame: Frame, text: str, value: Expression) -> Any:
        frame.scopes.append({name: text})
        try:
            return value(frame)
        finally:
            frame.scopes.pop()

    return lambda frame: frame.find(name, ""), put


def _scoped(statements: list[Statement]) -> Statement:
    def run(frame: Frame, out: list[str]) -> None:
        frame.scopes.append({})
        try:
            _run(statements, frame, out)
        finally:
            frame.scopes.pop()

    return run


def _chosen(choices: list[tuple[Expression | None, list[Statement]]]) -> Statement:
    def chosen(frame: Frame, out: list[str]) -> None:
        for condition, body in choices:
            frame.spend(1)
            if condition is None or truth(condition(frame)):
                _run(body, frame, out)
                return

    return chosen


def _assign(scope: dict[str, Any], targets: list[str], value: Any, frame: Frame) -> None:
    if len(targets) == 1:
        scope[targets[0]] = value
        return
    parts = items_in(frame, value)
    if len(parts) != len(targets):
        raise RenderingFailed(f"there are {len(targets)} names for {len(parts)} values")
    scope.update(zip(targets, parts, strict=True))


def _set_field(name: str, field: str, value: Expression) -> Statement:
    def set_field(frame: Frame, _: list[str]) -> None:
        found = frame.find(name, None)
        if not isinstance(found, Fields) or found.name != "namespace":
            raise RenderingFailed(f"{name!r} is no namespace(…), and nothing else has fields that can be set")
        found.fields[field] = need(value(frame))

    return set_field


def _loop(
    items: Expression, targets: list[str], condition: Expression | None, body: list[Statement],
    otherwise: list[Statement], *, is_recursive: bool,
) -> Statement:  # fmt: skip
    def go_through(frame: Frame, out: list[str], found: list[Any], depth: int) -> None:
        again, nesting = None, frame.depth
        if is_recursive:

            def around(frame: Frame, given: list[Any], _: dict[str, Any]) -> str:
                inner: list[str] = []
                wanted = chosen(frame, items_in(frame, given[0] if given else []))
                go_through(frame, inner, wanted, depth + 1)
                frame.chars_left += sum(map(len, inner))
                return "".join(inner)

            again = Function("loop", around)
        for index, one in enumerate(found):
            frame.spend(2)
            scope: dict[str, Any] = {"loop": Fields("loop", _LoopFields(index, found, depth), again)}
            frame.scopes.append(scope)
            try:
                _assign(scope, targets, one, frame)
                _run(body, frame, out)
            except _Leave as leave:
                frame.depth = nesting
                if leave.is_break:
                    break
            finally:
                frame.scopes.pop()

    def chosen(frame: Frame, found: list[Any]) -> list[Any]:
        if condition is None:
            return found
        wanted = []
        for one in found:
            frame.spend(1)
            scope: dict[str, Any] = {}
            frame.scopes.append(scope)
            try:
                _assign(scope, targets, one, frame)
                if truth(condition(frame)):
                    wanted.append(one)
            finally:
                frame.scopes.pop()
        return wanted

    def loop(frame: Frame, out: list[str]) -> None:
        found = chosen(frame, items_in(frame, items(frame)))
        if found:
            go_through(frame, out, found, 1)
        else:
            _run(otherwise, frame, out)

    return loop


class _LoopFields:
    """The fields of `loop`. They are computed on demand."""

    __slots__ = ("_depth", "_index", "_items")

    def __init__(self, index: int, items: list[Any], depth: int) -> None:
        self._index = index
        self._items = items
        self._depth = depth

    def get(self, name: str, default: Any) -> Any:
        index, length = self._index, len(self._items)
        match name:
            case "index" | "index0":
                return index + (name == "index")
            case "revindex" | "revindex0":
                return length - index - (name == "revindex0")
            case "first" | "last":
                return index == (0 if name == "first" else length - 1)
            case "length":
                return length
            case "depth" | "depth0":
                return self._depth - (name == "depth0")
            case "cycle":
                return Function("cycle", lambda _, given, __: given[index % len(given)] if given else None)
            case "previtem" if index:
                return self._items[index - 1]
            case "nextitem" if index + 1 < length:
                return self._items[index + 1]
            case _:
                return default


def _macro(
    name: str, parameters: list[tuple[str, Expression | None]], body: list[Statement], scopes: list[dict[str, Any]]
) -> Function:
    names = [parameter for parameter, _ in parameters]

    def call(frame: Frame, given: list[Any], named: dict[str, Any]) -> str:
        if len(given) > len(names):
            raise RenderingFailed(f"{name!r} takes {len(names)} values, not {len(given)}")
        unknown = [key for key in named if key not in names and key != "caller"]
        if unknown:
            raise RenderingFailed(f"{name!r} has no {unknown[0]!r}")
        scope = {**dict(zip(names, given, strict=False)), **named}
        outside, frame.scopes = frame.scopes, [*scopes, scope]
        try:
            for parameter, default in parameters:
                if parameter not in scope and default is not None:
                    scope[parameter] = default(frame)
            out: list[str] = []
            _run(body, frame, out)
        finally:
            frame.scopes = outside
        frame.chars_left += sum(map(len, out))
        return "".join(out)

    return Function(name, call)
