"""The kinds of node. One class per kind: its fields, and the work that it prepares. base.py has the common parts.

A node can be a function or an operation's step (function.py), a task for a person or a remote worker (tasks.py), a wait
for an event or a time (waits.py), a child workflow (workflow.py), a call of a language model (llm.py), of a server
(http.py) or of a tool (mcp.py), an assignment (plain.py), an artifact (artifact.py) or a metric (metric.py).
"""

from perdure.models.graphs.kinds.action import Action
from perdure.models.graphs.kinds.artifact import Artifact
from perdure.models.graphs.kinds.base import KINDS, Kind
from perdure.models.graphs.kinds.function import Function, add_kind
from perdure.models.graphs.kinds.http import Http
from perdure.models.graphs.kinds.llm import Llm
from perdure.models.graphs.kinds.mcp import Mcp
from perdure.models.graphs.kinds.metric import Metric
from perdure.models.graphs.kinds.plain import Set, Terminate
from perdure.models.graphs.kinds.tasks import Human, Remote
from perdure.models.graphs.kinds.waits import Timer, Wait
from perdure.models.graphs.kinds.workflow import Child

__all__ = [
    "KINDS",
    "Action",
    "Artifact",
    "Child",
    "Function",
    "Http",
    "Human",
    "Kind",
    "Llm",
    "Mcp",
    "Metric",
    "Remote",
    "Set",
    "Terminate",
    "Timer",
    "Wait",
    "add_kind",
]
