"""The versions of the rules for runs of graphs. A run keeps the rules with which it began, because its journal follows
them.

Each constant is the first version of the rules that has a certain behaviour.
"""

from __future__ import annotations

from typing import Final

RULES: Final = 4
LAPS_RULES: Final = 1  # the token behind a join inherits the laps of the branches
SLICES_RULES: Final = 1  # long routing is split into several activations
ERRORS_RULES: Final = 1  # a token keeps seeing the last error on its way, even after the next node has ended
KEYS_RULES: Final = 1  # idempotency keys contain the node, its branches and the visit, instead of the position
PIECES_RULES: Final = 2  # the tokens of a large fork are created, and nodes begin, in smaller pieces
FORKS_RULES: Final = 3  # branches see the context as it was when their fork was made
OUTPUTS_RULES: Final = 3  # if the `output` of a node cannot be evaluated, the node has failed
MERGES_RULES: Final = 4  # the size of merged values is bounded
