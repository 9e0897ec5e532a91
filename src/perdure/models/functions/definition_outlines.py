"""Outlines: a run's journal says which definition the run began with.

Only graphs have outlines, because only graphs are data. A function's code is compared with the journal entry by entry.
But a definition can change in places that the journal does not show. An outline is an entry of kind "definition". Each
attempt of the run has an outline, with the number 0, -1, …, so that the other entries count from 1. The outline is
written in the first commit of the attempt. So after a retry with a changed definition, the journal has the outline of
the changed definition. Runs that began before Perdure had outlines have none, and their definitions are not compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from perdure.kernel.rows import DEFINITION, Entry

_DIFFERENCES_MAX: Final = 50


class Outline(Struct, frozen=True, kw_only=True):
    """A definition: its hash, the hashes of its parts by name, and the version of its rules. It also has the digest
    under which the store keeps the definition ("" in outlines of earlier versions).
    """

    fingerprint: str = ""
    rules: int
    parts: Mapping[str, str] = {}
    digest: str = ""

    def entry(self, run_id: str, attempt: int, encoded: str, at: int) -> Entry:
        return Entry(
            run_id=run_id,
            seq=1 - attempt,
            position=f"definition:{attempt}",
            kind=DEFINITION,
            name=self.fingerprint,
            value=encoded,
            started_at=at,
            at=at,
        )

    def differences(self, now: Outline) -> list[str]:
        """Return the parts that are removed (-), added (+) or changed (~) in another definition."""
        found = [f"- {part}" for part in self.parts if part not in now.parts]
        found += [f"+ {part}" for part in now.parts if part not in self.parts]
        found += [f"~ {part}" for part, hashed in self.parts.items() if now.parts.get(part, hashed) != hashed]
        return found or ["~ the order of its edges"]


def split(entries: Sequence[Entry]) -> tuple[Sequence[Entry], Sequence[Entry]]:
    """Return a journal's outlines, and its other entries."""
    count = 0
    while count < len(entries) and entries[count].kind == DEFINITION:
        count += 1
    return (entries[:count], entries[count:]) if count else ((), entries)


def read(text: str) -> Outline:
    return msgspec.json.decode(text, type=Outline)


def refusal(was: Outline, now: Outline, name: str, version: str) -> tuple[str, str]:
    """Return the reason why a run does not go on with a definition, as one sentence. Also return the list of
    differences.
    """
    differences = was.differences(now)
    shown = ", ".join(differences[:3]) + (f" and {len(differences) - 3} more" if len(differences) > 3 else "")
    known = f"{name!r} version {version!r}" if version else repr(name)
    reason = (
        f"{known} is not the definition that the run began with (fingerprint {was.fingerprint}, now "
        f"{now.fingerprint}): {shown}; deploy that definition again, and give the changed one another version"
    )
    return reason, "\n".join(differences[:_DIFFERENCES_MAX])


__all__ = ["Outline", "read", "refusal", "split"]
