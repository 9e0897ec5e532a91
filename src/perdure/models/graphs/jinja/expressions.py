"""Expressions of templates. They are parsed from words, and compiled to functions of a frame.

Chains of operators do not nest, and the nesting of brackets is bounded. So no source overflows the stack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from perdure.models.graphs.jinja.budget import CALLS_DEPTH_MAX, Frame, RenderingFailed, SyntaxWrong, Undefined
from perdure.models.graphs.jinja.filters import FILTERS, FUNCTIONS, METHODS, TESTS
from perdure.models.graphs.jinja.lexer import Word, line_of
from perdure.models.graphs.jinja.values import (
    MISSING,
    Fields,
    Function,
    attribute,
    calculated,
    concatenated,
    cut,
    equal,
    is_in,
    is_less,
    item,
    need,
    negated,
    truth,
)
from perdure.models.graphs.jinja.words import WordReader

Expression = Callable[[Frame], Any]
DEPTH_MAX: Final = 30
_POSTFIX_MAX: Final = 100  # how many fields, calls, filters and tests may follow one after the other
_CONSTANTS: Final = {"true": True, "True": True, "false": False, "False": False, "none": None, "None": None}
_COMPARED: Final = ("==", "!=", "<", "<=", ">", ">=")
_SUMS: Final = ("+", "-")
_PRODUCTS: Final = ("*", "/", "//", "%")
# One step is the time that reading a variable takes. bench/templates.py compares other costs with it.
_STEPS_PER_FILTER: Final = 3
_STEPS_PER_CALL: Final = 5


class Names:
    """The names that a template uses and does not define itself, as paths such as `nodes.plan.output`."""

    def __init__(self) -> None:
        self.free: set[str] = set()
        self._defined: list[set[str]] = [set()]

    def enter(self) -> None:
        self._defined.append(set())

    def leave(self) -> None:
        self._defined.pop()

    def define(self, name: str) -> None:
        self._defined[-1].add(name)

    def use(self, path: list[str]) -> None:
        if not any(path[0] in names for names in self._defined) and path[0] not in FUNCTIONS:
            self.free.add(".".join(path))


class Words(WordReader):
    """Parses the expressions of one tag, from the left."""

    def __init__(self, source: str, words: list[Word], names: Names) -> None:
        super().__init__(source, words)
        self.names = names
        self._depth = 0

    def expression(self) -> Expression:
        """Parse an expression. It may be of the form `a if b else c`."""
        self._deeper()
        value = self._or()
        if self.skip_name("if"):
            condition = self._or()
            other = self.expression() if self.skip_name("else") else _constant("")
            value = _choice(condition, value, other)
        self._depth -= 1
        return value

    def without_choice(self) -> Expression:
        """Parse an expression up to an `if` that belongs to the statement around the expression."""
        return self._or()

    def tuple_or_expression(self) -> Expression:
        first = self.expression()
        if not self.is_op(","):
            return first
        parts = [first]
        while self.skip_op(",") and self.next.kind != "end" and not self.is_op(")"):
            parts.append(self.expression())
        return _list(parts, tuple)

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self.wrong(f"there are more than {DEPTH_MAX} brackets, or the like, inside each other")

    def _or(self) -> Expression:
        parts = [self._and()]
        while self.skip_name("or"):
            parts.append(self._and())
        return parts[0] if len(parts) == 1 else _any(parts)

    def _and(self) -> Expression:
        parts = [self._not()]
        while self.skip_name("and"):
            parts.append(self._not())
        return parts[0] if len(parts) == 1 else _all(parts)

    def _not(self) -> Expression:
        count = 0
        while self.skip_name("not"):
            count += 1
        value = self._comparison()
        if not count:
            return value
        wanted = count % 2 == 0
        return lambda frame: truth(value(frame)) is wanted

    def _comparison(self) -> Expression:
        first = self._sum()
        rest: list[tuple[str, Expression]] = []
        while True:
            if self.is_op(*_COMPARED):
                operator = self.take().text
            elif self.skip_name("in"):
                operator = "in"
            elif self.is_name("not") and self._words[self._at + 1].text == "in":
                self._at += 2
                operator = "not in"
            else:
                return _compared(first, rest) if rest else first
            rest.append((operator, self._sum()))

    def _sum(self) -> Expression:
        return self._chain(self._concatenation, _SUMS)

    def _concatenation(self) -> Expression:
        parts = [self._product()]
        while self.skip_op("~"):
            parts.append(self._product())
        if len(parts) == 1:
            return parts[0]
        return lambda frame: concatenated(frame, [need(part(frame)) for part in parts])

    def _product(self) -> Expression:
        return self._chain(self._power, _PRODUCTS)

    def _power(self) -> Expression:
        return self._chain(self._unary, ("**",))

    def _chain(self, operand: Callable[[], Expression], operators: tuple[str, ...]) -> Expression:
        first = operand()
        rest: list[tuple[str, Expression]] = []
        while self.is_op(*operators):
            rest.append((self.take().text, operand()))
        return _calculated(first, rest) if rest else first

    def _unary(self) -> Expression:
        begin, signs = self.next.begin, 0
        while self.is_op("-", "+"):
            signs += self.take().text == "-"
        value, path = self._primary()
        value = self._postfix(value, path, self.next.begin if signs else begin, is_bare=bool(signs))
        if signs:
            inner, is_negative = value, signs % 2 == 1
            value = lambda frame: negated(inner(frame)) if is_negative else need(inner(frame))  # noqa: E731
            value = self._postfix(value, None, begin)
        return value

    def _primary(self) -> tuple[Expression, list[str] | None]:
        word = self.next
        if word.kind in ("string", "int", "float"):
            self.take()
            text = word.value
            while word.kind == "string" and self.next.kind == "string":
                text += self.take().value
            return _constant(text), None
        if word.kind == "name":
            self.take()
            if word.text in _CONSTANTS:
                return _constant(_CONSTANTS[word.text]), None
            return _variable(word.text, line_of(self.source, word.begin)), [word.text]
        if self.skip_op("("):
            return self._brackets(), None
        if self.skip_op("["):
            return _list(self._list_until("]"), list), None
        if self.skip_op("{"):
            return self._object(), None
        raise self.wrong("a value is expected")

    def _brackets(self) -> Expression:
        if self.skip_op(")"):
            return _constant(())
        value = self.tuple_or_expression()
        self.need_op(")")
        return value

    def _list_until(self, closing: str) -> list[Expression]:
        parts: list[Expression] = []
        while not self.skip_op(closing):
            parts.append(self.expression())
            if not self.skip_op(","):
                self.need_op(closing)
                break
        return parts

    def _object(self) -> Expression:
        pairs: list[tuple[Expression, Expression]] = []
        while not self.skip_op("}"):
            key = self.expression()
            self.need_op(":")
            pairs.append((key, self.expression()))
            if not self.skip_op(","):
                self.need_op("}")
                break
        return _object(pairs)

    def _postfix(self, value: Expression, path: list[str] | None, begin: int, *, is_bare: bool = False) -> Expression:
        """Parse the fields, calls, filters and tests after a value. `path` is the path that names the value, or None if
        the value has no path.
        """
        line = line_of(self.source, begin)
        for _ in range(_POSTFIX_MAX):
            if self.skip_op("."):
                name = str(self.take().value) if self.next.kind == "int" else self.need_name()
                if self.is_op("("):
                    self._used([*path, name] if path else None)
                    path = None
                    value = self._method(value, name, begin, line)
                    continue
                path = [*path, name] if path else None
                value = _field(value, name, self._since(begin), line)
            elif self.skip_op("["):
                self._used(path)
                path = None
                value = self._item(value, begin, line)
            elif self.is_op("("):
                self._used(path)
                path = None
                value = _call(value, *self.arguments(), self._since(begin), line)
            elif is_bare:
                self._used(path)
                return value
            elif self.skip_op("|"):
                self._used(path)
                path = None
                value = self.filtered(value)
            elif self.skip_name("is"):
                self._used(path)
                path = None
                value = self._test(value)
            else:
                self._used(path)
                return value
        raise self.wrong(f"there are more than {_POSTFIX_MAX} fields, calls or filters one after the other")

    def _used(self, path: list[str] | None) -> None:
        if path:
            self.names.use(path)

    def _since(self, begin: int) -> str:
        return self.source[begin : self._words[self._at - 1].end][:100]

    def _item(self, value: Expression, begin: int, line: int) -> Expression:
        parts: list[Expression | None] = [None]
        while not self.skip_op("]"):
            if self.skip_op(":"):
                parts.append(None)
            else:
                parts[-1] = self.expression()
                if not self.is_op(":"):
                    self.need_op("]")
                    break
        if len(parts) > 3 or parts == [None]:
            raise self.wrong("an index is expected")
        if len(parts) == 1:
            assert parts[0] is not None
            return _indexed(value, parts[0], self._since(begin), line)
        bounds = [*parts, None][:3]
        return lambda frame: cut(frame, value(frame), [part and part(frame) for part in bounds])

    def arguments(self) -> tuple[list[Expression], dict[str, Expression]]:
        given: list[Expression] = []
        named: dict[str, Expression] = {}
        self.need_op("(")
        while not self.skip_op(")"):
            if self.next.kind == "name" and self._words[self._at + 1].text == "=":
                name = self.take().text
                self.take()
                named[name] = self.expression()
            elif named:
                raise self.wrong("values with a name come last")
            else:
                given.append(self.expression())
            if not self.skip_op(","):
                self.need_op(")")
                break
        return given, named

    def _method(self, value: Expression, name: str, begin: int, line: int) -> Expression:
        given, named = self.arguments()
        return _method_call(value, name, given, named, self._since(begin), line)

    def filtered(self, value: Expression) -> Expression:
        """Parse a filter, beginning with its name, and apply it to a value."""
        name = self.need_name()
        if name not in FILTERS:
            raise SyntaxWrong(f"line {line_of(self.source, self.next.begin)}: there is no filter {name!r}")
        given, named = self.arguments() if self.is_op("(") else ([], {})
        return _applied(FILTERS[name], f"the filter {name!r}", value, given, named)

    def _test(self, value: Expression) -> Expression:
        is_negative = self.skip_name("not")
        name = self.take().text
        if name not in TESTS:
            raise SyntaxWrong(f"line {line_of(self.source, self.next.begin)}: there is no test {name!r}")
        given: list[Expression] = []
        if self.is_op("("):
            given, _ = self.arguments()
        elif self.next.kind in ("int", "float", "string", "name") and not self.is_name(
            "and", "or", "is", "if", "else", "not", "in", "recursive"
        ):
            primary, path = self._primary()
            given = [self._postfix(primary, path, self.next.begin, is_bare=True)]
        elif self.is_op("[", "{"):
            given = [self._primary()[0]]
        test = _applied(TESTS[name], f"the test {name!r}", value, given, {})
        return (lambda frame: not test(frame)) if is_negative else test


# The functions that compiled expressions call.


def _constant(value: Any) -> Expression:
    return lambda _: value


def _variable(name: str, line: int) -> Expression:
    missing, function = Undefined(name, line), FUNCTIONS.get(name)

    def variable(frame: Frame) -> Any:
        frame.left -= 1
        if frame.left < 0:
            frame.spend(0)
        for scope in reversed(frame.scopes):
            if name in scope:
                return scope[name]
        return missing if function is None else function

    return variable


def _field(of: Expression, name: str, source: str, line: int) -> Expression:
    missing = Undefined(source, line)

    def field(frame: Frame) -> Any:
        frame.spend(1)
        value = need(of(frame))
        found = item(value, int(name)) if name.isdigit() else attribute(value, name)
        return missing if found is MISSING else found

    return field


def _indexed(of: Expression, key: Expression, source: str, line: int) -> Expression:
    missing = Undefined(source, line)

    def indexed(frame: Frame) -> Any:
        frame.spend(1)
        found = item(need(of(frame)), key(frame))
        return missing if found is MISSING else found

    return indexed


def _list(parts: list[Expression], kind: Callable[[list[Any]], Any]) -> Expression:
    def made(frame: Frame) -> Any:
        frame.spend(1 + len(parts))
        return kind([need(part(frame)) for part in parts])

    return made


def _object(pairs: list[tuple[Expression, Expression]]) -> Expression:
    def made(frame: Frame) -> dict[Any, Any]:
        frame.spend(1 + 2 * len(pairs))
        found: dict[Any, Any] = {}
        for key, value in pairs:
            name = need(key(frame))
            if not isinstance(name, str | int | float | bool | None):
                raise RenderingFailed("a key is a text or a number")
            found[name] = need(value(frame))
        return found

    return made


def _choice(condition: Expression, yes: Expression, no: Expression) -> Expression:
    def choice(frame: Frame) -> Any:
        frame.spend(1)
        return yes(frame) if truth(condition(frame)) else no(frame)

    return choice


def _any(parts: list[Expression]) -> Expression:
    def any_of(frame: Frame) -> Any:
        value: Any = None
        for part in parts:
            frame.spend(1)
            value = part(frame)
            if truth(value):
                break
        return value

    return any_of


def _all(parts: list[Expression]) -> Expression:
    def all_of(frame: Frame) -> Any:
        value: Any = None
        for part in parts:
            frame.spend(1)
            value = part(frame)
            if not truth(value):
                break
        return value

    return all_of


def _compared(first: Expression, rest: list[tuple[str, Expression]]) -> Expression:
    def compared(frame: Frame) -> bool:
        left = need(first(frame))
        for operator, operand in rest:
            frame.spend(1)
            right = need(operand(frame))
            if not _holds(frame, operator, left, right):
                return False
            left = right
        return True

    return compared


def _holds(frame: Frame, operator: str, left: Any, right: Any) -> bool:
    match operator:
        case "==":
            return equal(frame, left, right)
        case "!=":
            return not equal(frame, left, right)
        case "<":
            return is_less(frame, left, right)
        case ">":
            return is_less(frame, right, left)
        case "<=":
            return not is_less(frame, right, left)
        case ">=":
            return not is_less(frame, left, right)
        case "in":
            return is_in(frame, left, right)
        case _:
            return not is_in(frame, left, right)


def _calculated(first: Expression, rest: list[tuple[str, Expression]]) -> Expression:
    def value(frame: Frame) -> Any:
        left = first(frame)
        for operator, operand in rest:
            frame.spend(1)
            left = calculated(frame, operator, left, operand(frame))
        return left

    return value


def _call(of: Expression, given: list[Expression], named: dict[str, Expression], source: str, line: int) -> Expression:
    def call(frame: Frame) -> Any:
        function = of(frame)
        if isinstance(function, Undefined):
            raise RenderingFailed(f"{function.source!r} is not defined", line=line, variable=function.source)
        if isinstance(function, Fields):
            function = function.call
        if not isinstance(function, Function):
            raise RenderingFailed(f"{source!r} calls what is no function", line=line)
        return called(frame, function, [one(frame) for one in given], {name: one(frame) for name, one in named.items()})

    return call


def called(frame: Frame, function: Function, given: list[Any], named: dict[str, Any]) -> Any:
    """Call a function. Raises RenderingFailed."""
    frame.spend(_STEPS_PER_CALL)
    frame.calls += 1
    if frame.calls > CALLS_DEPTH_MAX:
        raise RenderingFailed(f"there are more than {CALLS_DEPTH_MAX} calls inside each other")
    try:
        return function.call(frame, given, named)
    except TypeError as error:
        raise _misfit(f"{function.name!r}", error) from None
    finally:
        frame.calls -= 1


def _method_call(
    of: Expression, name: str, given: list[Expression], named: dict[str, Expression], source: str, line: int
) -> Expression:
    function_of = _field(of, name, source, line)

    def call(frame: Frame) -> Any:
        value = need(of(frame))
        if isinstance(value, Fields):
            return _call(function_of, given, named, source, line)(frame)
        for kind, methods in METHODS.items():
            if isinstance(value, kind) and name in methods:
                return _applied(methods[name], f"{name!r}", lambda _: value, given, named)(frame)
        raise RenderingFailed(f"{source!r} calls what is no function", line=line)

    return call


def _applied(
    function: Callable[..., Any], what: str, of: Expression, given: list[Expression], named: dict[str, Expression]
) -> Expression:
    def applied(frame: Frame) -> Any:
        frame.spend(_STEPS_PER_FILTER)
        value = of(frame)
        arguments = [need(one(frame)) for one in given]
        options = {name: need(one(frame)) for name, one in named.items()}
        try:
            return function(frame, value, *arguments, **options)
        except TypeError as error:
            raise _misfit(what, error) from None

    return applied


def _misfit(what: str, error: TypeError) -> RenderingFailed:
    text = str(error)
    why = text.partition("() ")[2] or text
    return RenderingFailed(f"{what} cannot be called like this: {why}")
