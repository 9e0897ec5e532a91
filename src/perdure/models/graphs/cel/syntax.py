"""The parser: it turns a text into nodes, by CEL's grammar. The length and the nesting of a text have bounds, so that
later stages can handle every text.

A chain (`a + b + c`, `a && b && c`) is one node, even if it is long. So chains do not nest.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from perdure.models.graphs.cel.values import INT_MAX, INT_MIN, UINT_MAX, UInt

LENGTH_MAX: Final = 16_384
DEPTH_MAX: Final = 64

RESERVED: Final = frozenset({
    "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "package",
    "namespace", "return", "var", "void", "while",
})  # fmt: skip
_LITERALS: Final[dict[str, Any]] = {"true": True, "false": False, "null": None}
_QUOTED: Final = (
    r'"""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\''
    r'|"(?!"")(?:\\.|[^"\\\r\n])*"|\'(?!\'\')(?:\\.|[^\'\\\r\n])*\''
)
_RAW: Final = r'"""[\s\S]*?"""|\'\'\'[\s\S]*?\'\'\'|"(?!"")[^"\r\n]*"|\'(?!\'\')[^\'\r\n]*\''
_TOKEN: Final = re.compile(
    rf"(?P<skip>[ \t\r\n\f]+|//[^\n]*)|(?P<raw>(?:[rR][bB]?|[bB][rR])(?:{_RAW}))|(?P<text>[bB]?(?:{_QUOTED}))"
    r"|(?P<double>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<int>0[xX][0-9a-fA-F]+[uU]?|[0-9]+[uU]?)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign>\|\||&&|[=!<>]=|[-+*/%<>!?:.,()\[\]{}])",
    re.ASCII | re.DOTALL,
)
_ESCAPE: Final = re.compile(
    r"\\(?:(?P<plain>[abfnrtv\\?\"'`])|(?P<octal>[0-3][0-7]{2})|[xX](?P<hex>[0-9a-fA-F]{2})"
    r"|u(?P<four>[0-9a-fA-F]{4})|U(?P<eight>[0-9a-fA-F]{8})|(?P<other>.?))",
    re.DOTALL,
)
_PLAIN: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_LEVELS: Final = (("*", "/", "%"), ("+", "-"), ("<", "<=", ">", ">=", "==", "!=", "in"), ("&&",), ("||",))
_PRECEDENCE: Final = {sign: level for level, signs in enumerate(_LEVELS) for sign in signs}
MACROS: Final = {"all": (2, 2), "exists": (2, 2), "exists_one": (2, 2), "map": (2, 3), "filter": (2, 2)}


class SyntaxFailed(Exception):
    """A syntax error in a text. The message names the character where the error is."""


class Node:
    """A part of an expression. `depth` is the depth of the nesting inside the node."""

    __slots__ = ("depth",)

    def __init__(self, *inner: Node) -> None:
        self.depth: int = 1 + max((node.depth for node in inner), default=0)
        if self.depth > DEPTH_MAX:
            raise SyntaxFailed(f"the expression nests deeper than {DEPTH_MAX}; compute a part of it in an earlier node")


class Literal(Node):
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Name(Node):
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


class Select(Node):
    """`of.field`, or as a test `has(of.field)`."""

    __slots__ = ("field", "is_test", "of")

    def __init__(self, of: Node, field: str, is_test: bool = False) -> None:
        super().__init__(of)
        self.of = of
        self.field = field
        self.is_test = is_test


class Index(Node):
    __slots__ = ("key", "of")

    def __init__(self, of: Node, key: Node) -> None:
        super().__init__(of, key)
        self.of = of
        self.key = key


class Call(Node):
    """`name(…)`, or `target.name(…)`."""

    __slots__ = ("args", "name", "target")

    def __init__(self, name: str, target: Node | None, args: list[Node]) -> None:
        super().__init__(*args, *(() if target is None else (target,)))
        self.name = name
        self.target = target
        self.args = args


class Macro(Node):
    """`over.name(variable, …)`."""

    __slots__ = ("args", "name", "over", "variable")

    def __init__(self, name: str, over: Node, variable: str, args: list[Node]) -> None:
        super().__init__(over, *args)
        self.name = name
        self.over = over
        self.variable = variable
        self.args = args


class ListOf(Node):
    __slots__ = ("items",)

    def __init__(self, items: list[Node]) -> None:
        super().__init__(*items)
        self.items = items


class MapOf(Node):
    __slots__ = ("entries",)

    def __init__(self, entries: list[tuple[Node, Node]]) -> None:
        super().__init__(*(part for entry in entries for part in entry))
        self.entries = entries


class Unary(Node):
    __slots__ = ("of", "sign")

    def __init__(self, sign: str, of: Node) -> None:
        super().__init__(of)
        self.sign = sign
        self.of = of


class Chain(Node):
    """Operators of one precedence, from left to right: `first + a - b`."""

    __slots__ = ("first", "rest")

    def __init__(self, first: Node, rest: list[tuple[str, Node]]) -> None:
        super().__init__(first, *(node for _, node in rest))
        self.first = first
        self.rest = rest


