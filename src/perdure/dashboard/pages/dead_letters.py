"""Dead letters: list them, send them again, remove them."""

from __future__ import annotations

from typing import Final

from perdure.dashboard.page import Action, Form, Page, Shown, Visit
from perdure.dashboard.renderer import url

_LIMIT: Final = 50


async def show(visit: Visit) -> Shown:
    name, after = visit.asked("name").strip(), visit.asked("after")
    letters = await visit.client.dead_letters.list(name=name or None, after=after or None, limit=_LIMIT)
    return {
        "title": "Dead letters",
        "name": name,
        "letters": letters,
        "after": after,
        "next": letters[-1].id if len(letters) == _LIMIT else None,
    }


async def replay(visit: Visit, form: Form) -> str:
    """Send the event of a dead letter again."""
    to = form.text("to").strip() or None
    await visit.client.dead_letters.replay(visit.part("letter_id"), to=to, actor=visit.caller.name)
    return url("dead-letters", said="replayed")


async def remove(visit: Visit, form: Form) -> str:
    """Remove a dead letter for good."""
    del form
    letters, letter_id = visit.client.dead_letters, visit.part("letter_id")
    await letters.get(letter_id)
    await letters.remove(letter_id, actor=visit.caller.name)
    return url("dead-letters", said="removed")


page = Page(
    name="dead_letters",
    path="/dead-letters",
    title="Dead letters",
    show=show,
    actions=[
        Action("/dead-letters/{letter_id:str}/replay", replay),
        Action("/dead-letters/{letter_id:str}/remove", remove),
    ],
)
