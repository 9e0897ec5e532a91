"""Races of answers to tasks. Whoever comes first: an answer that counts is read, and one that does not is refused."""

from __future__ import annotations

from typing import Any

from perdure import Workflow, task, workflow
from perdure.errors import TaskClosed
from tests.races.programs import HOUR, ROOM_FOR_ONE, Rule, Stage, gives_up
from tests.races.races import Racer, calm


@workflow
async def asks() -> int:
    return await task(queue="q", schema=int)


@workflow
async def asks_for_an_hour() -> Any:
    try:
        return await task(queue="q", schema=int, timeout=HOUR)
    except TimeoutError:
        return "late"


async def _asked(stage: Stage, run_id: str = "r") -> str:
    await calm(stage.env)
    (one,) = await stage.env.engine.tasks.list(run=run_id)
    return one.id


def _answers(stage: Stage, task_id: str, value: int = 1, run_id: str = "r") -> Racer:
    begin = stage.calls(f"answer {value}", lambda: stage.env.engine.tasks.answer(task_id, value))
    return Racer("answer", run_id, begin)


async def _outcome(stage: Stage, task_id: str, run_id: str = "r") -> tuple[Any, str]:
    """How run and task ended. One that was withdrawn must not have taken an answer, and one is answered once."""
    ended = await stage.ended(run_id)
    status = (await stage.env.engine.tasks.get(task_id)).status
    replies = [stage.reply(name) for name in stage.replies if name.startswith("answer")]
    assert all(reply in (None, TaskClosed) for reply in replies), replies
    assert replies.count(None) <= (status == "answered")
    return ended, status


async def answer_and_timeout(stage: Stage) -> Any:
    await stage.env.engine.start(asks_for_an_hour(), id="r")
    task_id = await _asked(stage)
    await stage.meet(stage.passes_an_hour("due", "r"), _answers(stage, task_id))
    return await _outcome(stage, task_id)


async def answer_and_cancel_of_its_run(stage: Stage) -> Any:
    await stage.env.engine.start(asks(), id="r")
    task_id = await _asked(stage)
    await stage.meet(stage.cancels("r"), _answers(stage, task_id))
    return await _outcome(stage, task_id)


async def two_answers(stage: Stage) -> Any:
    await stage.env.engine.start(asks(), id="r")
    task_id = await _asked(stage)
    await stage.meet(_answers(stage, task_id, 1), _answers(stage, task_id, 2))
    return await _outcome(stage, task_id)


async def release_and_answer(stage: Stage) -> Any:
    await stage.env.engine.start(asks(), id="r")
    task_id = await _asked(stage)
    await stage.meet(gives_up(stage), _answers(stage, task_id))
    return await _outcome(stage, task_id)


WORKFLOWS: list[Workflow[Any, Any]] = [asks, asks_for_an_hour]

RULES: dict[str, Rule] = {
    rule.race.__name__: rule
    for rule in (
        Rule(answer_and_timeout, ((1, "answered"), ("late", "withdrawn"))),
        # Whoever answers a moment before the cancel is told that it counts, and it does; the run has no use for it.
        Rule(
            answer_and_cancel_of_its_run,
            ((1, "answered"), ("cancelled", "answered"), ("cancelled", "withdrawn")),
        ),
        Rule(two_answers, ((1, "answered"), (2, "answered"))),
        Rule(release_and_answer, ((1, "answered"),), ROOM_FOR_ONE),
    )
}
