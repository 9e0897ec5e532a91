"""What the API can do: one module for each capability, and one line for it here."""

from __future__ import annotations

from perdure.http.routes import (
    artifacts,
    audit,
    changes,
    dead_letters,
    definitions,
    engines,
    events,
    executors,
    health,
    insights,
    metrics,
    runs,
    tasks,
    tokens,
    topics,
)

# Below the API's own path.
CAPABILITIES = (
    runs.router,
    insights.router,
    events.router,
    dead_letters.router,
    artifacts.router,
    tasks.router,
    executors.router,
    topics.router,
    definitions.router,
    engines.router,
    changes.router,
    tokens.router,
    audit.router,
)

# Where those who watch a server look for them.
WATCHED = (health.router, metrics.router)

__all__ = ["CAPABILITIES", "WATCHED"]
