"""Compiles the nodes of an expression to Python functions. Names and functions are looked up here, not during the
evaluation.

Each node becomes one function. The function takes the frame of an evaluation, and calls the functions of the nodes
inside the node. Outside of macros, a node is evaluated at most once. So before the evaluation starts, `Program.run`
spends one step of the budget for each node outside of macro bodies. A macro spends the steps of its body once for each
item.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from perdure.models.graphs.cel import syntax, values
from perdure.models.graphs.cel.budget import STEPS_MAX, BudgetExceeded, EvaluationFailed, Frame
from perdure.models.graphs.cel.functions import FUNCTIONS, NAMESPACES, Function
from perdure.models.graphs.cel.syntax import Node
from perdure.models.graphs.cel.values import MISSING, TYPES, MadeList, MadeMap, Result, no_overload

Run = Callable[[Frame], Any]
Path = tuple[str, ...]


class NameUnknown(Exception):
    """An expression uses an unknown name or function."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"uses the unknown {what} {name!r}")
        self.what = what
        self.name = name


class Program:
    """A compiled expression. `paths` are the paths in the context that the expression names, as far as they are
    known.
    """

    __slots__ = ("_run", "_steps", "paths", "variables")

    def __init__(self, source: str, roots: Collection[str]) -> None:
        """Raises SyntaxFailed, NameUnknown."""
        compiler = _Compiler(roots)
        self._run, self._steps = compiler.compiled(syntax.parse(source))
        self.variables = compiler.variables
        self.paths: list[Path] = compiler.paths

    def evaluate(self, context: Any) -> Any:
        """Return the value, in JSON's own types. Raises EvaluationFailed, BudgetExceeded."""
        return self.run(Frame(context, self.variables))

    def run(self, frame: Frame) -> Any:
        """Evaluate with a frame. Afterwards, the frame has the rest of the budget."""
        frame.spend(self._steps)
        return Result(frame).plain(self._run(frame))


