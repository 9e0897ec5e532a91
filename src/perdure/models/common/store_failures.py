"""Failures of the store: they are never failures of a step, of an attempt or of a run.

A step that meets a failure of the store runs again, in functions, graphs and operations alike. In a transaction of a
step, the store and the body may both fail. transactions.py decides which of the two failures counts.
"""

from __future__ import annotations

from perdure.errors import CommitRefused, StoreBroken, StoreError


def is_of_the_store(error: BaseException) -> bool:
    """Return whether an error is a temporary failure of the store, and says nothing about the step.

    A commit that the store refuses, and a store that a person must repair, are failures of the step: its retry policy
    decides.
    """
    return isinstance(error, StoreError) and not isinstance(error, (CommitRefused, StoreBroken))


__all__ = ["is_of_the_store"]
