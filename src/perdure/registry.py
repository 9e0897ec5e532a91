"""The workflows that an engine can run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from perdure.errors import DuplicateWorkflow, Misuse, UnknownWorkflow
from perdure.models.cooperation.define import Operation, decorated_operations
from perdure.models.functions.define import RunCall, StepCall, Stub, Workflow, decorated_workflows
from perdure.ports import Offer


def named(workflow: str, version: str) -> str:
    """A workflow and its version, for people."""
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

    Functions and graphs are what it maps to; operations stand beside them, and share their names.
    """

    def __init__(self, workflows: Iterable[Workflow[Any, Any] | Operation[Any]] | None) -> None:
        self._given = None if workflows is None else list(workflows)
        self._known: dict[tuple[str, str], Workflow[Any, Any]] = {}
        self.operations: dict[str, Operation[Any]] = {}

    def load(self) -> None:
        """Raises DuplicateWorkflow, Misuse, InvalidDefinition."""
        given: Iterable[Workflow[Any, Any] | Operation[Any]] = (
            self._given if self._given is not None else [*decorated_workflows(), *decorated_operations()]
        )
        for workflow in given:
            if isinstance(workflow, Operation):
                self._add_operation(workflow)
            else:
                self.add(workflow)

    def _add_operation(self, operation: Operation[Any]) -> None:
        known = self.operations.get(operation.name) or self._known.get((operation.name, ""))
        if known is not None and known is not operation:
            raise DuplicateWorkflow(
                f"{known!r} and {operation!r} have the same name; give one of them another, or say which to use with "
                "Engine(workflows=[…])"
            )
        _ = operation.plan  # From now on it stays as it is.
        self.operations[operation.name] = operation

    def names(self) -> list[tuple[str, str]]:
        """All that is here, by name and version."""
        return sorted([*self._known, *((name, "") for name in self.operations)])

    def add(self, workflow: Workflow[Any, Any]) -> None:
        if not isinstance(workflow, Workflow):
            raise Misuse(f"workflows=[…] takes what @workflow made, graphs and operations, not {workflow!r}")
        key = (workflow.name, workflow.version)
        known = self._known.get(key)
        if not key[1] and key[0] in self.operations:
            raise DuplicateWorkflow(f"{self.operations[key[0]]!r} and {workflow!r} have the same name: change one")
        if known is not None and known is not workflow:
            same = f"are named {workflow.name!r}" + (f" and have version {key[1]!r}" if key[1] else "")
            raise DuplicateWorkflow(
                f"two workflows {same}: {known.where} and {workflow.where}; give one of them another name or version "
                "with @workflow(name=…, version=…), or say which to use with Engine(workflows=[…])"
            )
        self._known[key] = workflow

    def offers(self) -> list[Offer]:
        """The code that is here, as the store wants to know it."""
        found = [
            Offer(name, version, workflow.fingerprint, workflow.model)
            for (name, version), workflow in self._known.items()
        ]
        return found + [Offer(name, "", operation.fingerprint) for name, operation in self.operations.items()]

    def of(self, call: RunCall[Any]) -> Workflow[Any, Any]:
        """The workflow of a call that is to be started. Raises Misuse, UnknownWorkflow, DuplicateWorkflow."""
        workflow = called(call)
        if isinstance(workflow, Stub):
            return workflow
        if self._known.get((workflow.name, workflow.version)) is not workflow:
            if self._given is not None:
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

    def __contains__(self, key: object) -> bool:
        if key in self._known or (isinstance(key, tuple) and key[1] == "" and key[0] in self.operations):
            return True
        return super().__contains__(key)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
