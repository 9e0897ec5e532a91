"""Failures of the store. They never count as failures of a step, an attempt or a run.

A step that meets a failure of the store runs again. This holds for functions, graphs and operations. In the transaction
of a step, the store and the body may both fail. transactions.py decides which failure counts.
"""

from __future__ import annotations

from perdure.errors import CommitRefused, StoreBroken, StoreError


def is_of_the_store(error: BaseException) -> bool:
    """Return whether an error is a temporary failure of the store, and not a failure of the step.

    If the store refuses a commit, or if a person must repair the store, the step has failed. Then its retry policy
    decides.
    """
    return isinstance(error, StoreError) and not isinstance(error, (CommitRefused, StoreBroken))


__all__ = ["is_of_the_store"]
