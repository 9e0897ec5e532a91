"""Removals that stay on record: who removed which dead letter."""

from __future__ import annotations

from typing import Final

from perdure.client import Client
from perdure.errors import DeadLetterNotFound

REMOVAL: Final = "perdure.dead-letter-removal"  # the kind of record, whose name is the letter's id


async def remove_dead_letter(client: Client, id: str, *, actor: str) -> None:
    """Forget a dead letter, for good, and keep a record of who did so. Raises DeadLetterNotFound.

    The record comes first: a crash in between leaves a note of something that is still to be done, never the reverse.
    """
    letter = await client.dead_letter(id)
    note = {"event": letter.name, "to": letter.to, "sent_at": letter.sent_at}
    await client.put_record(REMOVAL, id, note, actor=actor)
    if not await client.remove_dead_letter(id, actor=actor):
        raise DeadLetterNotFound(f"there is no dead letter {id!r} any more", letter_id=id)


__all__ = ["REMOVAL", "remove_dead_letter"]
