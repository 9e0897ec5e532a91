"""The decorators that define workflows and steps, and the typed calls that decorated functions return.

Calling a step or a workflow runs nothing: it returns a call. You can await the call, gather it, or put it into a task
group. You can also pass the call of a workflow to `Engine.start`.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import itertools
import types
import warnings
import weakref
from collections.abc import Callable, Coroutine, Generator
from functools import cached_property
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

from perdure.errors import InvalidDefinition, Misuse
from perdure.models.functions.commands import ChildCall
from perdure.models.functions.definition_outlines import Outline
from perdure.models.functions.loop import WorkflowLoop, here, running_loop
from perdure.values.arguments import Duration, checked, span_of
from perdure.values.digests import LARGE, SURELY_LARGE_CHARS, digest_of
from perdure.values.json import PAYLOAD_MAX_BYTES, UNSTORABLE_TEXT, Signature, local_names
from perdure.values.retry import Retry

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Compensation = Literal["halt", "continue"]

_NAME_MAX_CHARS = 500

_WORKFLOWS: weakref.WeakSet[Workflow[Any, Any]] = weakref.WeakSet()
_changes = itertools.count(1)
_defined = 0  # counts definitions: see workflows_defined


class StepCall(Coroutine[Any, Any, R_co]):
    """A step with its arguments. It can be awaited once. Outside a workflow, awaiting it runs the plain function."""

    __slots__ = ("_is_awaited", "_iterator", "args", "digest", "kwargs", "step")

    def __init__(
        self, step: Step[Any, R_co], args: tuple[Any, ...], kwargs: dict[str, Any], *, is_awaited: bool = False
    ) -> None:
        self._is_awaited = is_awaited  # awaited, requested in another way, or closed
        self._iterator: Generator[Any, Any, R_co] | None = None
        self.step = step
        self.args = args
        self.kwargs = kwargs
        self.digest = ""  # the digest of the arguments, once a workflow has asked for it

    def __await__(self) -> Generator[Any, Any, R_co]:
        step = self.step
        if self._is_awaited:
            raise Misuse(f"this call of step {step.name!r} was awaited before; call the step again")
        self._is_awaited = True
        loop = here.loop
        if loop is None:
            return step.plain(self.args, self.kwargs).__await__()
        args, kwargs = self.args, self.kwargs
        self.args, self.kwargs, chars = step.signature.copy(args, kwargs, loop.payload_max)
        if loop.has_digests:
            self.digest = LARGE if chars > SURELY_LARGE_CHARS else digest_of(step.signature, args, kwargs)
        return loop.request_step(step.name, self).__await__()

    def send(self, value: Any) -> Any:
        if self._iterator is None:
            self._iterator = self.__await__()
        try:
            return self._iterator.send(value)
        except StopIteration:
            # The iterator refers back to this call through the future. Breaking the cycle frees both now.
            self._iterator = None
            raise

    def throw(self, *error: Any) -> Any:
        if self._iterator is None:
            self.close()
            # `throw` is called with an exception, or with a type, an exception and a traceback.
            kind, value, *_ = (*error, None)
            raise kind if value is None else value
        return self._iterator.throw(*error)

    def close(self) -> None:
        self._is_awaited = True
        if self._iterator is not None:
            self._iterator.close()

    def __del__(self) -> None:
        if not self._is_awaited:
            warnings.warn(f"a call of step {self.step.name!r} was never awaited", RuntimeWarning, stacklevel=2)

    def __repr__(self) -> str:
        return f"<call of step {self.step.name!r}>"


@checked(error=InvalidDefinition, constructor=False)
class Step(Generic[P, R]):
    """A unit of work with side effects. It is retried when it fails.

    Its retry policy says whether and when another attempt follows. Its result or failure is journaled. `timeout` bounds
    each attempt, beginning when its body begins. `total_timeout` bounds all attempts and the pauses between them,
    beginning when the workflow requested the step. `heartbeat_timeout` bounds the time between two heartbeats.
    """

    def __init__(
        self,
        function: Callable[P, Any],
        *,
        name: str,
        retry: Retry,
        timeout: Duration | None,
        total_timeout: Duration | None,
        heartbeat_timeout: Duration | None,
        process: bool,
        transactional: bool = False,
        signature: Signature,
    ) -> None:
        self.function = function
        self.name = _checked_name(name, "step")
        self.retry = retry
        self.timeout_s = _seconds(timeout, "timeout", name)
        self.total_timeout_s = _seconds(total_timeout, "total_timeout", name)
        self.heartbeat_timeout_s = _seconds(heartbeat_timeout, "heartbeat_timeout", name)
        self.is_timed = self.timeout_s is not None or self.heartbeat_timeout_s is not None
        self.process = process
        self.transactional = transactional
        self.signature = signature
        self.is_async = inspect.iscoroutinefunction(function)
        if process:
            _check_for_process(function, name)
            if transactional:
                raise InvalidDefinition(
                    f"step {name!r} is transactional, and its transaction belongs to the engine's process: leave out "
                    "process=True"
                )
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__wrapped__ = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> StepCall[R]:
        signature = self.signature
        if kwargs or not signature.least <= len(args) <= signature.most:
            signature.check(args, kwargs)
        return StepCall(self, args, kwargs)

    def options(
        self,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        total_timeout: Duration | None = None,
        heartbeat_timeout: Duration | None = None,
        process: bool | None = None,
        transactional: bool | None = None,
    ) -> Step[P, R]:
        """Return a copy of the step with other options. The options apply to calls of the copy."""
        return Step(
            self.function,
            name=name or self.name,
            retry=retry or self.retry,
            timeout=self.timeout_s if timeout is None else timeout,
            total_timeout=self.total_timeout_s if total_timeout is None else total_timeout,
            heartbeat_timeout=self.heartbeat_timeout_s if heartbeat_timeout is None else heartbeat_timeout,
            process=self.process if process is None else process,
            transactional=self.transactional if transactional is None else transactional,
            signature=self.signature,
        )

    async def plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        """Run the plain function, without journal and retries."""
        if self.is_async:
            awaited: R = await self.function(*args, **kwargs)
            return awaited
        returned: R = await asyncio.to_thread(self.function, *args, **kwargs)
        return returned

    def __repr__(self) -> str:
        return f"<step {self.name!r}>"


class RunCall(Coroutine[Any, Any, R_co]):
    """A workflow with its arguments. It can be started once.

    An engine starts it, or a workflow starts or awaits it as a child. If it is awaited anywhere else, it runs as a
    plain coroutine.
    """

    __slots__ = ("_iterator", "args", "kwargs", "workflow")

    def __init__(self, workflow: Workflow[Any, R_co], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._iterator: Generator[Any, Any, R_co] | None = None
        self.workflow = workflow
        self.args = args
        self.kwargs = kwargs

    def input(self, payload_max: int = PAYLOAD_MAX_BYTES) -> str:
        """Return the arguments as JSON of at most `payload_max` bytes. Raises InvalidArguments, UnstorableValue."""
        return self.workflow.signature.write(self.args, self.kwargs, payload_max)

    def digest_for(self, loop: WorkflowLoop) -> str:
        """Return the digest of the arguments if the loop's run keeps digests. Otherwise return ""."""
        return digest_of(self.workflow.signature, self.args, self.kwargs) if loop.has_digests else ""

    def __await__(self) -> Generator[Any, Any, R_co]:
        if self._iterator is not None:
            raise Misuse(f"this call of workflow {self.workflow.name!r} was awaited before; call the workflow again")
        loop = running_loop()
        if loop is None:
            self._iterator = self.workflow.function(*self.args, **self.kwargs).__await__()
        else:
            child = ChildCall(self.workflow, self.input(loop.payload_max), "awaited", digest=self.digest_for(loop))
            self._iterator = loop.ask("child", self.workflow.name, child).__await__()
        return self._iterator

    def send(self, value: Any) -> Any:
        return (self._iterator or self.__await__()).send(value)

    def throw(self, *error: Any) -> Any:
        return (self._iterator or self.__await__()).throw(*error)

    def close(self) -> None:
        if self._iterator is not None:
            self._iterator.close()

    def __repr__(self) -> str:
        return f"<call of workflow {self.workflow.name!r}>"


