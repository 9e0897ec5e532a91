"""The pages: one module for each, with a template and perhaps a script of its name, and one line for it here."""

from __future__ import annotations

from perdure.dashboard.pages import (
    artifacts,
    bulk,
    definitions,
    engines,
    events,
    overview,
    run,
    runs,
    task,
    tasks,
    topics,
)

# Those with a title are in the menu, in this order.
PAGES = (
    overview.page,
    runs.page,
    run.page,
    bulk.page,
    tasks.page,
    task.page,
    events.page,
    topics.page,
    definitions.page,
    engines.page,
    artifacts.page,
)

__all__ = ["PAGES"]
