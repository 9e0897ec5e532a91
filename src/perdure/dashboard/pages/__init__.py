"""The pages: one module for each page, with a template of the same name. A page may also have a script of the same
name.

The menu has the nouns of an engine's facets, in their order. `handlers` has the actions of a run's page for handlers
outside. `sign_in` is not in the menu.
"""

from __future__ import annotations

from perdure.dashboard.pages import (
    artifacts,
    dead_letters,
    definitions,
    engines,
    events,
    many_runs,
    overview,
    records,
    run,
    runs,
    task,
    tasks,
    topics,
)

# Pages with a title are in the menu, in this order.
PAGES = (
    overview.page,
    runs.page,
    run.page,
    many_runs.page,
    tasks.page,
    task.page,
    artifacts.page,
    records.page,
    events.page,
    dead_letters.page,
    topics.page,
    engines.page,
    definitions.page,
)

__all__ = ["PAGES"]
