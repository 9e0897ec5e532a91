"""The workflows that an engine can run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from perdure.errors import DuplicateWorkflow, Misuse, UnknownWorkflow
from perdure.models.functions.define import RunCall, StepCall, Workflow, decorated_workflows


class Registry(Mapping[str, Workflow[Any, Any]]):
    """Workflows by name: those given, or (None) all that were decorated, also those that will be."""

    def __init__(self, workflows: Iterable[Workflow[Any, Any]] | None) -> None:
        self._given = None if workflows is None else list(workflows)
        self._known: dict[str, Workflow[Any, Any]] = {}
        self._missing: set[str] = set()
        self._seen = -1

    def load(self) -> None:
        """Raises DuplicateWorkflow, Misuse."""
        for workflow in self._given if self._given is not None else decorated_workflows():
            self.add(workflow)

    def add(self, workflow: Workflow[Any, Any]) -> None:
        if not isinstance(workflow, Workflow):
            raise Misuse(f"workflows=[…] takes what @workflow made, not {workflow!r}")
        known = self._known.get(workflow.name)
        if known is not None and known is not workflow:
            raise DuplicateWorkflow(
                f"two workflows are named {workflow.name!r}: {known.where} and {workflow.where}; "
                "give one of them another with @workflow(name=…), or say which to use with Engine(workflows=[…])"
            )
        self._known[workflow.name] = workflow

    def of(self, call: RunCall[Any]) -> Workflow[Any, Any]:
        """The workflow of a call that is to be started. Raises Misuse, UnknownWorkflow, DuplicateWorkflow."""
        if type(call) is not RunCall:
            if isinstance(call, StepCall):
                raise Misuse(f"{call!r} cannot be started: only workflows can; await the step inside one")
            raise Misuse(f"start() takes a called workflow, as in start(checkout('o-17')), not {call!r}")
        workflow = call.workflow
        if self._known.get(workflow.name) is not workflow:
            if self._given is not None:
                known = ", ".join(sorted(self._known)) or "none"
                raise UnknownWorkflow(
                    f"this engine does not run workflow {workflow.name!r}, only: {known}; "
                    "add it to Engine(workflows=[…])"
                )
            self.add(workflow)
        return workflow

    def __getitem__(self, name: str) -> Workflow[Any, Any]:
        if name not in self._known and self._given is None:
            # It may have been defined since; a name of which there are two by now is nobody's.
            found = [workflow for workflow in decorated_workflows() if workflow.name == name]
            if len(found) == 1:
                self.add(found[0])
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._known or super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
