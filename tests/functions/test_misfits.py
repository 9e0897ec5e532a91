"""Events that do not fit: refused when they are sent, or set aside as dead letters when their reader finds out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from perdure import Delivered, Event, Limits, NamedEvent, Queued, TimeReached, event, first, receive, timer, workflow
from perdure.errors import InvalidArguments, KeyReused, QueueFull, RunNotWaiting
from perdure.models.functions import events
from perdure.models.functions.events import options_of
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource

Open = Callable[..., Environment]
HOUR = timedelta(hours=1)


class Weighed(Event, event_name="misfits.weighed"):
    kilos: float
    tags: set[str] = msgspec.field(default_factory=set)


class News(Event, event_name="misfits.news", consume_on_read=False, delivery="all", expire_after=HOUR):
    number: int


class Rang(Event, event_name="misfits.rang"):
    loud: bool = False


@workflow(name="misfits.hears")
async def hears() -> bool:
    return (await receive(Rang)).loud


@workflow(name="misfits.weighs")
async def weighs() -> float:
    return (await receive(Weighed)).kilos


@workflow(name="misfits.waits")
async def waits_an_hour() -> str:
    got = await first(Weighed, timer(HOUR))
    return "late" if isinstance(got, TimeReached) else str(got.kilos)


@workflow(name="misfits.chooses")
async def chooses(kilos: float) -> float:
    return (await receive(Weighed, where={"kilos": kilos})).kilos


@workflow(name="misfits.reads")
async def reads() -> int:
    return (await receive(News)).number


@pytest.fixture
def opened(source: StoreSource) -> Open:
    return lambda **options: Environment(
        [weighs, waits_an_hour, chooses, reads, hears], source, **{"autojump_s": None, **options}
    )


@pytest.fixture
def without_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that sends knows no class of these names, as a client elsewhere does not."""
    monkeypatch.setattr(events, "_KINDS", {})


# When they are sent.


async def test_an_event_sent_by_its_name_alone_is_one_without_fields(opened: Open) -> None:
    async with opened() as env:
        run = await env.engine.start(hears())
        await env.quiet()
        assert await env.engine.send(NamedEvent("misfits.rang"), to=run.id) == Delivered((run.id,))
        assert await run.result() is False


async def test_a_client_without_the_class_sends_an_event_by_its_name_alone(opened: Open, without_classes: None) -> None:
    async with opened() as env:
        run = await env.engine.start(hears())
        await env.engine.send(NamedEvent("misfits.rang"), to=run.id)
        assert await run.result() is False


async def test_an_event_that_does_not_fit_its_class_is_refused(opened: Open) -> None:
    async with opened() as env:
        await env.engine.start(weighs(), id="r")
        wrong: list[Any] = [Weighed(kilos="heavy"), NamedEvent("misfits.weighed", {"kilos": "heavy"})]  # type: ignore[arg-type]
        for one in wrong:
            for to in ("r", None):
                with pytest.raises(InvalidArguments, match=r"misfits\.weighed.*\$\.kilos"):
                    await env.engine.send(one, to=to)
            with pytest.raises(InvalidArguments, match=r"\$\.kilos"):
                await env.engine.send_many([one])
        assert await env.engine.events.pending() == await env.engine.events.pending(to="r") == []
        await env.engine.send(NamedEvent("misfits.weighed", {"kilos": 5}), to="r")
        assert await env.engine.handle("r").result() == 5


