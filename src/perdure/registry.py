"""The workflows that an engine can run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from perdure.errors import DuplicateWorkflow, Misuse, UnknownWorkflow
from perdure.models.common.deployment import offered
from perdure.models.cooperation.define import Operation, decorated_operations
from perdure.models.cooperation.versions import Operations
from perdure.models.functions.define import RunCall, StepCall, Stub, Workflow, decorated_workflows, workflows_defined
from perdure.ports import Offer
from perdure.values.arguments import shown

Code = tuple[str, str, str]  # model ("" if it is not known), name, version


def named(workflow: str, version: str, topic: str | None = None) -> str:
    """Return a name for messages: a workflow with its version, or an operation with its version and topic."""
    if topic is not None:
        which = f"operation {workflow!r} version {version!r}" if version else f"operation {workflow!r}"
        return f"{which} on topic {topic!r}" if topic else which
    return f"workflow {workflow!r} version {version!r}" if version else f"workflow {workflow!r}"


def called(call: RunCall[Any]) -> Workflow[Any, Any]:
    """Return the workflow of a call. Raises Misuse."""
    if type(call) is RunCall:
        return call.workflow
    if isinstance(call, StepCall):
        raise Misuse(f"{call!r} cannot be started: only workflows can; await the step inside a workflow")
    raise Misuse(f"start() takes a called workflow, as in start(checkout('o-17')), not {call!r}")


class Registry(Mapping[tuple[str, str], Workflow[Any, Any]]):
    """Workflows by name and version. With None, these are all decorated workflows, including workflows that are
    decorated later.

    The registry is a mapping of functions and graphs. Operations are kept separately, by topic and name, because a
    function or an operation of another topic may have the same name.
    """

    def __init__(self, workflows: Iterable[Workflow[Any, Any] | Operation[Any]] | None) -> None:
        if workflows is not None and not isinstance(workflows, Iterable):
            raise Misuse(f"workflows must be a list of workflows, graphs and operations, not {shown(workflows)}")
        self._given = None if workflows is None else list(workflows)
        self._known: dict[tuple[str, str], Workflow[Any, Any]] = {}
        self.operations = Operations()
        self._code: frozenset[Code] = frozenset()
        self._code_of = (-1, (-1, -1))  # the numbers of workflows for which `_code` was computed: see `code`

    def code(self) -> frozenset[Code]:
        """Return all code that this engine can run, including code that was defined a moment ago. The call is cheap if
        the code has not changed since the last call.

        The coordinator calls this once before it decides a batch, so that the decisions do not need to.
        """
        made_of = (len(self._known), workflows_defined())
        if made_of != self._code_of:
            self._code_of = made_of
            self._code = frozenset(self._all_code())
        return self._code

    def _all_code(self) -> Iterator[Code]:
        decorated = decorated_workflows() if self._given is None else []
        names = Counter((workflow.name, workflow.version) for workflow in decorated)
        # A name that two workflows share counts as unknown.
        since = [one for one in decorated if (key := (one.name, one.version)) not in self._known and names[key] == 1]
        for workflow in (*self._known.values(), *since):
            yield from ((model, workflow.name, workflow.version) for model in ("", workflow.model))
        for operation in self.operations.all():
            yield "operation", operation.name, operation.stored_version
            if not operation.version:
                # Earlier versions of Perdure stored runs without the topic. For these runs, the topic of the message
                # decides.
                yield "operation", operation.name, ""

    def load(self) -> None:
        """Load the workflows that are defined so far. Raises DuplicateWorkflow, Misuse, InvalidDefinition."""
        given: Iterable[Workflow[Any, Any] | Operation[Any]] = (
            self._given if self._given is not None else [*decorated_workflows(), *decorated_operations()]
        )
        for workflow in given:
            if isinstance(workflow, Operation):
                self.operations.add(workflow)
            else:
                self.add(workflow)

    def names(self) -> list[tuple[str, str]]:
        """Return the names and versions of all code. The version of an operation is its topic, followed by its own
        version if it has one.
        """
        return sorted([*self._known, *((one.name, one.stored_version) for one in self.operations.all())])

    def add(self, workflow: Workflow[Any, Any]) -> None:
        if not isinstance(workflow, Workflow):
            raise Misuse(f"workflows=[…] takes workflows, graphs and operations, not {shown(workflow)}")
        key = (workflow.name, workflow.version)
        known = self._known.get(key)
        if known is not None and known is not workflow:
            same = f"are named {workflow.name!r}" + (f" and have version {key[1]!r}" if key[1] else "")
            raise DuplicateWorkflow(
                f"two workflows {same}: {known.where} and {workflow.where}; give one of them another name or version "
                "with @workflow(name=…, version=…), or name the one to use with Engine(workflows=[…])"
            )
        self._known[key] = workflow

    def offers(self) -> list[Offer]:
        """Return the code of this registry as offers. With offers, an engine asks the store for runs that fit its code.
        An offer has a fingerprint once something has asked for fingerprints.
        """
        found = [
            Offer(name, version, offered(workflow), workflow.model) for (name, version), workflow in self._known.items()
        ]
        return [*found, *self.operations.offers()]

    def of(self, call: RunCall[Any]) -> Workflow[Any, Any]:
        """Return the workflow of a call that is about to start. Raises Misuse, UnknownWorkflow, DuplicateWorkflow."""
        workflow = called(call)
        if isinstance(workflow, Stub):
            return workflow
        if self._known.get((workflow.name, workflow.version)) is not workflow:
            if self._given is not None:
                if (other := self._known.get((workflow.name, workflow.version))) is not None:
                    raise UnknownWorkflow(
                        f"this engine runs another {named(workflow.name, workflow.version)}, the one at {other.where}, "
                        f"and not the one at {workflow.where}; pass that to Engine(workflows=[…]), or start it by name"
                    )
                known = ", ".join(sorted(f"{name} {version}".rstrip() for name, version in self._known)) or "none"
                raise UnknownWorkflow(
                    f"this engine does not run {named(workflow.name, workflow.version)}, only: {known}; "
                    "add it to Engine(workflows=[…])"
                )
            self.add(workflow)
        return workflow

    def __getitem__(self, key: tuple[str, str]) -> Workflow[Any, Any]:
        if key not in self._known and self._given is None:
            # The workflow may have been defined after `load`. A name that two workflows share counts as unknown.
            found = [workflow for workflow in decorated_workflows() if (workflow.name, workflow.version) == key]
            if len(found) == 1:
                self.add(found[0])
        return self._known[key]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
