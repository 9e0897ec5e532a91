"""The kinds of node. Each kind has a class with its fields and the work that it prepares. base.py has the common parts.

function.py calls functions, and steps of operations. tasks.py gives tasks to people and remote workers. waits.py waits
for an event or a time. workflow.py runs a child. llm.py calls a language model, http.py a server, and mcp.py a tool.
plain.py assigns values, artifact.py stages an artifact, and metric.py appends a metric.
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
