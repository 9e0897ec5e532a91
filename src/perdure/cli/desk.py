"""Where a verb finds what it needs: the settings, a client, and ways to show what it found.

In a terminal there are tables, colours and progress; in a pipe plain lines, a tab between their cells and nothing cut;
with --json one document, or one per line where things go on happening.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from perdure.cli.failures import Code, Refusal
from perdure.cli.settings import Settings, file_of, not_in_memory, shown
from perdure.cli.texts import cell, tame, tame_lines, to_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from perdure.engine import AnyClient

COLOURS = {
    "succeeded": "green",
    "failed": "bold red",
    "rollback_failed": "bold red",
    "cancelled": "yellow",
    "rolled_back": "yellow",
    "rolling_back": "yellow",
    "cancelling": "yellow",
    "running": "cyan",
    "suspended": "blue",
    "ok": "green",
    "warning": "yellow",
    "problem": "bold red",
    "alive": "green",
    "open": "cyan",
    "claimed": "blue",
    "answered": "green",
    "withdrawn": "yellow",
}


class Desk:
    def __init__(self, store: str | None, as_json: bool) -> None:
        self.settings = Settings(store)
        self.as_json = as_json
        self.is_terminal = not as_json and sys.stdout.isatty()
        self._console: Console | None = None

    @asynccontextmanager
    async def client(self, patience_s: float | None = None) -> AsyncGenerator[AnyClient]:
        """A client of the store, with the usual patience unless given. It makes no store and brings none up to date:
        raises Refusal if that were needed."""
        await self.check_store()
        from perdure.client import Client
        from perdure.values.limits import Limits

        limits = Limits() if patience_s is None else Limits(patience_s=patience_s)
        async with Client(self.settings.store, codec=self.settings.codec, limits=limits) as client:
            yield client

    async def check_store(self) -> None:
        url = self.settings.store
        not_in_memory(url)
        from perdure.upgrade import look

        schema = await look(url)
        if schema.is_current:
            return
        if not schema.found:
            file = file_of(url)
            what = f"there is no file {file}" if file and schema.found is None else f"{shown(url)} has no tables yet"
            raise Refusal(
                f"{what}, so there is nothing to look at",
                "see that it is the right one (--store, PERDURE_STORE, perdure.toml); perdure worker, or perdure"
                " migrate, makes it",
                code=Code.STORE,
                kind="store_not_there",
            )
        raise Refusal(
            f"{shown(url)} has schema version {schema.found}, and this Perdure needs {schema.known}",
            "bring it up to date with perdure migrate: from then on an older Perdure refuses it, so stop older engines"
            " first",
            code=Code.STORE,
            kind="schema_too_old",
        )

    # Showing.

    @property
    def console(self) -> Console:
        if self._console is None:
            from rich.console import Console

            self._console = Console(highlight=False, markup=False, emoji=False)
        return self._console

    def document(self, value: object) -> None:
        """One JSON document; easier on the eye in a terminal."""
        self._write(to_json(value, indent=sys.stdout.isatty()))

    def json_line(self, value: object) -> None:
        self._write(to_json(value))
        sys.stdout.flush()

    def say(self, text: str = "") -> None:
        """A remark for people, of one line. With --json nobody is there to read it."""
        self.say_lines([text])

    def say_lines(self, lines: Iterable[str]) -> None:
        if not self.as_json:
            for line in lines:
                self._write(tame(line))
            sys.stdout.flush()

    def line(self, *cells: Any) -> None:
        """A line of cells."""
        self._write("\t".join(cell(value) for value in cells).rstrip())
        sys.stdout.flush()

    def print_raw(self, text: str) -> None:
        """What was asked for, as it is."""
        self._write(text)

    def aside(self, text: str) -> None:
        """A remark that is no part of the result: to standard error, and not with --json."""
        if not self.as_json:
            sys.stderr.write(f"{tame(text)}\n")
            sys.stderr.flush()

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
        """Rows of cells. `empty` is said in a terminal if there are none; a pipe gets no lines then."""
        rows = list(rows)
        if self.is_terminal:
            if rows:
                self.console.print(rich_table(columns, rows))
            else:
                self.say(empty)
            return
        for row in rows:
            self._write("\t".join(cell(value) for value in row))

    def fields(self, pairs: Iterable[tuple[str, Any]]) -> None:
        """What one thing is, a line for each of its fields that says something."""
        for name, value in pairs:
            if value is None or value == "" or value == {} or value == []:
                continue
            text = tame_lines(value) if isinstance(value, str) else cell(value)
            if not self.is_terminal:
                self._write(f"{name}\t{cell(value)}")
                continue
            from rich.text import Text

            line = Text(f"{name:<12} ", style="dim")
            line.append(text.replace("\n", f"\n{'':<13}"), style=COLOURS.get(text, ""))
            self.console.print(line)

    @contextmanager
    def live(self) -> Generator[Live]:
        """A place in the terminal whose picture changes."""
        from rich.live import Live

        with Live(console=self.console, auto_refresh=False, transient=False) as live:
            yield live

    @contextmanager
    def progress(self, what: str, total: int) -> Generator[Any]:
        """Counts up to a total: a bar in a terminal, nothing in a pipe. Gives what is to be called for each one."""
        if not self.is_terminal or total < 2:
            yield lambda: None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        with Progress(TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
                      console=self.console) as bar:  # fmt: skip
            task = bar.add_task(what, total=total)
            yield lambda: bar.advance(task)

    def _write(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")

    # Asking.

    def confirm(self, question: str, *, yes: bool) -> None:
        """Go on only if somebody says so. Raises Refusal, and nothing was done, if nobody does or can."""
        if yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()) or self.as_json:
            raise Refusal(
                "this would change several things at once, and there is nobody to ask",
                "add --yes if that is what you want",
                code=Code.NOT_CONFIRMED,
                kind="not_confirmed",
            )
        if self.ask(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
            raise Refusal("nothing was done", code=Code.NOT_CONFIRMED, kind="not_confirmed")

    def ask(self, question: str) -> str:
        """A line that somebody types. Ctrl-C and Ctrl-D end the command."""
        # While an event loop runs, Ctrl-C would only be noted, and this would go on waiting.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            sys.stderr.write(tame(question))
            sys.stderr.flush()
            line = sys.stdin.readline()
        finally:
            signal.signal(signal.SIGINT, before)
        if not line:
            raise Refusal("nothing was done", code=Code.NOT_CONFIRMED, kind="not_confirmed")
        return line.rstrip("\n")


def rich_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> RenderableType:
    """The first column, which is what one copies, is never cut or folded if there is any room for it."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim", show_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, no_wrap=number == 0, overflow="fold" if number == 0 else "ellipsis")
    for row in rows:
        texts = [cell(value) for value in row]
        table.add_row(*[Text(text, style=COLOURS.get(text, "")) for text in texts])
    return table


__all__ = ["COLOURS", "Desk", "rich_table"]
