"""Which code did not fit a run: the fingerprints that a blocked run's hold has, as one text.

A hold has the fingerprint of every code that was tried since the run last made progress. Code that is in the list is
not tried again. So engines with different code do not pass a run that fits none of them to and fro.
"""

from __future__ import annotations

from typing import Final

KEPT_MAX: Final = 64  # The oldest are forgotten: those are of deployments that are gone.


def tried_too(tried: str, fingerprint: str) -> str:
    """The list with one more; empty, so that only a person lifts the hold, if that is."""
    if not fingerprint:
        return ""
    others = [one for one in tried.split() if one != fingerprint]
    return " ".join([*others, fingerprint][-KEPT_MAX:])


def may_fit(tried: str, fingerprint: str) -> bool:
    """Whether code may lift a hold with these: there are some, and its own is not among them. The SQL stores have this
    condition in their queries."""
    return bool(tried) and fingerprint not in tried.split()


__all__ = ["KEPT_MAX", "may_fit", "tried_too"]