class Logic(Node):
    """`a && b && c`, or `a || b || c`."""

    __slots__ = ("is_and", "parts")

    def __init__(self, is_and: bool, parts: list[Node]) -> None:
        super().__init__(*parts)
        self.is_and = is_and
        self.parts = parts


class Ternary(Node):
    __slots__ = ("no", "test", "yes")

    def __init__(self, test: Node, yes: Node, no: Node) -> None:
        super().__init__(test, yes, no)
        self.test = test
        self.yes = yes
        self.no = no


class Token(NamedTuple):
    kind: str
    text: str
    at: int


def parse(source: str) -> Node:
    """Return the node of an expression. Raises SyntaxFailed. The message names the error and its place."""
    if len(source) > LENGTH_MAX:
        raise SyntaxFailed(f"it has {len(source):,} characters, and an expression has at most {LENGTH_MAX:,}")
    parser = _Parser(_tokens(source))
    found = parser.expression()
    parser.take_end()
    return found


def _tokens(source: str) -> list[Token]:
    tokens: list[Token] = []
    at = 0
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None:
            what = "a text that does not end" if source[at] in "\"'" else repr(source[at])
            raise SyntaxFailed(f"{what} at character {at + 1}")
        if match.lastgroup != "skip":
            tokens.append(Token(match.lastgroup or "", match[0], at))
        at = match.end()
    tokens.append(Token("end", "", len(source)))
    return tokens


class _Parser:
    """A parser by recursive descent. It recurses only for parts in brackets, and for parts after a `?`."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def expression(self) -> Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise SyntaxFailed(f"the expression nests deeper than {DEPTH_MAX}; compute a part of it in an earlier node")
        test = self._operators()
        if self._takes("?"):
            yes = self._operators()
            self._need(":")
            test = Ternary(test, yes, self.expression())
        self._depth -= 1
        return test

    def take_end(self) -> None:
        if self._tokens[self._at].kind != "end":
            raise self._unexpected()

    def _operators(self) -> Node:
        """Return the node of operands with operators between them. Products are combined first, and `||` last."""
        parts, signs = [self._unary()], []
        while (token := self._tokens[self._at]).text in _PRECEDENCE and token.kind in ("sign", "name"):
            self._at += 1
            signs.append(token.text)
            parts.append(self._unary())
        level = 0
        while signs:
            parts, signs = _put_together(parts, signs, level)
            level += 1
        return parts[0]

    def _unary(self) -> Node:
        sign = self._tokens[self._at]
        if sign.kind != "sign" or sign.text not in "!-":
            return self._member()
        count = 0
        while self._takes(sign.text):
            count += 1
        following = self._tokens[self._at]
        if sign.text == "-" and following.kind in ("int", "double"):
            count -= 1
            self._tokens[self._at] = following._replace(text=f"-{following.text}")
        found = self._member()
        if count:  # Two signs do not change a value, but its type is still checked.
            found = Unary(sign.text, found)
            found = found if count % 2 else Unary(sign.text, found)
        return found

    def _member(self) -> Node:
        found = self._primary()
        while True:
            if self._takes("["):
                found = Index(found, self.expression())
                self._need("]")
            elif self._takes("."):
                name = self._tokens[self._at]
                if name.kind != "name" or name.text in _LITERALS or name.text == "in":
                    raise self._unexpected()
                self._at += 1
                found = self._call(name.text, found) if self._takes("(") else Select(found, name.text)
            else:
                return found

    def _call(self, name: str, target: Node | None) -> Node:
        at = self._tokens[self._at - 1].at
        args = self._list(")")
        if name == "has" and target is None:
            if len(args) != 1 or not isinstance(args[0], Select):
                raise SyntaxFailed(f"has(…) is asked of a field, as in has(state.x), at character {at + 1}")
            return Select(args[0].of, args[0].field, is_test=True)
        if name not in MACROS or target is None:
            return Call(name, target, args)
        fewest, most = MACROS[name]
        if not fewest <= len(args) <= most:
            counts = f"{fewest}" if fewest == most else f"{fewest} or {most}"
            raise SyntaxFailed(f"{name}(…) has {counts} parts, not {len(args)}, at character {at + 1}")
        if not isinstance(args[0], Name):
            raise SyntaxFailed(f"the first part of {name}(…) is a name, at character {at + 1}")
        return Macro(name, target, args[0].name, args[1:])

    def _primary(self) -> Node:
        token = self._tokens[self._at]
        self._at += 1
        if token.kind == "name":
            if token.text in _LITERALS:
                return Literal(_LITERALS[token.text])
            if token.text in RESERVED:
                raise SyntaxFailed(f"{token.text!r} at character {token.at + 1} is a word that CEL reserves")
            if token.text != "in":
                return self._call(token.text, None) if self._takes("(") else Name(token.text)
        elif token.kind in ("text", "raw", "int", "double"):
            return Literal(_value_of(token))
        elif token.text == "(":
            found = self.expression()
            self._need(")")
            return found
        elif token.text == "[":
            return ListOf(self._list("]"))
        elif token.text == "{":
            return MapOf(self._entries())
        self._at -= 1
        raise self._unexpected()

    def _list(self, end: str) -> list[Node]:
        items: list[Node] = []
        while not self._takes(end):
            items.append(self.expression())
            if not self._takes(","):
                self._need(end)
                break
            if end == ")" and self._tokens[self._at].text == end:
                raise self._unexpected()
        return items

    def _entries(self) -> list[tuple[Node, Node]]:
        entries: list[tuple[Node, Node]] = []
        while not self._takes("}"):
            key = self.expression()
            self._need(":")
            entries.append((key, self.expression()))
            if not self._takes(","):
                self._need("}")
                break
        return entries

    def _takes(self, sign: str) -> bool:
        token = self._tokens[self._at]
        if token.kind != "sign" or token.text != sign:
            return False
        self._at += 1
        return True

    def _need(self, sign: str) -> None:
        if not self._takes(sign):
            raise self._unexpected(f", where {sign!r} should be")

    def _unexpected(self, instead: str = "") -> SyntaxFailed:
        token = self._tokens[self._at]
        if token.kind == "end":
            return SyntaxFailed(f"it ends too early{instead}")
        return SyntaxFailed(f"{token.text[:40]!r} at character {token.at + 1} is unexpected{instead}")


def _put_together(parts: list[Node], signs: list[str], level: int) -> tuple[list[Node], list[str]]:
    """Combine the operators of one precedence into nodes, and return the remaining operands and operators."""
    left: list[Node] = []
    others: list[str] = []
    chain: list[tuple[str, Node]] = []
    first = parts[0]
    for sign, part in zip([*signs, ""], [*parts[1:], parts[0]], strict=True):
        if _PRECEDENCE.get(sign) == level:
            chain.append((sign, part))
            continue
        if chain and level < 3:
            first = Chain(first, chain)
        elif chain:
            first = Logic(level == 3, [first, *(node for _, node in chain)])
        left.append(first)
        others.append(sign)
        first, chain = part, []
    return left, others[:-1]


def _value_of(token: Token) -> Any:
    where = f"at character {token.at + 1}"
    if token.kind == "double":
        value = float(token.text)
        if value in (float("inf"), float("-inf")):
            raise SyntaxFailed(f"{token.text[:40]} {where} is too large for a double")
        return value
    if token.kind == "int":
        return _int_of(token.text, where)
    prefix = token.text[: len(token.text) - len(token.text.lstrip("rRbB"))].lower()
    quoted = token.text[len(prefix) :]
    quotes = 3 if quoted[:3] in ('"""', "'''") else 1
    body = quoted[quotes:-quotes]
    if "b" in prefix:
        return _bytes_of(body, "r" in prefix, where)
    text = body if "r" in prefix else _ESCAPE.sub(lambda match: _escaped(match, where), body)
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise SyntaxFailed(f"the text {where} has half a character (a surrogate)")
    return text


