"""The tokens at nodes that edges can cancel. With this index, an edge does not need to examine all tokens. This module
is pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from perdure.models.graphs.tokens import Fork, Token


class Standing:
    """The tokens at nodes that some edge names in its `cancel`."""

    __slots__ = ("_at", "_node_of")

    def __init__(self, nodes: Iterable[str]) -> None:
        self._at: dict[str, dict[Token, None]] = {name: {} for name in nodes}
        self._node_of: dict[Token, str] = {}

    def move(self, token: Token, node: str) -> None:
        """Note that the token is at this node now."""
        self.leave(token)
        if (at := self._at.get(node)) is not None:
            at[token] = None
            self._node_of[token] = node

    def leave(self, token: Token) -> None:
        if (node := self._node_of.pop(token, None)) is not None:
            del self._at[node][token]

    def within(self, fork: Fork, names: Iterable[str]) -> list[Token]:
        """Return the tokens at these nodes, in the branch that contains a fork. The tokens of a fork come before the
        tokens of the forks inside it. Within a fork they are ordered by age.
        """
        root, index = (fork, None) if fork.outer is None else (fork.outer, fork.index)
        found = [
            (place, token)
            for name in names
            for token in self._at.get(name, ())
            if (place := _place(token, root, index)) is not None
        ]
        return [token for _, token in sorted(found, key=lambda one: one[0])]


def _place(token: Token, root: Fork, index: int | None) -> list[tuple[int, int]] | None:
    """Return the sort key of a token in a fork, or in one branch of the fork. Return None if the token is not in it."""
    place, fork, branch = [(0, token.id)], token.fork, token.index
    while fork is not root:
        if fork.outer is None:
            return None
        place.append((1, fork.id))
        branch, fork = fork.index, fork.outer
    return None if index is not None and branch != index else place[::-1]


__all__ = ["Standing"]
