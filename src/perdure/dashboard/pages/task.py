"""One task: its payload, and a form for its answer. The form is made from the schema of the answer."""

from __future__ import annotations

from perdure.dashboard.forms import field_of, value_of
from perdure.dashboard.page import Action, Form, Page, Shown, Visit, Wrong
from perdure.dashboard.renderer import url
from perdure.errors import InvalidAnswer, UnstorableValue


async def show(visit: Visit) -> Shown:
    task = await visit.client.tasks.get(visit.part("task_id"))
    return {
        "title": task.title or f"Task {task.id}",
        "task": task,
        "field": field_of(task.schema),
        "given": visit.given,
    }


async def answer(visit: Visit, form: Form) -> str:
    """Answer the task. A second answer fails, because the task is already closed."""
    task = await visit.client.tasks.get(visit.part("task_id"))
    value = value_of(field_of(task.schema), form)
    try:
        await visit.client.tasks.answer(task.id, value, actor=visit.caller.name)
    except (InvalidAnswer, UnstorableValue) as error:
        raise Wrong(str(error)) from error
    return url("tasks", task.id, said="answered")


page = Page(
    name="task",
    path="/tasks/{task_id:str}",
    menu="tasks",
    show=show,
    actions=[Action("/tasks/{task_id:str}/answer", answer)],
)
