"""The budget of one evaluation, in steps. Unlike times, numbers of steps are the same on every machine and in every
replay.
"""

from __future__ import annotations

from typing import Any, Final

STEPS_MAX: Final = 200_000  # An evaluation with so many steps takes 5 to 33 ms: see bench/expressions.py.
VALUE_DEPTH_MAX: Final = 100  # the nesting of lists and objects that are compared or built
CHARS_PER_STEP: Final = 64  # copying and searching a character is much faster than a step


class EvaluationFailed(Exception):
    """An error in the sense of CEL. Operators can ignore it: `true || 1 / 0` is true."""


class BudgetExceeded(Exception):
    """The evaluation exceeds its budget. No operator catches this error."""


class Frame:
    """One evaluation. It has the steps that remain, the context in which names are looked up, and the variables of
    macros.
    """

    __slots__ = ("context", "left", "patterns", "variables")

    def __init__(self, context: Any, variables: int, left: int = STEPS_MAX) -> None:
        self.context = context
        self.left = left
        self.patterns: dict[str, Any] = {}
        self.variables: list[Any] = [None] * variables

    def spend(self, steps: int) -> None:
        """Subtract steps from the budget, before they are done. Raises BudgetExceeded."""
        self.left -= steps
        if self.left < 0:
            raise BudgetExceeded

    def spend_text(self, chars: int) -> None:
        """Subtract the cost of copying or searching `chars` characters from the budget. Raises BudgetExceeded."""
        self.left -= 1 + chars // CHARS_PER_STEP
        if self.left < 0:
            raise BudgetExceeded
