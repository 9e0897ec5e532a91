"""Publications: workflow code publishes values under keys, and appends items to streams, for readers outside.

Publications are outputs of an activation. They are committed together with the activation's requests, and visible from
then on. A replay does not publish anything twice. An output has no position in the program, and gets no answer. So
changed code may add or remove outputs.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from perdure.errors import InvalidArguments, Misuse, NotInWorkflow
from perdure.models.functions.commands import Output
from perdure.models.functions.context import in_step, require_loop
from perdure.models.functions.loop import WorkflowLoop, running_loop
from perdure.values.arguments import checked
from perdure.values.checks import checked_text
from perdure.values.json import to_text

KEYS_MAX: Final = 1_000
RESERVED: Final = frozenset({"perdure.definition"})  # Perdure's own keys, which readers do not see
OUTPUTS_MAX: Final = 10_000
OUTPUT_CHARS_MAX: Final = 16 * 1024 * 1024


@checked
async def publish(key: str, value: Any) -> None:
    """Publish a value under a key of this run. It replaces the key's earlier value. Read the value with
    `run.published()`.

    The value can be read after the commit that makes this part of the workflow durable. It stays after the run has
    ended. If a crash comes before that commit, the old value stays until the code runs again. Raises UnstorableValue,
    InvalidArguments, NotInWorkflow. Raises Misuse for more than a thousand keys.
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
    await add_output(loop, Output(key, text, False))


@checked
class Stream:
    """A stream of a run, for use in the run's own workflow code."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = checked_text(name, "a stream's name")

    async def append(self, value: Any) -> None:
        """Append an item. Readers of `run.stream(name)` get each item once, and in order.

        The item can be read after the commit that makes this part of the workflow durable. Steps append to the same
        streams with `current_step().append(name, value)`. All items of a stream are in the order of their commits.
        Raises UnstorableValue, NotInWorkflow.
        """
        if running_loop() is None and in_step.get(None) is not None:
            raise NotInWorkflow(f"this belongs in a workflow; in a step use current_step().append({self.name!r}, …)")
        loop = require_loop("stream(…).append")
        text = to_text(value, f"an item of stream {self.name!r}", loop.payload_max)
        await add_output(loop, Output(self.name, text, True))

    def __repr__(self) -> str:
        return f"<stream {self.name!r}>"


@checked
def stream(name: str) -> Stream:
    """Return a stream of this run, to which the workflow can append items. The stream begins with its first item, and
    ends with the run.
    """
    return Stream(name)


async def add_output(loop: WorkflowLoop, output: Output) -> None:
    """Add an output to the outputs of the activation. Raises Misuse if the activation has too many outputs."""
    if (never := add_output_nowait(loop, output)) is not None:
        await never


def add_output_nowait(loop: WorkflowLoop, output: Output) -> asyncio.Future[Any] | None:
    """Add an output as `add_output` does. This is for code that cannot await. If this returns a future, the future
    never ends.
    """
    chars_max = max(OUTPUT_CHARS_MAX, loop.payload_max)
    if len(loop.outputs) >= OUTPUTS_MAX or loop.output_chars + len(output.value) > chars_max:
        raise Misuse(
            f"a workflow may publish and append {OUTPUTS_MAX:,} times, and {OUTPUT_CHARS_MAX:,} characters, between "
            "two waits: let a step do it"
        )
    return loop.add_output(output)