class _Compiler:
    """Has a method for each type of node."""

    def __init__(self, roots: Collection[str]) -> None:
        self._roots = roots
        self._scope: dict[str, int] = {}  # names that macros bind, each with the number of its variable
        self._steps = 0
        self.variables = 0
        self.paths: list[Path] = []

    def compiled(self, node: Node) -> tuple[Run, int]:
        """Return the function of a node, and its maximum number of steps. Steps that the function itself spends are not
        counted.
        """
        outside, self._steps = self._steps, 0
        run = self._of(node)
        steps, self._steps = self._steps, outside
        return run, steps

    def _of(self, node: Node) -> Run:
        self._steps += 1
        make: Callable[[_Compiler, Any], Run] = _MAKERS[type(node)]
        return make(self, node)

    def literal(self, node: syntax.Literal) -> Run:
        value = node.value
        return lambda _: value

    def name(self, node: syntax.Name) -> Run:
        name = node.name
        if (number := self._scope.get(name)) is not None:
            return lambda frame: frame.variables[number]
        if name in self._roots:
            self.paths.append((name,))
            return lambda frame: _whole(frame.context.root(name))
        if name in TYPES:
            found = TYPES[name]
            return lambda _: found
        raise NameUnknown("name", name)

    def select(self, node: syntax.Select) -> Run:
        path = self._path(node)
        if path is not None:
            self.paths.append(path)
            return _path_run(path, node.is_test)
        of, field = self._of(node.of), node.field
        if node.is_test:

            def test(frame: Frame) -> bool:
                return _part(of(frame), field) is not MISSING

            return test

        def select(frame: Frame) -> Any:
            value = of(frame)
            found = value.get(field, MISSING) if isinstance(value, dict) else _part(value, field)
            if found is MISSING:
                raise EvaluationFailed(f"there is no {field!r}")
            return found

        return select

    def _path(self, node: Node) -> Path | None:
        """Return the path that a node names if it begins with a root of the context: `state.a`, `state["a"]`."""
        keys: list[str] = []
        while True:
            if isinstance(node, syntax.Select) and not (keys and node.is_test):
                keys.append(node.field)
                node = node.of
            elif isinstance(node, syntax.Index) and isinstance(node.key, syntax.Literal):
                if not isinstance(node.key.value, str):
                    return None
                keys.append(node.key.value)
                node = node.of
            elif isinstance(node, syntax.Name) and node.name in self._roots and node.name not in self._scope:
                return (node.name, *reversed(keys))
            else:
                return None

    def index(self, node: syntax.Index) -> Run:
        path = self._path(node)
        if path is not None:
            self.paths.append(path)
            return _path_run(path, False)
        of, key = self._of(node.of), self._of(node.key)
        return lambda frame: values.part_of(of(frame), key(frame))

    def call(self, node: syntax.Call) -> Run:
        target = node.target
        name = node.name
        if isinstance(target, syntax.Name) and target.name in NAMESPACES and target.name not in self._scope:
            name, target = f"{target.name}.{name}", None
        function = FUNCTIONS.get(name)
        if function is None or (target is not None and not function.is_method):
            raise NameUnknown("function", name)
        given = [*([] if target is None else [target]), *node.args]
        if not function.fewest <= len(given) <= function.most:
            raise NameUnknown("function", f"{name} of {len(given)} values")
        function.check([one.value if isinstance(one, syntax.Literal) else MISSING for one in given])
        return _call_run(function, [self._of(one) for one in given])

    def list(self, node: syntax.ListOf) -> Run:
        self._steps += _MAKING_STEPS
        items = [self._of(item) for item in node.items]
        return lambda frame: MadeList([item(frame) for item in items])

    def map(self, node: syntax.MapOf) -> Run:
        self._steps += _MAKING_STEPS + len(node.entries)
        entries = [(self._of(key), self._of(value)) for key, value in node.entries]

        def make(frame: Frame) -> MadeMap:
            made = MadeMap()
            for key, value in entries:
                found = values.key_of(key(frame))
                if found in made:
                    raise EvaluationFailed(f"the key {values.shown(found)} is there twice")
                made[found] = value(frame)
            return made

        return make

    def unary(self, node: syntax.Unary) -> Run:
        of = self._of(node.of)
        if node.sign == "-":
            return lambda frame: values.negate(of(frame))

        def negation(frame: Frame) -> bool:
            value = of(frame)
            return not _is_true(value, "!")

        return negation

    def chain(self, node: syntax.Chain) -> Run:
        first = self._of(node.first)
        rest = [(_OPERATORS[sign], self._of(part)) for sign, part in node.rest]
        if len(rest) == 1:
            operator, second = rest[0]
            return lambda frame: operator(frame, first(frame), second(frame))

        def chain(frame: Frame) -> Any:
            value = first(frame)
            for operator, part in rest:
                value = operator(frame, value, part(frame))
            return value

        return chain

    def logic(self, node: syntax.Logic) -> Run:
        return _logic_run([self._of(part) for part in node.parts], not node.is_and, "&&" if node.is_and else "||")

    def ternary(self, node: syntax.Ternary) -> Run:
        test, yes, no = self._of(node.test), self._of(node.yes), self._of(node.no)

        def choose(frame: Frame) -> Any:
            value = test(frame)
            if value is True:
                return yes(frame)
            if value is False:
                return no(frame)
            raise no_overload("?:", value)

        return choose

    def macro(self, node: syntax.Macro) -> Run:
        over = self._of(node.over)
        number, before = self.variables, self._scope
        self.variables += 1
        self._scope = {**before, node.variable: number}
        bodies = [self.compiled(arg) for arg in node.args]
        self._scope = before
        steps = 2 + sum(steps for _, steps in bodies)
        run = [body for body, _ in bodies]
        if node.name == "map":
            return _map_run(over, number, None if len(run) == 1 else run[0], run[-1], steps)
        if node.name == "filter":
            return _map_run(over, number, run[0], None, steps)
        if node.name == "exists_one":
            return _one_run(over, number, run[0], steps)
        return _quantifier_run(over, number, run[0], steps, node.name)


_MAKERS: Final[dict[type[Node], Any]] = {
    syntax.Literal: _Compiler.literal,
    syntax.Name: _Compiler.name,
    syntax.Select: _Compiler.select,
    syntax.Index: _Compiler.index,
    syntax.Call: _Compiler.call,
    syntax.ListOf: _Compiler.list,
    syntax.MapOf: _Compiler.map,
    syntax.Unary: _Compiler.unary,
    syntax.Chain: _Compiler.chain,
    syntax.Logic: _Compiler.logic,
    syntax.Ternary: _Compiler.ternary,
    syntax.Macro: _Compiler.macro,
}
_OPERATORS: Final[dict[str, Callable[[Frame, Any, Any], Any]]] = {
    "+": values.add,
    "-": values.subtract,
    "*": values.multiply,
    "/": values.divide,
    "%": values.remainder,
    "==": values.equal,
    "!=": lambda frame, one, other: not values.equal(frame, one, other),
    "<": values.is_less,
    ">": lambda frame, one, other: values.is_less(frame, other, one, ">"),
    "<=": lambda frame, one, other: values.is_at_most(frame, one, other, "<="),
    ">=": lambda frame, one, other: values.is_at_most(frame, other, one, ">="),
    "in": values.contains,
}


