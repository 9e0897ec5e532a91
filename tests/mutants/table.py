"""The table of deliberate bugs, read from the files in `table/`: one file for each noun."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final, Literal, get_args

from msgspec import Struct, convert

__all__ = ["FOLDER", "NOUNS", "ROOT", "SUITES", "DoesNotFit", "Find", "Mutant", "Suite", "load"]

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = Path(__file__).resolve().parent / "table"
NOUNS: Final = (
    "kernel",
    "coordinator",
    "memory",
    "sqlite",
    "postgres",
    "functions",
    "graphs",
    "cooperation",
    "fleet",
)

Suite = Literal["unit", "conformance", "simulate", "crash"]
SUITES: Final[tuple[Suite, ...]] = get_args(Suite)


class DoesNotFit(Exception):
    """The text that a mutant replaces is not in its file exactly once."""


class Find(Struct, frozen=True):
    """A suite that finds a mutant, and where: arguments of pytest, or a mix of the simulator and a seed."""

    suite: Suite
    where: str

    @staticmethod
    def parse(text: str) -> Find:
        """Read `suite: where`. Raises ValueError."""
        suite, _, where = text.partition(": ")
        if suite not in SUITES or not where:
            raise ValueError(f"{text!r} names no suite: {', '.join(SUITES)}")
        return Find(convert(suite, Suite), where)

    @property
    def seed(self) -> tuple[str, int]:
        """The mix and the seed of a find by the simulator."""
        mix, _, seed = self.where.partition(" ")
        return mix, int(seed)

    @property
    def markdown(self) -> str:
        if self.suite == "simulate":
            mix, seed = self.seed
            return f"simulator, seed {seed}" + ("" if mix == "usual" else f" of `{mix}`")
        path, _, test = self.where.partition("::")
        name = test.rpartition("::")[2] or path
        return f"{self.suite}: `{name.partition('[')[0]}`"

    def __str__(self) -> str:
        return f"{self.suite}: {self.where}"


class Mutant(Struct, frozen=True, kw_only=True):
    """One deliberate bug: a replacement in one file of the package.

    `order` says that the bug is about faults, the order of things, or locks. The simulator must find such a bug, unless
    `unseen` says why it cannot. `found_by` are the suites that find it, the cheapest first.
    """

    name: str
    noun: str
    breaks: str  # one sentence
    file: str  # below the root of the repository
    before: str
    after: str
    found_by: tuple[Find, ...]
    order: bool = False
    unseen: str = ""

    def applied(self, source: str) -> str:
        """Return the source with the bug in it. Raises DoesNotFit."""
        count = source.count(self.before)
        if count != 1:
            raise DoesNotFit(f"{self.name}: {self.file} has the text to replace {count} times: {self.before!r}")
        return source.replace(self.before, self.after)

    @property
    def markdown(self) -> str:
        """The mutant's row of the table in docs/reliability.md."""
        finds = "; ".join(find.markdown for find in self.found_by)
        return f"| {self.name} | {self.breaks} | {finds}{'; not simulated' if self.unseen else ''} |"

    def source(self, root: Path = ROOT) -> str:
        """Return the file as it is, without the bug."""
        return (root / self.file).read_text()


def load() -> list[Mutant]:
    """Return all mutants, noun by noun. Raises ValueError if an entry is malformed."""
    found: list[Mutant] = []
    for noun in NOUNS:
        for row in tomllib.loads((FOLDER / f"{noun}.toml").read_text())["mutant"]:
            finds = tuple(Find.parse(text) for text in row.pop("found_by"))
            found.append(Mutant(noun=noun, found_by=finds, **row))
    return found