async def test_a_dead_letter_that_does_not_fit_is_not_replayed(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as env:
        await env.engine.start(weighs(), id="r")
        await env.quiet()
        with monkeypatch.context() as patch:
            patch.setattr(events, "_KINDS", {})
            await env.engine.send(NamedEvent("misfits.weighed", {"kilos": "heavy"}), to="r")
            await env.quiet()
        (letter,) = await env.engine.dead_letters.list()
        with pytest.raises(InvalidArguments, match=r"\$\.kilos"):
            await env.engine.dead_letters.replay(letter.id)
        assert len(await env.engine.dead_letters.list()) == 1


# When they are read.


@pytest.mark.usefixtures("without_classes")
@pytest.mark.parametrize("to", ["r", None])
@pytest.mark.parametrize("is_early", [False, True])
async def test_a_misfit_becomes_a_dead_letter_and_its_reader_waits_on(
    opened: Open, to: str | None, is_early: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "perdure")
    async with opened() as env:
        if to is not None or not is_early:
            await env.engine.start(weighs(), id="r")
        if not is_early:
            await env.quiet()
        for value in ({"kilos": "heavy"}, {"kilos": None}, {"kilos": 7}):
            await env.engine.send(NamedEvent("misfits.weighed", value), to=to)
        if to is None and is_early:
            await env.engine.start(weighs(), id="r")
        assert await env.engine.handle("r").result() == 7
        letters = await env.engine.dead_letters.list()
        assert {str(letter.value) for letter in letters} == {"{'kilos': 'heavy'}", "{'kilos': None}"}
        assert all("$.kilos" in letter.reason and letter.target_status == "misfit" for letter in letters)
        assert [letter.to for letter in letters] == ["r", "r"]
        assert "dead letter" in caplog.text
        await env.check()


@pytest.mark.usefixtures("without_classes")
async def test_a_timer_beside_a_misfit_still_fires(opened: Open) -> None:
    async with opened() as env:
        run = await env.engine.start(waits_an_hour(), id="r")
        await env.quiet()
        await env.engine.send(NamedEvent("misfits.weighed", {"kilos": "heavy"}), to="r")
        await env.quiet()
        await env.restart()
        await env.advance(HOUR)
        assert await env.engine.handle(run.id).result() == "late"


@pytest.mark.usefixtures("without_classes")
async def test_a_retained_misfit_is_a_dead_letter_for_each_who_waits(opened: Open) -> None:
    class Elsewhere(Event, event_name="misfits.news", consume_on_read=False, delivery="all", expire_after=HOUR):
        """What another service takes the event to be."""

        number: str

    async with opened() as env:
        for id in ("a", "b"):
            await env.engine.start(reads(), id=id)
        await env.quiet()
        await env.engine.send(Elsewhere(number="one"))
        await env.quiet()
        assert sorted(letter.to for letter in await env.engine.dead_letters.list()) == ["a", "b"]
        await env.engine.send(News(number=2))
        for id in ("a", "b"):
            assert await env.engine.handle(id).result() == 2
        await env.check()


async def test_a_misfit_is_set_aside_once_whenever_the_process_dies(
    fresh: Callable[[], StoreSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_KINDS", {})

    async def scenario(env: Environment) -> tuple[float, int]:
        run = await env.engine.start(weighs(), id="r")
        for number, kilos in enumerate(("heavy", 7)):
            await env.engine.send(NamedEvent("misfits.weighed", {"kilos": kilos}), key=str(number))
        return await run.result(), len(await env.engine.dead_letters.list())

    report = await run_with_crashes(scenario, workflows=[weighs], store=fresh)
    assert report.result == (7, 1)


# Whole numbers.


@pytest.mark.parametrize(("asked", "sent"), [(5.0, 5), (5.0, 5.0), (5, 5.0), (5, 5), (0.5, 0.5)])
async def test_where_compares_numbers_not_how_they_are_written(opened: Open, asked: float, sent: float) -> None:
    async with opened() as env:
        run = await env.engine.start(chooses(asked), id="r")
        await env.quiet()
        assert isinstance(await env.engine.send(Weighed(kilos=6)), Queued)
        assert await env.engine.send(Weighed(kilos=sent)) == Delivered(("r",))
        assert await run.result() == sent


def test_what_where_asks_for_has_one_form() -> None:
    forms = {event("x", where={"a": one}).where for one in (5, 5.0)}
    assert forms == {(("a", "5"),)}
    assert event("x", where={"a": 2.0**60, "b": -0.5, "c": "5.0", "d": True}).where == (
        ("a", "1.152921504606847e18"), ("b", "-0.5"), ("c", '"5.0"'), ("d", "true"),
    )  # fmt: skip


# Keys.


@pytest.mark.parametrize("to", ["r", None])
async def test_another_event_under_the_same_key_is_refused(opened: Open, to: str | None) -> None:
    async with opened() as env:
        await env.engine.start(weighs(), id="r")
        await env.engine.send(Weighed(kilos=5, tags={"a", "b", "c"}), to=to, key="k")
        for same in (Weighed(kilos=5.0, tags={"c", "b", "a"}), Weighed(kilos=5, tags={"b", "a", "c"})):
            assert isinstance(await env.engine.send(same, to=to, key="k"), Queued)
        for other, whom in ((Weighed(kilos=6), to), (Weighed(kilos=5, tags={"a"}), to), (News(number=1), to)):
            with pytest.raises(KeyReused, match="key 'k'") as caught:
                await env.engine.send(other, to=whom, key="k")
            assert (caught.value.key, caught.value.event) == ("k", options_of(other).name)
        await env.engine.start(weighs(), id="other")
        with pytest.raises(KeyReused):
            await env.engine.send(Weighed(kilos=5, tags={"a", "b", "c"}), to="other", key="k")
        await env.restart()
        with pytest.raises(KeyReused):
            await env.engine.send(Weighed(kilos=6), to=to, key="k")
        assert await env.engine.handle("r").result() == 5


async def test_two_events_race_for_a_key(opened: Open) -> None:
    async with opened() as env:
        replies = await asyncio.gather(
            *[env.engine.send(Weighed(kilos=n % 2), key="k") for n in range(6)], return_exceptions=True
        )
        assert [type(reply) for reply in replies] == [Queued, KeyReused] * 3
        assert [one.value["kilos"] for one in await env.engine.events.pending()] == [0]


# What errors tell.


async def test_refusals_of_broadcasts_name_the_event(opened: Open) -> None:
    async with opened(limits=Limits(events_pending_max=1)) as env:
        with pytest.raises(RunNotWaiting, match=r"misfits\.weighed") as strict:
            await env.engine.send(Weighed(kilos=1), strict=True)
        assert strict.value.event == "misfits.weighed"
        await env.engine.send(Weighed(kilos=1))
        with pytest.raises(QueueFull, match=r"misfits\.weighed") as full:
            await env.engine.send(Weighed(kilos=2))
        assert (full.value.event, full.value.pending) == ("misfits.weighed", 1)


# Options.


def test_a_subclass_has_the_options_of_its_base() -> None:
    class Base(Event, expire_after=HOUR, consume_on_read=False, delivery="all", on_target_terminated="dead_letter"):
        number: int

    class Inner(Base, delivery="after_create"):
        more: int = 0

    class Last(Inner, event_name="misfits.last", expire_after=None, consume_on_read=True):
        pass

    base, inner, last = options_of(Base), options_of(Inner), options_of(Last)
    assert (inner.name, inner.expire_after, inner.consume_on_read) == ("Inner", HOUR, False)
    assert (inner.delivery, inner.on_target_terminated) == ("after_create", "dead_letter")
    assert (last.name, last.expire_after, last.consume_on_read) == ("misfits.last", None, True)
    assert (last.delivery, last.on_target_terminated) == ("after_create", "dead_letter")
    assert (base.name, base.delivery) == ("Base", "all")
