"""The workflows that an engine can run."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from perdure.errors import DuplicateWorkflow, Misuse, UnknownWorkflow
from perdure.kernel.cooperation import read_version
from perdure.models.common.deployment import offered
from perdure.models.cooperation.define import Operation, decorated_operations
from perdure.models.cooperation.versions import Operations
from perdure.models.functions.define import RunCall, StepCall, Stub, Workflow, decorated_workflows
from perdure.ports import Offer
from perdure.values.arguments import shown


def named(workflow: str, version: str, topic: str | None = None) -> str:
    """A workflow and its version, or an operation, its version and its topic, for people."""
    if topic is not None:
        which = f"operation {workflow!r} version {version!r}" if version else f"operation {workflow!r}"
        return f"{which} on topic {topic!r}" if topic else which
    return f"workflow {workflow!r} version {version!r}" if version else f"workflow {workflow!r}"


def called(call: RunCall[Any]) -> Workflow[Any, Any]:
    """The workflow that was called. Raises Misuse."""
    if type(call) is RunCall:
        return call.workflow
    if isinstance(call, StepCall):
        raise Misuse(f"{call!r} cannot be started: only workflows can; await the step inside one")
    raise Misuse(f"start() takes a called workflow, as in start(checkout('o-17')), not {call!r}")


class Registry(Mapping[tuple[str, str], Workflow[Any, Any]]):
    """Workflows by name and version: those given, or (None) all that were decorated, also those that will be.

    Functions and graphs are what it maps to. Operations stand beside them, by topic and name: a function or another
    topic's operation of the same name is something else.
    """

    def __init__(self, workflows: Iterable[Workflow[Any, Any] | Operation[Any]] | None) -> None:
        if workflows is not None and not isinstance(workflows, Iterable):
            raise Misuse(f"workflows is a list of what @workflow made, graphs and operations, not {shown(workflows)}")
        self._given = None if workflows is None else list(workflows)
        self._known: dict[tuple[str, str], Workflow[Any, Any]] = {}
        self.operations = Operations()
        self.code: Container[tuple[str, str, str]] = _Code(self)  # models, names and versions that can be run here

    def load(self) -> None:
        """Raises DuplicateWorkflow, Misuse, InvalidDefinition."""
        given: Iterable[Workflow[Any, Any] | Operation[Any]] = (
            self._given if self._given is not None else [*decorated_workflows(), *decorated_operations()]
        )
        for workflow in given:
            if isinstance(workflow, Operation):
                self.operations.add(workflow)
            else:
                self.add(workflow)

    def names(self) -> list[tuple[str, str]]:
        """All that is here, by name and version; that of an operation is its topic, with its own if it has one."""
        return sorted([*self._known, *((one.name, one.stored_version) for one in self.operations.all())])

    def add(self, workflow: Workflow[Any, Any]) -> None:
        if not isinstance(workflow, Workflow):
            raise Misuse(f"workflows=[…] takes what @workflow made, graphs and operations, not {shown(workflow)}")
        key = (workflow.name, workflow.version)
        known = self._known.get(key)
        if known is not None and known is not workflow:
            same = f"are named {workflow.name!r}" + (f" and have version {key[1]!r}" if key[1] else "")
            raise DuplicateWorkflow(
                f"two workflows {same}: {known.where} and {workflow.where}; give one of them another name or version "
                "with @workflow(name=…, version=…), or say which to use with Engine(workflows=[…])"
            )
        self._known[key] = workflow

    def offers(self) -> list[Offer]:
        """The code that is here, as the store wants to know it. It has fingerprints once one was needed."""
        found = [
            Offer(name, version, offered(workflow), workflow.model) for (name, version), workflow in self._known.items()
        ]
        return [*found, *self.operations.offers()]

    def of(self, call: RunCall[Any]) -> Workflow[Any, Any]:
        """The workflow of a call that is to be started. Raises Misuse, UnknownWorkflow, DuplicateWorkflow."""
        workflow = called(call)
        if isinstance(workflow, Stub):
            return workflow
        if self._known.get((workflow.name, workflow.version)) is not workflow:
            if self._given is not None:
                if (other := self._known.get((workflow.name, workflow.version))) is not None:
                    raise UnknownWorkflow(
                        f"this engine runs another {named(workflow.name, workflow.version)}, the one at {other.where}, "
                        f"and not the one at {workflow.where}; hand that to Engine(workflows=[…]), or start it by name"
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
            # It may have been defined since; a name of which there are two by now is nobody's.
            found = [workflow for workflow in decorated_workflows() if (workflow.name, workflow.version) == key]
            if len(found) == 1:
                self.add(found[0])
        return self._known[key]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class _Code(Container[tuple[str, str, str]]):
    """Whether the code of a run is here: by its model ("" if that is not known), its name and its version."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, tuple):
            return False
        model, name, version = key
        if model == "operation":
            # Without a topic it was stored by an earlier version: its message tells whose it is.
            operations = self._registry.operations
            if not version:
                return any(name == one.name and not one.version for one in operations.all())
            topic, version = read_version(version)
            return operations.exact(topic, name, version) is not None
        found = self._registry.get((name, version))
        return found is not None and model in ("", found.model)
