"""The functions of the builder. They make joins, merges, and all kinds of node except plain functions."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from perdure.errors import InvalidDefinition
from perdure.models.functions.define import Step, Workflow
from perdure.models.functions.events import Event, options_of
from perdure.models.graphs.kinds import (
    Action,
    Artifact,
    Child,
    Http,
    Human,
    Kind,
    Llm,
    Mcp,
    Metric,
    Remote,
    Set,
    Terminate,
    Timer,
    Wait,
)
from perdure.models.graphs.records import Example
from perdure.models.graphs.schemas import schema_of
from perdure.models.graphs.spec import JoinSpec, MergeSpec
from perdure.values.arguments import Duration, checked, span_of

OnEarly = Literal["cancel", "let_finish", "late_merge"]
OnTimeout = Literal["fail", "proceed"]


class NodeRef(Struct, frozen=True):
    """A node of a graph that is being built."""

    name: str


NodeName = NodeRef | str


def named(node: NodeName) -> str:
    return node.name if isinstance(node, NodeRef) else node


class Bound(Struct, frozen=True):
    """A part of a definition, with the Python object that it refers to."""

    part: Any
    field: Literal["reducer", "workflow", "schema"]
    reference: str
    found: Any


def seconds(duration: Duration | None) -> float | None:
    """Raises InvalidDefinition."""
    return None if duration is None else span_of(duration, "a duration", error=InvalidDefinition).total_seconds()


def reference_of(found: Any) -> str:
    """Return the text by which a definition refers to a Python object."""
    if isinstance(found, Workflow) and found.model != "function":
        return found.name
    function = found.function if isinstance(found, Step | Workflow) else found
    return f"{function.__module__}:{function.__qualname__}"


@checked(error=InvalidDefinition)
def all_of(
    fork: NodeName | None = None,
    *,
    timeout: Duration | None = None,
    on_timeout: OnTimeout = "fail",
    tolerate: float | None = None,
) -> JoinSpec:
    """Go on once every branch of the fork has ended or arrived, with the outputs of the branches that arrived.

    `fork` names the node of the fork. The default is the innermost fork before the join. The timeout counts from the
    first arrival. When the timeout has passed, the join fails, or it goes on with the branches that have arrived.
    `tolerate` is the number of branches (a whole number), or the fraction of the branches, that may fail. The output of
    a failed branch is its error. If more branches fail, the join fails.
    """
    return JoinSpec(fork=_fork(fork), timeout=seconds(timeout), on_timeout=on_timeout, tolerate=tolerate)


@checked(error=InvalidDefinition)
def any_of(
    fork: NodeName | None = None,
    *,
    on_early: OnEarly = "cancel",
    timeout: Duration | None = None,
    on_timeout: OnTimeout = "fail",
) -> JoinSpec:
    """Go on with the first branch that arrives. The other branches are cancelled, or may finish, or finish and are
    merged too.

    `build` refuses a timeout here, because it would count from the first arrival. Set a timeout on the nodes before the
    join instead.
    """
    return JoinSpec(need="any", fork=_fork(fork), on_early=on_early, timeout=seconds(timeout), on_timeout=on_timeout)


@checked(error=InvalidDefinition)
def m_of(
    number: int,
    fork: NodeName | None = None,
    *,
    on_early: OnEarly = "cancel",
    timeout: Duration | None = None,
    on_timeout: OnTimeout = "fail",
) -> JoinSpec:
    """Go on once `number` branches have arrived. Fail as soon as so many branches can no longer arrive."""
    return JoinSpec(need=number, fork=_fork(fork), on_early=on_early, timeout=seconds(timeout), on_timeout=on_timeout)


def _fork(fork: NodeName | None) -> str | None:
    return None if fork is None else named(fork)


@checked(error=InvalidDefinition)
def append(target: str, source: str | None = None) -> MergeSpec:
    """Add the outputs to the list at `target`, in the order of the branch index. If all outputs are lists, add their
    items.
    """
    return MergeSpec(strategy="append", target=target, source=source)


@checked(error=InvalidDefinition)
def collect(target: str, source: str | None = None) -> MergeSpec:
    """Write a list of the outputs to `target`, in the order of the branch index."""
    return MergeSpec(strategy="collect", target=target, source=source)


@checked(error=InvalidDefinition)
def merge_object(target: str, source: str | None = None) -> MergeSpec:
    """Add the fields of all outputs to the object at `target`. If a field occurs twice, the later branch wins."""
    return MergeSpec(strategy="merge_object", target=target, source=source)


@checked(error=InvalidDefinition)
def keyed(target: str, source: str | None = None) -> MergeSpec:
    """Write an object with the outputs by branch index to `target`: {"0": …}."""
    return MergeSpec(strategy="keyed", target=target, source=source)


@checked(error=InvalidDefinition)
def last_wins(target: str, source: str | None = None) -> MergeSpec:
    """Write the output of the last branch to `target`, or {} if there is no output."""
    return MergeSpec(strategy="last_wins", target=target, source=source)


@checked(error=InvalidDefinition)
def reduce_with(reducer: Callable[[list[Any]], Any], target: str, source: str | None = None) -> Bound:
    """Call `reducer` with the list of outputs, and write its result to `target`.

    The reducer must be pure: replays call it again.
    """
    reference = reference_of(reducer)
    spec = MergeSpec(strategy="reduce", target=target, source=source, reducer=reference)
    return Bound(spec, "reducer", reference, reducer)


@checked(error=InvalidDefinition)
def assign(values: Mapping[str, Any]) -> Kind:
    """A node that writes values into the context: `assign({"state.count": "state.count + 1"})`."""
    return Set(values=dict(values))


@checked(error=InvalidDefinition)
def terminate(status: Literal["succeeded", "failed"] = "succeeded", message: str | None = None) -> Kind:
    """A node that ends the whole run at once. The `message` of a failure is an expression."""
    return Terminate(status=status, message=message)


@checked(error=InvalidDefinition)
def timer(duration: Duration | str | None = None, *, until: str | None = None) -> Kind:
    """A node that waits for a duration or until a time.

    The duration is a number of seconds, or an expression for a number of seconds. The time is an expression.
    """
    return Timer(seconds=duration if isinstance(duration, str) else seconds(duration), until=until)


@checked(error=InvalidDefinition)
def wait(event: type[Event] | str, *, where: Mapping[str, Any] | None = None) -> Kind:
    """A node that waits for an event, sent to the run or broadcast. `where` maps fields of the event to expressions."""
    name = event if isinstance(event, str) else options_of(event).name
    return Wait(event=name, where=dict(where or {}))


@checked(error=InvalidDefinition)
def http(
    url: str,
    *,
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = "GET",
    headers: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    body: Any = None,
    accept: list[int] | None = None,
    secret: str | None = None,
    secret_headers: Mapping[str, str] | None = None,
) -> Kind:
    """A node that makes an HTTP request.

    `url` and the values of the other parameters are expressions. `secret` is the name of a secret that is sent as
    `Authorization: Bearer …`. `secret_headers` maps headers to names of secrets.
    """
    return Http(
        url=url,
        method=method,
        headers=dict(headers or {}),
        params=dict(params or {}),
        body=body,
        accept=accept or [],
        secret=secret,
        secret_headers=dict(secret_headers or {}),
    )


@checked(error=InvalidDefinition)
def llm(
    model: str | None = None,
    prompt: str | None = None,
    *,
    profile: str | None = None,
    prompt_spec: str | None = None,
    system: str | None = None,
    examples: Iterable[Example] = (),
    base_url: str | None = None,
    secret: str | None = None,
    schema: Any = None,
    strict: bool = False,
    repairs: int = 2,
    temperature: float | None = None,
    max_tokens: int | None = None,
    options: Mapping[str, Any] | None = None,
    stream: str | None = None,
    stall_timeout: Duration = 120.0,
    attempt_timeout: Duration = 600.0,
) -> Bound | Kind:
    """A node that asks a model at an endpoint with OpenAI's chat completions.

    Its result is {output, usage, model, repairs}. `schema` is a type or a JSON Schema. `secret` is the name of the
    secret with the key. `profile` and `prompt_spec` name records, for example "fast" or "fast@2". docs/graphs.md
    describes the other fields.

    Raises InvalidDefinition.
    """
    spec = Llm(
        model=model,
        prompt=prompt,
        profile=profile,
        prompt_spec=prompt_spec,
        examples=list(examples),
        system=system,
        base_url=base_url,
        secret=secret,
        schema=_plain_schema(schema),
        strict=strict,
        repairs=repairs,
        temperature=temperature,
        max_tokens=max_tokens,
        options=dict(options or {}),
        stream=stream,
        stall_timeout=seconds(stall_timeout) or 0,
        attempt_timeout=seconds(attempt_timeout) or 0,
    )
    return _with_schema(spec, schema, "llm(schema=…)")


@checked(error=InvalidDefinition)
def mcp(
    tool: str,
    *,
    url: str | None = None,
    command: Iterable[str] = (),
    secret: str | None = None,
    secret_env: Mapping[str, str] | None = None,
) -> Kind:
    """A node that calls a tool of an MCP server.

    The node's `input` has the arguments. Its result is {text, content, structured}. `url` is an expression for the
    address of the server. Instead of `url`, `command` can name a program that is started for each call. `secret` is the
    name of a secret that is sent to the url. `secret_env` maps environment variables of the program to names of
    secrets.
    """
    return Mcp(tool=tool, url=url, command=list(command), secret=secret, secret_env=dict(secret_env or {}))


@checked(error=InvalidDefinition)
def metric(
    name: str,
    value: str | float = 1,
    *,
    unit: str = "",
    attributes: Mapping[str, Any] | None = None,
    stream: str = "metrics",
) -> Kind:
    """A node that appends a metric to the run's stream, once. `value` is a number, or an expression for a number.
    `attributes` are expressions by name."""
    return Metric(name=name, value=value, unit=unit, attributes=dict(attributes or {}), stream=stream)


@checked(error=InvalidDefinition)
def action(name: str) -> Kind:
    """A node that executes a record of kind "action". "notify" means the newest version, and "notify@2" a certain
    version.

    The record's expressions see only `input`, with the values that this node's `input` maps.
    """
    return Action(action=name)


@checked(error=InvalidDefinition)
def human(
    queue: str = "human",
    *,
    title: str = "",
    schema: Any = None,
    on_timeout: Any = None,
) -> Bound | Kind:
    """A node that gives a person a task of this queue. The answer is the node's result.

    `schema` is a type or a JSON Schema. `queue` and `title` are templates. When the node's timeout has passed, the node
    fails. With `on_timeout`, a mapping of expressions, its values are the result instead. Raises InvalidDefinition.
    """
    spec = Human(queue=queue, title=title, schema=_plain_schema(schema), on_timeout=on_timeout)
    return _with_schema(spec, schema, "human(schema=…)")


@checked(error=InvalidDefinition)
def remote(
    queue: str,
    *,
    title: str = "",
    schema: Any = None,
    on_timeout: Any = None,
) -> Bound | Kind:
    """A node that gives a remote worker a task.

    The worker claims the task by its queue, and answers {result, context_updates, staged_artifacts}. `schema` describes
    the result. The other parameters are the same as for `human`. Raises InvalidDefinition.
    """
    spec = Remote(queue=queue, title=title, schema=_plain_schema(schema), on_timeout=on_timeout)
    return _with_schema(spec, schema, "remote(schema=…)")


@checked(error=InvalidDefinition)
def artifact(
    name: str, value: Any = None, *, template: str | None = None, type: str = "", media_type: str | None = None
) -> Kind:
    """A node that stages an artifact of the run. The content comes from the expressions in `value`, or is the text of a
    template. The artifact is published if the run succeeds.
    """
    return Artifact(name=name, value=value, template=template, type=type, media_type=media_type)


def _plain_schema(schema: Any) -> dict[str, Any] | str | None:
    return schema if isinstance(schema, str) else dict(schema) if isinstance(schema, Mapping) else None


def _with_schema(spec: Llm | Human | Remote, schema: Any, place: str) -> Bound | Kind:
    """Return a kind with its schema. The schema is the one that was given, a reference to a type, or the schema of a
    type.
    """
    if schema is None or spec.schema is not None:
        return spec
    if isinstance(schema, type) and not typing.get_args(schema) and schema.__module__ != "builtins":
        return Bound(spec, "schema", f"{schema.__module__}:{schema.__qualname__}", schema)
    return msgspec.structs.replace(spec, schema=schema_of(schema, place))


@checked(error=InvalidDefinition)
def child(
    workflow: Workflow[Any, Any] | str | None = None,
    *,
    name_from: str | None = None,
    version: str = "",
    version_from: str | None = None,
    on_failure: Literal["propagate", "catch"] = "propagate",
) -> Bound | Kind:
    """A node that runs a workflow of any model as a child.

    Pass the workflow as an object or by its name. The name can also come from an expression (`name_from`), and so can
    the version (`version_from`). If you pass only a name, the node's `input` has the arguments by name. A graph has one
    argument. It is called `input`.
    """
    if workflow is None or isinstance(workflow, str):
        return Child(
            workflow=workflow or "",
            name_from=name_from,
            version=version,
            version_from=version_from,
            on_failure=on_failure,
        )
    reference = reference_of(workflow)
    spec = Child(workflow=reference, name_from=name_from, version_from=version_from, on_failure=on_failure)
    return Bound(spec, "workflow", reference, workflow)
