"""The routes of the API: one module per noun, in the order of the facets of an engine."""

from __future__ import annotations

from perdure.http.routes import (
    artifacts,
    audit,
    dead_letters,
    definitions,
    engines,
    events,
    health,
    metrics,
    records,
    run,
    run_details,
    run_watch,
    runs,
    tasks,
    tokens,
    topics,
)

# Routes below the path of the API. Their tags are the nouns that the command line, the dashboard and the docs use too.
ROUTERS = (
    runs.router,
    run.router,
    run_details.router,
    run_watch.router,
    tasks.router,
    artifacts.router,
    records.router,
    events.router,
    dead_letters.router,
    topics.router,
    engines.router,
    definitions.router,
    audit.router,
    tokens.router,
)

# Routes at the paths where monitoring looks for them.
MONITORED = (health.router, metrics.router)

# The tags in their order, each with a description.
TAGS = {
    "runs": "Instances of workflows: start them, look at them, change them.",
    "tasks": "Work that runs wait for people or programs to do.",
    "artifacts": "Named results of runs.",
    "records": "Named values with versions.",
    "events": "Events that are sent to runs.",
    "dead letters": "Events that their run did not read before it ended.",
    "topics": "Messages of operations, their handlers, and what follows from them.",
    "engines": "The processes that share the store.",
    "definitions": "The workflows that can be started now.",
    "audit": "Every change in the store, and who asked for it.",
    "tokens": "Who may use the API.",
    "health": "Checks for load balancers and supervisors.",
    "metrics": "Figures for Prometheus.",
}

__all__ = ["MONITORED", "ROUTERS", "TAGS"]
