"""What workflow code says to whoever reads: values under keys, and items of streams.

It is part of what an activation asks for: committed with it, visible from then on and never before. A replay says
nothing twice. It has no position in the program and is not answered, so it may come and go with the code.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from perdure.errors import InvalidArguments, Misuse, NotInWorkflow
from perdure.models.functions.commands import Post
from perdure.models.functions.context import in_step, require_loop
from perdure.models.functions.loop import WorkflowLoop, running_loop
from perdure.values.arguments import checked
from perdure.values.checks import checked_text
from perdure.values.json import to_text

KEYS_MAX: Final = 1_000
RESERVED: Final = frozenset({"perdure.definition"})  # keys of Perdure's own, which nobody sees
POSTS_MAX: Final = 10_000
POSTS_CHARS_MAX: Final = 16 * 1024 * 1024


@checked
async def publish(key: str, value: Any) -> None:
    """Show a value under a key of this run, in place of the one before, to all who ask for `run.published()`.

    It can be read from the commit on that makes this part of the workflow durable, while the run lives and after; a
    crash before leaves the old value until the code comes here again. Raises UnstorableValue, InvalidArguments,
    NotInWorkflow; Misuse for more than a thousand keys.
    """
    loop = require_loop("publish")
    checked_text(key, "a key")
    if key in RESERVED:
        raise InvalidArguments(f"the key {key!r} is Perdure's own; publish under another one")
    text = to_text(value, f"the value published under {key!r}", loop.payload_max)
    keys = loop.keys = set() if loop.keys is None else loop.keys
    if key not in keys and len(keys) >= KEYS_MAX:
        raise Misuse(f"a run publishes under at most {KEYS_MAX:,} keys, and {key!r} is one more; append to a stream")
    keys.add(key)
    await say(loop, Post(key, text, False))


@checked
class Stream:
    """A stream of the run whose workflow code uses it."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = checked_text(name, "a stream's name")

    async def append(self, value: Any) -> None:
        """Append an item; who reads `run.stream(name)` gets it, in order and once.

        It can be read from the commit on that makes this part of the workflow durable. Steps append to the same
        streams with `current_step().append(name, value)`; one order, that of commits, holds for all. Raises
        UnstorableValue, NotInWorkflow.
        """
        if running_loop() is None and in_step.get(None) is not None:
            raise NotInWorkflow(f"this belongs into a workflow; in a step use current_step().append({self.name!r}, …)")
        loop = require_loop("stream(…).append")
        text = to_text(value, f"an item of stream {self.name!r}", loop.payload_max)
        await say(loop, Post(self.name, text, True))

    def __repr__(self) -> str:
        return f"<stream {self.name!r}>"


@checked
def stream(name: str) -> Stream:
    """A stream of this run, to append to. It begins with its first item, and ends with the run."""
    return Stream(name)


async def say(loop: WorkflowLoop, post: Post) -> None:
    """Have a word go with what the activation asks for. Raises Misuse if there are too many of them."""
    if (never := said(loop, post)) is not None:
        await never


def said(loop: WorkflowLoop, post: Post) -> asyncio.Future[Any] | None:
    """As `say`, for code that does not await: what it gives, if anything, never comes."""
    if len(loop.outputs) >= POSTS_MAX or loop.posts_chars + len(post.value) > max(POSTS_CHARS_MAX, loop.payload_max):
        raise Misuse(
            f"a workflow may publish and append {POSTS_MAX:,} times, and {POSTS_CHARS_MAX:,} characters, between two "
            "waits: let a step do it"
        )
    return loop.post(post)