class Workflow(Generic[P, R]):
    """A durable function: deterministic code between steps.

    After a crash, a run of the workflow goes on where it was.
    """

    model = "function"

    def __init__(
        self,
        function: Callable[P, Coroutine[Any, Any, R]],
        *,
        name: str,
        version: str,
        signature: Signature,
        compensation: Compensation = "halt",
    ) -> None:
        self.function = function
        self.name = _checked_name(name, "workflow")
        self.version = _checked_version(version, name)
        self.compensation = compensation
        self.signature = signature
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__wrapped__ = function
        _WORKFLOWS.add(self)
        _note_change()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> RunCall[R]:
        self.signature.check(args, kwargs)
        return RunCall(self, args, kwargs)

    @cached_property
    def outline(self) -> Outline | None:
        """The outline of the definition, if the workflow is data, as a graph is. Otherwise None. A run that began with
        another definition does not go on with this definition.
        """
        return None

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the code. It is computed when it is first needed, because the code may call functions that are
        defined further down.
        """
        return _fingerprint(self.function)

    @property
    def where(self) -> str:
        code = self.function.__code__
        return f"{code.co_filename}:{code.co_firstlineno}"

    def __repr__(self) -> str:
        return f"<workflow {self.name!r} at {self.where}>"


class Stub(Workflow[P, R]):
    """A workflow whose code is in another service. A stub has only the name, the version, the parameters and the result
    type.
    """

    model = ""  # Only a process that has the code knows the model.

    def __init__(self, function: Callable[P, Coroutine[Any, Any, R]], **options: Any) -> None:
        super().__init__(function, **options)
        forget(self)


def _note_change() -> None:
    global _defined  # noqa: PLW0603 - a workflow is defined before any engine exists that could hold this
    _defined = next(_changes)


def forget(workflow: Workflow[Any, Any]) -> None:
    """Remove a workflow from the decorated workflows, which every engine has by default. An engine that got the
    workflow explicitly keeps it.
    """
    _WORKFLOWS.discard(workflow)
    _note_change()


def workflows_defined() -> tuple[int, int]:
    """Return a value that changes whenever a workflow is defined or forgotten."""
    return _defined, len(_WORKFLOWS)


def decorated_workflows() -> list[Workflow[Any, Any]]:
    """Return all workflows that were decorated and still exist."""
    return sorted(_WORKFLOWS, key=lambda workflow: (workflow.name, workflow.where))


class _StepDecorator(Protocol):
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...


class _StubDecorator(Protocol):
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Stub[P, R]: ...


class _WorkflowDecorator(Protocol):
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...


@overload
def step(function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
@overload
def step(function: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(
    *,
    name: str | None = None,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    total_timeout: Duration | None = None,
    heartbeat_timeout: Duration | None = None,
    process: bool = False,
    transactional: bool = False,
) -> _StepDecorator: ...
@checked(error=InvalidDefinition, own=("function",))
def step(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    total_timeout: Duration | None = None,
    heartbeat_timeout: Duration | None = None,
    process: bool = False,
    transactional: bool = False,
) -> Any:
    """Make a function a step. Async functions run on the process's event loop, and plain functions run in a thread.

    With `process=True` a plain function runs in a worker process. Use this for work that keeps the processor busy, or
    that may crash. The worker process imports the function's module again. It is killed when the step is cancelled or
    takes too long. Arguments and result are passed as JSON.

    With `transactional=True` the step can write to your own tables in the store's database through
    `current_step().connection`. These writes are committed together with the step's result. So they happen exactly
    once, even if processes crash. On SQLite, the function must be a plain function. On Postgres, it must be an async
    function.

    Without a retry policy, a step has three attempts. `Retry.never()` allows one attempt.
    """

    def decorate(function: Callable[..., Any], depth: int = 1) -> Step[Any, Any]:
        _check_function(function, "step")
        called = name or function.__qualname__
        return Step(
            function,
            name=called,
            retry=retry or Retry(),
            timeout=timeout,
            total_timeout=total_timeout,
            heartbeat_timeout=heartbeat_timeout,
            process=process,
            transactional=transactional,
            signature=Signature(function, f"step {called!r}", local_names(function, depth)),
        )

    return decorate if function is None else decorate(function, 2)


@overload
def workflow(function: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *, name: str | None = None, version: str = "", compensation: Compensation = "halt"
) -> _WorkflowDecorator: ...
@checked(error=InvalidDefinition, own=("function",))
def workflow(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    version: str = "",
    compensation: Compensation = "halt",
) -> Any:
    """Make an async function a durable workflow. The default name is the function's `__qualname__`.

    `compensation` says what happens when a call that was registered with `compensate` fails. "halt" stops the rollback
    there, and "continue" goes on with the remaining calls. In both cases the run ends as rollback_failed.
    """
    if compensation not in ("halt", "continue"):
        raise InvalidDefinition(f'compensation is "halt" or "continue", not {compensation!r}')

    def decorate(function: Callable[..., Any], depth: int = 1) -> Workflow[Any, Any]:
        _check_function(function, "workflow")
        called = name or function.__qualname__
        if not inspect.iscoroutinefunction(function):
            raise InvalidDefinition(f"workflow {called!r} must be an `async def`, since it awaits its steps")
        signature = Signature(function, f"workflow {called!r}", local_names(function, depth))
        return Workflow(function, name=called, version=version, signature=signature, compensation=compensation)

    return decorate if function is None else decorate(function, 2)


@overload
def stub(function: Callable[P, Coroutine[Any, Any, R]], /) -> Stub[P, R]: ...
@overload
def stub(*, name: str | None = None, version: str = "") -> _StubDecorator: ...
@checked(error=InvalidDefinition, own=("function",))
def stub(function: Callable[..., Any] | None = None, /, *, name: str | None = None, version: str = "") -> Any:
    """Declare a workflow whose code is in another service. The body of the function is never run.

    Calls of the stub are typed, and their arguments are checked. You can start these calls, or await them as children.
    An engine that has the code runs them.
    """

    def decorate(function: Callable[..., Any], depth: int = 1) -> Stub[Any, Any]:
        _check_function(function, "stub")
        called = name or function.__qualname__
        if not inspect.iscoroutinefunction(function):
            raise InvalidDefinition(f"the stub of workflow {called!r} must be an `async def`, as the workflow is")
        signature = Signature(function, f"workflow {called!r}", local_names(function, depth))
        return Stub(function, name=called, version=version, signature=signature)

    return decorate if function is None else decorate(function, 2)


def _check_function(function: Any, what: str) -> None:
    if isinstance(function, (staticmethod, classmethod)) or not inspect.isfunction(function):
        raise InvalidDefinition(f"@{what} decorates functions, not {type(function).__qualname__} objects")
    outer, _, _ = function.__qualname__.rpartition(".")
    if outer and not outer.endswith("<locals>"):
        raise InvalidDefinition(
            f"@{what} cannot decorate the method {function.__qualname__!r}: there is no object to call it on after a "
            "restart. Make it a function, and hand clients and pools in with Engine(resources=…) and resource(…)"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidDefinition(f"@{what} cannot decorate the generator {function.__qualname__!r}: return one value")


def _check_for_process(function: Callable[..., Any], name: str) -> None:
    """Check that a worker process can run the function. A worker process finds the function by its module and name, and
    has no event loop. Raises InvalidDefinition.
    """
    if inspect.iscoroutinefunction(function):
        raise InvalidDefinition(
            f"step {name!r} is async, and process=True is for plain functions: make it a `def`, or leave process out"
        )
    if "<" in function.__qualname__:
        raise InvalidDefinition(
            f"step {name!r} has process=True, but a worker process cannot find {function.__qualname__!r} again: "
            "define it at the top level of a module"
        )


def _checked_name(name: Any, what: str) -> str:
    """Return the name if it can be stored. Raises InvalidDefinition.

    A name is a key in every store, as long as a journal contains it.
    """
    if not isinstance(name, str) or not 0 < len(name) <= _NAME_MAX_CHARS:
        raise InvalidDefinition(f"a {what}'s name is a text of 1 to {_NAME_MAX_CHARS} characters, not {name!r:.80}")
    if UNSTORABLE_TEXT.search(name) is not None:
        raise InvalidDefinition(f"a {what}'s name cannot contain NUL or lone surrogates: {name!r:.80}")
    return name


def _checked_version(version: Any, name: str) -> str:
    """Return the version if it can be stored. Raises InvalidDefinition. An empty version means that the workflow has no
    version.
    """
    if not isinstance(version, str) or len(version) > _NAME_MAX_CHARS or UNSTORABLE_TEXT.search(version) is not None:
        raise InvalidDefinition(
            f"the version of workflow {name!r} is a text of up to {_NAME_MAX_CHARS} characters without NUL and lone "
            f"surrogates, not {version!r:.80}"
        )
    return version


def _seconds(duration: Duration | None, what: str, name: str) -> float | None:
    if duration is None:
        return None
    return span_of(duration, f"step {name!r}: {what}", error=InvalidDefinition, positive=True).total_seconds()


def _fingerprint(function: Callable[..., Any]) -> str:
    """Return a hash of the function's code. It covers the functions of the same package that the code names, at any
    depth.
    """
    digest = hashlib.sha256()
    package = (function.__module__ or "").partition(".")[0]
    seen: set[int] = set()

    def visit_function(function: Any) -> None:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        visit(function.__code__, function.__globals__ | {name: _content(cell) for name, cell in cells})

    def visit(code: types.CodeType, names: dict[str, Any]) -> None:
        digest.update(code.co_code)
        digest.update(repr([_stable(const) for const in code.co_consts if not inspect.iscode(const)]).encode())
        digest.update(repr((code.co_names, code.co_varnames)).encode())
        for const in code.co_consts:
            if inspect.iscode(const):
                visit(const, names)
        for name in (*code.co_names, *code.co_freevars):
            found = names.get(name)
            called = inspect.unwrap(found) if callable(found) else None
            if inspect.isfunction(called) and id(called) not in seen:
                seen.add(id(called))
                if (called.__module__ or "").partition(".")[0] == package:
                    visit_function(called)

    seen.add(id(function))
    visit_function(function)
    return digest.hexdigest()[:16]


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # No value was assigned to the name yet.
        return None


def _stable(const: object) -> object:
    """Return a constant whose repr is the same in every process. The order of a set of texts differs between
    processes."""
    return sorted(map(repr, const)) if isinstance(const, frozenset) else const
