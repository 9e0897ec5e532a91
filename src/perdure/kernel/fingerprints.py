"""The fingerprints of code that did not fit a blocked run, as one text.

A hold has the fingerprints of all code that was tried after the run's last progress. Code whose fingerprint is in the
list is not tried again. So engines whose code does not fit do not pass the run back and forth.
"""

from __future__ import annotations

from typing import Final

KEPT_MAX: Final = 64  # more fingerprints are dropped, oldest first, because their deployments are gone


def tried_too(tried: str, fingerprint: str) -> str:
    """Return the list with this fingerprint added. If the fingerprint is empty, return an empty list. Then only a
    person can lift the hold.
    """
    if not fingerprint:
        return ""
    others = [one for one in tried.split() if one != fingerprint]
    return " ".join([*others, fingerprint][-KEPT_MAX:])


def may_fit(tried: str, fingerprint: str) -> bool:
    """Return whether code may lift a hold with these fingerprints. It may if the list is not empty and does not contain
    the code's fingerprint. The SQL stores use the same condition in their queries.
    """
    return bool(tried) and fingerprint not in tried.split()


__all__ = ["KEPT_MAX", "may_fit", "tried_too"]