def _whole(value: Any) -> Any:
    whole = getattr(value, "whole", None)
    return value if whole is None else whole()


def _part(value: Any, field: str) -> Any:
    """Return a field of an object, or MISSING. Raises EvaluationFailed if the value has no fields."""
    if isinstance(value, dict):
        return value.get(field, MISSING)
    raise EvaluationFailed(f"No such overload: .{field} of {values.name_of(value)}")


def _path_run(path: Path, is_test: bool) -> Run:
    root, *between, last = path

    def follow(frame: Frame) -> Any:
        value = frame.context.root(root)
        for key in between:
            found = value.get(key, MISSING) if hasattr(value, "get") else _part(value, key)
            if found is MISSING:
                raise EvaluationFailed(f"there is no {key!r}")
            value = found
        found = value.get(last, MISSING) if hasattr(value, "get") else _part(value, last)
        if is_test:
            return found is not MISSING
        if found is MISSING:
            raise EvaluationFailed(f"there is no {last!r}")
        return found

    return follow


def _call_run(function: Function, args: list[Run]) -> Run:
    call = function.call
    if len(args) == 1:
        only = args[0]
        return lambda frame: call(frame, only(frame))
    if len(args) == 2:
        first, second = args
        return lambda frame: call(frame, first(frame), second(frame))
    return lambda frame: call(frame, *[arg(frame) for arg in args])


def _logic_run(parts: list[Run], decisive: bool, sign: str) -> Run:
    """Return the function of `&&` or `||`. If one part decides the result, errors in the other parts do not matter."""

    def logic(frame: Frame) -> bool:
        failed: EvaluationFailed | None = None
        for part in parts:
            try:
                if _is_true(part(frame), sign) is decisive:
                    return decisive
            except EvaluationFailed as error:
                frame.spend(_ERROR_STEPS)
                failed = failed or error
        if failed is not None:
            raise failed
        return not decisive

    return logic


def _items(value: Any, macro: str) -> Any:
    if isinstance(value, list):
        return value
    if isinstance(value, dict):
        return values.keys_of(value)
    raise no_overload(macro, value)


def _map_run(over: Run, number: int, test: Run | None, give: Run | None, steps: int) -> Run:
    """Return the function of `map` (with or without a test) or of `filter`."""
    macro = "map" if give is not None else "filter"

    def go_through(frame: Frame) -> MadeList:
        made = MadeList()
        variables = frame.variables
        for item in _items(over(frame), macro):
            frame.left -= steps
            if frame.left < 0:
                raise BudgetExceeded
            variables[number] = item
            if test is not None and not _is_true(test(frame), macro):
                continue
            made.append(item if give is None else give(frame))
        return made

    return go_through


def _one_run(over: Run, number: int, test: Run, steps: int) -> Run:
    def exists_one(frame: Frame) -> bool:
        count = 0
        variables = frame.variables
        for item in _items(over(frame), "exists_one"):
            frame.left -= steps
            if frame.left < 0:
                raise BudgetExceeded
            variables[number] = item
            count += _is_true(test(frame), "exists_one")
        return count == 1

    return exists_one


def _quantifier_run(over: Run, number: int, test: Run, steps: int, macro: str) -> Run:
    """Return the function of `all` or `exists`. They work like `&&` and `||` between all items."""
    decisive = macro == "exists"

    def quantify(frame: Frame) -> bool:
        failed: EvaluationFailed | None = None
        variables = frame.variables
        for item in _items(over(frame), macro):
            frame.left -= steps
            if frame.left < 0:
                raise BudgetExceeded
            variables[number] = item
            try:
                if _is_true(test(frame), macro) is decisive:
                    return decisive
            except EvaluationFailed as error:
                frame.spend(_ERROR_STEPS)
                failed = failed or error
        if failed is not None:
            raise failed
        return not decisive

    return quantify


_ERROR_STEPS: Final = 20  # the cost of an exception, in steps
_MAKING_STEPS: Final = 3  # the cost of creating a list or an object, in steps


def _is_true(value: Any, macro: str) -> bool:
    if value is True:
        return True
    if value is False:
        return False
    raise no_overload(macro, value)


__all__ = ["STEPS_MAX", "NameUnknown", "Path", "Program"]
