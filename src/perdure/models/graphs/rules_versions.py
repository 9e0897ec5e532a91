"""The rules by which runs of graphs go on. A run keeps the rules that it began with, since its journal follows them.

Each constant is the number of the first rules that have a certain behaviour.
"""

from __future__ import annotations

from typing import Final

RULES: Final = 4
LAPS_RULES: Final = 1  # From these rules on laps count through joins,
SLICES_RULES: Final = 1  # long routing is done in several activations,
ERRORS_RULES: Final = 1  # a token sees the last error on its way, not only until the next node has ended,
KEYS_RULES: Final = 1  # and idempotency keys name the node, its branches and the visit, and not the position.
PIECES_RULES: Final = 2  # From these on the tokens of a large fork are made, and nodes begun, in smaller pieces.
FORKS_RULES: Final = 3  # From these on branches see the context as it was when their fork was made,
OUTPUTS_RULES: Final = 3  # and a node whose `output` cannot be evaluated has failed.
MERGES_RULES: Final = 4  # From these on merged values are bounded.