def _int_of(text: str, where: str) -> Any:
    digits = text.rstrip("uU")
    is_unsigned = digits != text
    if len(digits) > 24:
        raise SyntaxFailed(f"{text[:40]} {where} has more than 64 bits")
    value = int(digits, 16 if "x" in digits.lower() else 10)
    low, high = (0, UINT_MAX) if is_unsigned else (INT_MIN, INT_MAX)
    if is_unsigned and digits.startswith("-"):
        raise SyntaxFailed(f"{text} {where}: what is unsigned has no sign")
    if not low <= value <= high:
        raise SyntaxFailed(f"{text} {where} has more than 64 bits")
    return UInt(value) if is_unsigned else value


def _escaped(match: re.Match[str], where: str) -> str:
    if match["plain"]:
        return _PLAIN.get(match["plain"], match["plain"])
    if match["octal"]:
        return chr(int(match["octal"], 8))
    digits = match["hex"] or match["four"] or match["eight"]
    if digits is None or int(digits, 16) > 0x10FFFF:
        raise SyntaxFailed(f"the text {where} has {match[0]!r}, which stands for nothing")
    return chr(int(digits, 16))


def _bytes_of(body: str, is_raw: bool, where: str) -> bytes:
    try:
        if is_raw:
            return body.encode()
        parts: list[bytes] = []
        at = 0
        for match in _ESCAPE.finditer(body):
            if match["four"] or match["eight"]:
                raise SyntaxFailed(f"the bytes {where} have {match[0]!r}, which is for texts")
            parts += (body[at : match.start()].encode(), _escaped(match, where).encode("latin-1"))
            at = match.end()
        return b"".join([*parts, body[at:].encode()])
    except UnicodeEncodeError as error:
        raise SyntaxFailed(f"the bytes {where} have half a character (a surrogate)") from error
