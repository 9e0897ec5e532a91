"""The terminal of a command: its settings, a client, output, and questions.

In a terminal, output has tables, colours and progress bars. In a pipe it has plain lines, with a tab between cells, and
nothing is cut. With --json it is one JSON document. Commands that follow something write one document per line.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.cli.errors import Code, Refusal
from perdure.cli.formats import cell, tame, tame_lines, to_json
from perdure.cli.settings import Settings, file_of, not_in_memory, shown

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


class Terminal:
    """The place where a command was called: a terminal, a pipe, or a program that reads JSON."""

    def __init__(self, store: str | None, as_json: bool) -> None:
        self.settings = Settings(store)
        self.as_json = as_json
        self.is_tty = not as_json and sys.stdout.isatty()
        self._console: Console | None = None

    @asynccontextmanager
    async def client(self, patience_s: float | None = None) -> AsyncGenerator[AnyClient]:
        """Open a client of the store. `patience_s` replaces the default of Limits.

        This never creates or migrates a store. Raises Refusal if the store would have to be created or migrated.
        """
        await self.check_store()
        from perdure.client import Client
        from perdure.values.limits import Limits

        limits = Limits() if patience_s is None else Limits(patience_s=patience_s)
        async with Client(self.settings.store, codec=self.settings.codec, limits=limits) as client:
            yield client

    async def check_store(self) -> None:
        """Raise Refusal if the store does not exist, or if its schema is older than this version of Perdure needs."""
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
                f"{what}: there is no store yet",
                "check that the store is the right one (--store, PERDURE_STORE, perdure.toml); perdure worker and"
                " perdure migrate create it",
                code=Code.STORE,
                kind="store_not_there",
            )
        raise Refusal(
            f"{shown(url)} has schema version {schema.found}, and this Perdure needs {schema.known}",
            "run perdure migrate; older versions of Perdure refuse the store after that, so stop older engines first",
            code=Code.STORE,
            kind="schema_too_old",
        )

    # Output.

    @property
    def console(self) -> Console:
        if self._console is None:
            from rich.console import Console

            self._console = Console(highlight=False, markup=False, emoji=False)
        return self._console

    def document(self, value: object) -> None:
        """Write one JSON document. In a terminal it is indented."""
        self._write(to_json(value, indent=sys.stdout.isatty()))

    def json_line(self, value: object) -> None:
        """Write one of several JSON documents, on a line of its own."""
        self._write(to_json(value))
        sys.stdout.flush()

    def print_text(self, text: str = "") -> None:
        """Write a line for people. With --json it is left out."""
        self.print_lines([text])

    def print_lines(self, lines: Iterable[str]) -> None:
        """Write lines for people. With --json they are left out."""
        if not self.as_json:
            for line in lines:
                self._write(tame(line))
            sys.stdout.flush()

    def line(self, *cells: Any) -> None:
        """Write a line of cells, with a tab between them."""
        self._write("\t".join(cell(value) for value in cells).rstrip())
        sys.stdout.flush()

    def print_raw(self, text: str) -> None:
        """Write text unchanged."""
        self._write(text)

    def note(self, text: str) -> None:
        """Write a line that is not part of the result to standard error. With --json it is left out."""
        if not self.as_json:
            sys.stderr.write(f"{tame(text)}\n")
            sys.stderr.flush()

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
        """Write rows of cells. If there are no rows, a terminal gets the text `empty`, and a pipe gets nothing."""
        rows = list(rows)
        if self.is_tty:
            if rows:
                self.console.print(rich_table(columns, rows))
            else:
                self.print_text(empty)
            return
        for row in rows:
            self._write("\t".join(cell(value) for value in row))

    def fields(self, pairs: Iterable[tuple[str, Any]]) -> None:
        """Write the fields of one thing, with a line for each field that has a value."""
        for name, value in pairs:
            if value is None or value == "" or value == {} or value == []:
                continue
            text = tame_lines(value) if isinstance(value, str) else cell(value)
            if not self.is_tty:
                self._write(f"{name}\t{cell(value)}")
                continue
            from rich.text import Text

            line = Text(f"{name:<12} ", style="dim")
            line.append(text.replace("\n", f"\n{'':<13}"), style=COLOURS.get(text, ""))
            self.console.print(line)

    @contextmanager
    def live(self) -> Generator[Live]:
        """Yield a place in the terminal whose content can be replaced."""
        from rich.live import Live

        with Live(console=self.console, auto_refresh=False, transient=False) as live:
            yield live

    @contextmanager
    def progress(self, what: str, total: int) -> Generator[Any]:
        """Show a progress bar in a terminal, and nothing in a pipe. Yields a function that must be called after each
        item.
        """
        if not self.is_tty or total < 2:
            yield lambda: None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        with Progress(TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
                      console=self.console) as bar:  # fmt: skip
            task = bar.add_task(what, total=total)
            yield lambda: bar.advance(task)

    def _write(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")

    # Questions.

    def confirm(self, question: str, *, yes: bool) -> None:
        """Return if the user answers yes, or has passed --yes. Raises Refusal if the answer is no, or if nobody can
        answer."""
        if yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()) or self.as_json:
            raise Refusal(
                "this changes several things at once, and there is no terminal to ask in",
                "add --yes to confirm it",
                code=Code.NOT_CONFIRMED,
                kind="not_confirmed",
            )
        if self.ask(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
            raise Refusal("nothing was done", code=Code.NOT_CONFIRMED, kind="not_confirmed")

    def ask(self, question: str) -> str:
        """Return the line that the user types. Ctrl-C and Ctrl-D end the command."""
        # The event loop's handler only notes a Ctrl-C, and readline would keep waiting. So Python's own handler is used
        # in this block.
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
    """Return a table. People copy its first column, so this column is cut only if it is wider than the line."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim", show_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, no_wrap=number == 0, overflow="fold" if number == 0 else "ellipsis")
    for row in rows:
        texts = [cell(value) for value in row]
        table.add_row(*[Text(text, style=COLOURS.get(text, "")) for text in texts])
    return table


def write_file(path: Path, text: str) -> None:
    """Write text to a file. Raises Refusal."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise Refusal(f"cannot write {path}: {error}", code=Code.FAILED, kind="cannot_write") from error


__all__ = ["COLOURS", "Terminal", "rich_table", "write_file"]
