"""A coordinator whose runs do what a test says: they wait, read, drop and end. What they were given is seen here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from perdure.coordinator.coordinator import Coordinator
from perdure.kernel.effects import Deliver, Effect
from perdure.kernel.events import Event
from perdure.kernel.ops import Advance, End, Op, Send, Start
from perdure.kernel.rows import Engine, Entry, Wait
from perdure.kernel.runs import Outcome
from perdure.kernel.status import Status
from perdure.kernel.wait_matches import Mailbox
from perdure.ports import Store, SystemClock
from perdure.values.limits import Limits

FAR = 2**60


class StandingClock(SystemClock):
    """Its time of day stands still, and can be set from any thread."""

    def __init__(self, at: int) -> None:
        self.at = at

    def now(self) -> int:
        return self.at


class MailRoom:
    """Ops given to `do` together share one batch."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = StandingClock(1_000)
        self.delivered: dict[tuple[str, str], Event | str] = {}  # run id, position -> what won it
        self._seq: dict[str, int] = {}
        self.coordinator = Coordinator(
            store,
            limits=Limits(),
            clock=self.clock,
            workflows=lambda: {("function", "w", ""), ("", "w", "")},
            listener=self,
        )

    async def enroll(self) -> Engine:
        return await self.store.enroll(engine_id="e-1", host="h", pid=1, workflows=[("w", "")], at=1)

    @property
    def now(self) -> int:
        return self.clock.now()

    def performed(self) -> None:
        """Nobody waits for that."""

    def lost_track(self) -> None:
        """Nobody else has runs here."""

    def broken(self, error: BaseException) -> None:
        """A test that breaks it says so itself."""

    def posted(self, slot: str, reply: asyncio.Future[Any]) -> None:
        """Nobody else answers here."""

    def perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Deliver):
                key = (effect.run_id, effect.position)
                self.delivered.setdefault(key, effect.event or effect.target or "timer")

    async def do(self, *ops: Op) -> list[Any]:
        replies = await self.coordinator.submit_internal(ops)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return replies

    async def idle(self) -> None:
        """Wait until all that the engine owes itself is done."""
        await self.coordinator._parts.idle.wait()

    def mailbox(self, run_id: str) -> Mailbox:
        return self.coordinator.mailbox(run_id)

    # Ops.

    def start(self, run_id: str) -> Start:
        return Start(run_id=run_id, at=self.now, workflow="w", input="{}")

    def wait(self, run_id: str, position: str, *options: Wait) -> Advance:
        return self._advance(run_id, waits=options, idle=True)

    def read(self, run_id: str, position: str, event_id: str) -> Advance:
        entry = self._entry(run_id, position)
        return self._advance(run_id, entries=(entry,), waits_dropped=(position,), events_read=(event_id,))

    def drop(self, run_id: str, position: str) -> Advance:
        return self._advance(run_id, entries=(self._entry(run_id, position),), waits_dropped=(position,))

    def end(self, run_id: str) -> Advance:
        end = End(status=Status.SUCCEEDED, outcome=Outcome(output="1"), has_waited=True)
        return self._advance(run_id, end=end)

    def send(self, event_id: str, name: str, to: str | None = None, **fields: Any) -> Send:
        defaults: dict[str, Any] = {"expires_at": FAR}
        event = Event(id=event_id, name=name, run_id=to, at=self.now, **defaults | fields)
        return Send(run_id=to or "", at=self.now, event=event)

    def _advance(self, run_id: str, **parts: Any) -> Advance:
        return Advance(run_id=run_id, at=self.now, claim=1, cause="test", **parts)

    def _entry(self, run_id: str, position: str) -> Entry:
        self._seq[run_id] = seq = self._seq.get(run_id, 0) + 1
        return Entry(
            run_id=run_id, seq=seq, position=position, kind="wait", name="w", value="1", started_at=1, at=self.now
        )


def for_event(
    run_id: str,
    position: str,
    name: str,
    option: int = 0,
    where: Sequence[tuple[str, str]] = (),
    mode: str = "after_wait",
) -> Wait:
    return Wait(
        run_id=run_id, position=position, option=option, kind="event", name=name, where=tuple(where), mode=mode
    )  # fmt: skip


@asynccontextmanager
async def post_office(store: Store) -> AsyncGenerator[MailRoom]:
    await store.open()
    office = MailRoom(store)
    await office.coordinator.start()
    try:
        yield office
    finally:
        office.coordinator.kill()
        await store.close()


async def contents(store: Store, run_ids: Iterable[str], names: Iterable[str]) -> Mapping[str, Any]:
    """All that is stored of events and waits, by who has it."""
    loaded = await store.load(list(run_ids))
    found: dict[str, Any] = {
        run_id: (
            str(one.run.status),
            sorted((event.id, event.position, event.option, event.shared) for event in one.events),
            sorted((wait.position, wait.option, wait.name, wait.due_at == 0) for wait in one.waits),
        )
        for run_id, one in loaded.items()
    }
    for name in names:
        found[f"queue {name}"] = [event.id for event in await store.events(name=name, limit=1000)]
    found["letters"] = [letter.id for letter in await store.dead_letters(limit=1000)]
    return found
