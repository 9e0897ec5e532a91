"""Whatever the Python API is called with, a caller's mistake is Perdure's own error, at once, and nothing is half done.

The calls are made from the signatures: a method that is added tomorrow is called here tomorrow. `make soak` also calls
with several wrong arguments at a time.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import typing
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import perdure
import perdure.http
from perdure import Client, Engine, RunHandle, cooperation, current_step, step, workflow
from perdure.cooperation import Operation, RootHandle, Scope, Topic
from perdure.engine import AnyClient
from perdure.errors import Misuse, PerdureError
from perdure.graph import Graph
from perdure.storage.memory import MemoryStore
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from perdure.values.arguments import form_of, own_checks, shown
from tests.api.surface import facets
from tests.engine.hostile_calls import (
    HOSTILE,
    SOME,
    Public,
    Rude,
    arguments,
    call,
    finished,
    fitting_value,
    nothing,
    public_calls,
    user_values,
)

SEED = int(os.environ.get("SEED", random.randrange(2**32)))

# What Perdure or asyncio calls, not the user: constructors of what is handed out, hooks that users override.
INSIDE = {
    "ChildHandle.__init__", "CurrentRun.__init__", "CurrentStep.__init__", "OperationStep.__init__",
    "RootHandle.__init__", "RunCall.__init__", "RunHandle.__init__", "Scope.__init__", "Step.__init__",
    "StepCall.__init__", "Stub.__init__", "Workflow.__init__",
    "Retry.again", "Retry.pause_us",
    "RunCall.digest_for", "RunCall.input", "RunCall.send", "RunCall.throw", "StepCall.send", "StepCall.throw",
    "Kind.policy", "Kind.prepare", "Kind.refuse", "FaultyStore.*", "StoreProxy.*",
    "App.__init__", "Dashboard.covers", "Dashboard.identify", "Dashboard.refused",
    "Credentials.*",  # the HTTP server's
    *(f"{facet.__name__}.__init__" for facet in facets().values()),
    "Historical.*", "Registry.*", "Strategy.*", "TimeWindow.expected", "TimeWindow.heeds", "TimeWindow.joins",
}  # fmt: skip
# With arguments that fit they would end the engine, wait for what never comes, ask the network, or change the process.
ONLY_WRONG = {
    "add_kind", "addresses", "assert_exactly_once", "assert_readiness_agrees", "check_store", "compensate",
    "continue_as", "death", "each", "explore", "fresh_urls", "run_with_crashes", "serve", "shutdown", "survive",
    "trace", "until_stopped", "kill", "Engine.open", "Client.open", "Blocking.open", "close", "VirtualClock.sleep",
    "YieldPoints.passed",
}  # fmt: skip
VERBS = {
    "compensate", "continue_as", "event", "first", "publish", "receive", "run_of", "sleep", "sleep_until", "stage",
    "start", "stream", "task", "timer", "timer_at",
}  # fmt: skip
CALLS: Counter[str] = Counter()
SIZES = ["some", pytest.param("all", marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]


class Size:
    """How much is called with: in a soak everything, else what has found most."""

    is_all = False

    @property
    def values(self) -> list[Any]:
        return HOSTILE if self.is_all else SOME


SIZE = Size()


@pytest.fixture(params=SIZES, autouse=True)
def size(request: pytest.FixtureRequest) -> Iterator[None]:
    SIZE.is_all = request.param == "all"
    before = CALLS.total()
    yield
    SIZE.is_all = False
    if request.param == "all":
        print(f"{CALLS.total() - before} calls, SEED={SEED}")  # noqa: T201 - make soak shows it


def is_inside(public: Public) -> bool:
    name = getattr(public.owner, "__name__", "")
    return bool({f"{name}.{public.name}", f"{name}.*"} & INSIDE)


def calls_of(*owners: Any, names: set[str] | None = None) -> list[Public]:
    return [
        one
        for one in public_calls()
        if one.owner in owners and not is_inside(one) and (names is None or one.name in names)
    ]


def test_every_call_of_the_public_api_is_checked() -> None:
    """By construction: a public function that takes something has its arguments checked, or is named above."""
    loose = {
        one.label
        for one in public_calls()
        if not is_inside(one)
        and own_checks(one.function) is None
        and any(one.form(parameter) is not None for parameter in one.parameters.values())
    }
    assert loose == set()


def is_lasting(public: Public) -> bool:
    return bool({public.name, f"{getattr(public.owner, '__name__', '')}.{public.name}"} & ONLY_WRONG)


def attempts(public: Public) -> Iterator[tuple[str, dict[str, Any]]]:
    """Arguments to call it with: each hostile value in each place; in a soak, several of them at once too."""
    fine = arguments(public)
    for name, parameter in public.parameters.items():
        form = public.form(parameter)
        for value in SIZE.values:
            if is_lasting(public) and (form is None or form.allows(value)):
                continue
            yield name, {**fine, name: value}
    drawn = random.Random(f"{SEED}{public.label}")
    for _ in range(50 if SIZE.is_all and public.parameters and not is_lasting(public) else 0):
        names = drawn.sample(sorted(public.parameters), drawn.randint(1, len(public.parameters)))
        yield ", ".join(names), {**fine, **{name: drawn.choice(HOSTILE) for name in names}}


def judged(public: Public, name: str, given: dict[str, Any], error: BaseException | None) -> str:
    """What is wrong with how a call ended; nothing if it is as it should be."""
    CALLS[type(error).__name__] += 1
    told = f"{public.label}({name}={_shown(given.get(name))})"
    if error is not None and not isinstance(error, (Misuse, PerdureError)):
        is_of_file = isinstance(error, OSError) and public.name in ("load", "stage_file")
        return "" if is_of_file else f"{told} raised {error!r:.200}"
    parameter = public.parameters.get(name)
    form = public.form(parameter) if parameter is not None else None
    if form is not None and type(given[name]) in (object, Rude) and not form.allows(given[name]):
        if not isinstance(error, Misuse):
            return f"{told} was taken"
        own = own_checks(public.function) or ()
        if name not in str(error) and name not in own and others_fit(public, name, given):
            return f"{told} raised {error!r:.200}, which does not name the argument"
    return ""


def others_fit(public: Public, name: str, given: dict[str, Any]) -> bool:
    forms = {one: public.form(public.parameters[one]) for one in given if one != name}
    return all(form is None or form.allows(given[one]) for one, form in forms.items())


def _shown(value: Any) -> str:
    return shown(value)[:60]


def bound(public: Public, instance: Any) -> Callable[..., Any]:
    if public.name == "__init__":
        made: Callable[..., Any] = public.owner
        return made
    found: Callable[..., Any] = getattr(instance if instance is not None else public.owner, public.name)
    return found


async def mistakes(public: Public, function: Callable[..., Any], within_s: float = 60) -> list[str]:
    """Call it with everything; what was not as it should be."""
    found: list[str] = []
    for name, given in attempts(public):
        error: BaseException | None = None
        try:
            async with asyncio.timeout(within_s):
                await finished(call(function, public, given))
        except TimeoutError:
            if within_s > 1:
                found.append(f"{public.label}({name}={_shown(given.get(name))}) hung")
        except Exception as raised:  # noqa: BLE001 - all of them are judged
            error = raised
        if problem := judged(public, name, given, error):
            found.append(problem)
    return found


# The engine, the client and their handles.


async def contents(engine: AnyClient) -> bytes:
    """All that a call could have changed."""
    runs = (await engine.runs.list(limit=1000)).runs
    found = [
        [(run.id, run.version) for run in runs],
        await engine.events.pending(limit=1000),
        await engine.dead_letters.list(limit=1000),
        await engine.tasks.list(limit=1000),
        await engine.topics.handlers(),
        await engine.records.list("nobody", limit=1000),
    ]
    return msgspec.json.encode(found)


PARTS = {kind: name for name, kind in facets().items()}
ENGINE = [one for one in calls_of(Engine, *PARTS) if one.name != "__init__" and one.parameters]


@pytest.mark.parametrize("public", ENGINE, ids=lambda one: f"{one.owner.__name__}.{one.name}")
async def test_an_engine_refuses_what_makes_no_sense(public: Public, quick_path: Path) -> None:
    async with Environment([nothing], f"sqlite:///{quick_path / 'calls.db'}", autojump_s=None) as env:
        engine = env.engine
        function = bound(public, getattr(engine, PARTS[public.owner]) if public.owner in PARTS else engine)
        found: list[str] = []
        for name, given in attempts(public):
            before = None
            if CALLS.total() % 10 == 0:
                await env.quiet()
                before = await contents(engine)
            error: BaseException | None = None
            try:
                async with asyncio.timeout(60):
                    await finished(call(function, public, given))
            except TimeoutError:
                found.append(f"{public.label}({name}={_shown(given.get(name))}) hung")
            except Exception as raised:  # noqa: BLE001 - all of them are judged
                error = raised
            found += filter(None, [judged(public, name, given, error)])
            if error is not None and before is not None:
                assert await contents(engine) == before, f"{public.label}({name}={_shown(given.get(name))})"
        assert not found, "\n".join(found[:20]) + f"\n{len(found)} in all, SEED={SEED}"
        await engine.run(nothing())
        await env.quiet()
        await env.check()


@pytest.mark.parametrize("public", calls_of(RunHandle, RootHandle), ids=lambda one: one.label)
async def test_handles_refuse_what_makes_no_sense(public: Public) -> None:
    async with Environment([nothing, listener], autojump_s=None) as env:
        if public.owner is RunHandle:
            handle: Any = await env.engine.start(nothing())
            await handle.result()
        else:
            handle = await env.engine.emit(TOPIC, "x")
            await handle.finished()
        assert await mistakes(public, bound(public, handle)) == []


# What is defined, and made.

TOPIC: Topic[str] = Topic("hostile-calls-listened", str)
listener = Operation("hostile-calls-listener", TOPIC)


@listener.step
async def listen(scope: Scope, message: str) -> None:
    if message != "x":
        await inside_operation(scope)


def made(owner: type[Any]) -> Any:
    """An object of a class that can be made without an engine, to call its methods on."""
    from perdure import Retry, Stream
    from perdure.dashboard import Oidc
    from perdure.graph import Network, Secrets
    from perdure.testing import Fault, VirtualClock, YieldPoints

    makers: dict[Any, Callable[[], Any]] = {
        Graph: lambda: Graph("hostile-calls-graph"),
        Retry: Retry,
        Stream: lambda: Stream("s"),
        Network: Network,
        Secrets: Secrets,
        Fault: lambda: Fault("before"),
        VirtualClock: VirtualClock,
        Oidc: lambda: Oidc(issuer="https://a", client_id="c", redirect_uri="https://b", scopes={"g": {"x": "read"}}),
        YieldPoints: YieldPoints,
        Topic: lambda: Topic("hostile-calls-made", str),
        Operation: lambda: Operation("hostile-calls-made", TOPIC),
        cooperation.Key: lambda: cooperation.Key("k", str),
        cooperation.Context: cooperation.Context,
        cooperation.TimeWindow: lambda: cooperation.TimeWindow(timedelta(seconds=1)),
        cooperation.OperationStep: lambda: Operation("hostile-calls-made", TOPIC).step(_handle),
    }
    return makers[owner]() if owner in makers else None


async def _handle(scope: Scope, message: str) -> None: ...


LIVE = {
    "Blocking", "ChildHandle", "Client", "CurrentRun", "CurrentStep", "Engine", "Environment", "RootHandle",
    "RunHandle", "Scope", "Step", *(facet.__name__ for facet in facets().values()),
}  # fmt: skip


def definitions() -> list[Public]:
    """What can be called without an engine: constructors, words of graphs, decorators."""
    found: list[Public] = []
    for one in public_calls():
        if is_inside(one) or not one.parameters or "client" in one.parameters:
            continue
        is_live = one.owner.__name__ in LIVE if inspect.isclass(one.owner) else one.owner in (perdure, cooperation)
        if is_live and one.name not in ("__init__", "go_to", "ready", "step", "stub", "workflow"):
            continue
        found.append(one)
    return found


@pytest.mark.filterwarnings("ignore")  # what was not used is not awaited
@pytest.mark.parametrize("public", definitions(), ids=lambda one: one.label)
async def test_definitions_refuse_what_makes_no_sense(public: Public) -> None:
    found: list[str] = []
    for name, given in attempts(public):
        error: BaseException | None = None
        try:
            await finished(
                call(bound(public, made(public.owner) if inspect.isclass(public.owner) else None), public, given)
            )
        except Exception as raised:  # noqa: BLE001 - all of them are judged
            error = raised
        found += filter(None, [judged(public, name, given, error)])
    assert not found, "\n".join(found[:20]) + f"\n{len(found)} in all, SEED={SEED}"


WITH_CLIENT = [one for one in public_calls() if one.owner is perdure.http and "client" in one.parameters]


@pytest.mark.parametrize("public", WITH_CLIENT, ids=lambda one: one.name)
async def test_tokens_refuse_what_makes_no_sense(public: Public) -> None:
    found: list[str] = []
    async with Client(MemoryStore()) as client:
        for name, given in attempts(public):
            if not isinstance(given["client"], Client) and name != "client":
                given["client"] = client
            error: BaseException | None = None
            before = await perdure.http.tokens(client)
            try:
                await finished(call(public.function, public, given))
            except Exception as raised:  # noqa: BLE001 - all of them are judged
                error = raised
            found += filter(None, [judged(public, name, given, error)])
            if error is not None:
                assert await perdure.http.tokens(client) == before, name
    assert not found, "\n".join(found[:20]) + f"\n{len(found)} in all, SEED={SEED}"


@pytest.mark.parametrize("kind", user_values(), ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_values_that_users_make_refuse_fields_of_wrong_types(kind: type[msgspec.Struct]) -> None:
    """Structs of msgspec, whose constructors check nothing by themselves."""
    hints = typing.get_type_hints(kind, include_extras=True)
    fitting_ones = {one.name: fitting_value(hints[one.name]) for one in msgspec.structs.fields(kind) if one.required}
    kind(**fitting_ones)
    found: list[str] = []
    for field in msgspec.structs.fields(kind):
        form = form_of(hints[field.name])
        for value in SIZE.values:
            CALLS["struct"] += 1
            try:
                kind(**{**fitting_ones, field.name: value})
            except Misuse as error:
                if field.name not in str(error):
                    found.append(f"{field.name}={_shown(value)} raised {error}")
            except Exception as error:  # noqa: BLE001 - all of them are judged
                found.append(f"{field.name}={_shown(value)} raised {error!r:.200}")
            else:
                if form is not None and not form.allows(value):
                    found.append(f"{field.name}={_shown(value)} was taken")
    assert not found, "\n".join(found[:20])


# In workflows, in steps, in operations.

FOUND: list[str] = []


async def inside(public: Public, function: Callable[..., Any]) -> None:
    FOUND.extend(await mistakes(public, function, within_s=0.5))


@workflow(name="hostile-calls-verbs")
async def verbs(name: str) -> None:
    for public in calls_of(perdure, names={name}):
        await inside(public, public.function)


@step(name="hostile-calls-in-step")
async def within() -> None:
    me = current_step()
    for public in calls_of(type(me)):
        await inside(public, bound(public, me))


@workflow(name="hostile-calls-steps")
async def steps() -> None:
    await within()


async def inside_operation(scope: Scope) -> None:
    for public in calls_of(Scope):
        await inside(public, bound(public, scope))


@pytest.mark.parametrize("name", sorted(VERBS))
async def test_a_workflow_is_told_what_makes_no_sense(name: str) -> None:
    FOUND.clear()
    async with Environment([verbs, nothing]) as env:
        await env.engine.run(verbs(name))
        assert not FOUND, "\n".join(FOUND[:20]) + f"\n{len(FOUND)} in all, SEED={SEED}"


async def test_a_step_is_told_what_makes_no_sense(source: StoreSource) -> None:
    FOUND.clear()
    async with Environment([steps], source) as env:
        await env.engine.run(steps())
        assert not FOUND, "\n".join(FOUND[:20]) + f"\n{len(FOUND)} in all, SEED={SEED}"


async def test_an_operation_is_told_what_makes_no_sense() -> None:
    FOUND.clear()
    async with Environment([listener, nothing]) as env:
        root = await env.engine.emit(TOPIC, "fuzz")
        try:
            await root.finished()
        except PerdureError:
            pass  # Calls that were fine may have had it fail; whether they were refused rightly is what counts.
        assert not FOUND, "\n".join(FOUND[:20]) + f"\n{len(FOUND)} in all, SEED={SEED}"
