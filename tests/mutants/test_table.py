"""The table of deliberate bugs fits the code as it is now. `make mutants` tries the bugs themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import seeds
from tests.mutants.__main__ import main
from tests.mutants.scratch import SEEDS_MAX, Scratch
from tests.mutants.table import ROOT, SUITES, DoesNotFit, Find, Mutant, load

MUTANTS = {mutant.name: mutant for mutant in load()}
DOCS = (ROOT / "docs" / "reliability.md").read_text()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_fits_its_file_once_and_compiles(name: str) -> None:
    mutant = MUTANTS[name]
    mutated = mutant.applied(mutant.source())
    assert mutated != mutant.source()
    if mutant.file.endswith(".py"):
        compile(mutated, mutant.file, "exec")


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_says_what_finds_it(name: str) -> None:
    mutant = MUTANTS[name]
    assert mutant.found_by
    for find in mutant.found_by:
        if find.suite == "simulate":
            mix, seed = find.seed
            assert mix in seeds.SCENARIOS
            assert 0 <= seed < SEEDS_MAX
        else:
            assert (ROOT / find.where.partition(" ")[0].partition("::")[0]).exists()
    if mutant.order and not mutant.unseen:
        assert any(find.suite == "simulate" for find in mutant.found_by)
    assert mutant.breaks.endswith(".")
    assert mutant.markdown in DOCS, "python -m tests.mutants --markdown prints the table"


def test_no_two_mutants_have_one_name_and_there_are_many() -> None:
    names = [mutant.name for mutant in load()]
    assert len(set(names)) == len(names) >= 40


def test_a_mutant_that_no_longer_fits_says_so() -> None:
    mutant = Mutant(name="m", noun="kernel", breaks="", file="f", before="x", after="y", found_by=())
    assert mutant.applied("axb") == "ayb"
    with pytest.raises(DoesNotFit, match="0 times"):
        mutant.applied("ab")
    with pytest.raises(DoesNotFit, match="2 times"):
        mutant.applied("xx")


def test_a_suite_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match=", ".join(SUITES)):
        Find.parse("units: tests")


def test_a_mutant_is_found_in_a_copy_and_the_work_tree_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    mutant = MUTANTS["audit-row-forgotten"]
    before = mutant.source()
    assert main(["--only", mutant.name, "--suite", "unit"]) == 0
    assert "1 of 1 found" in capsys.readouterr().out
    assert mutant.source() == before


def test_a_mutant_that_survives_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    mutant = MUTANTS["audit-row-forgotten"]
    assert main(["--only", mutant.name, "--find", "unit: tests/kernel/test_status.py"]) == 1
    assert f"survived: {mutant.name}" in capsys.readouterr().out


def test_the_copy_is_imported_and_not_the_work_tree() -> None:
    scratch = Scratch()
    try:
        assert Path(scratch.environment["PYTHONPATH"].partition(":")[0]) == scratch.root / "src"
        assert not scratch.root.is_relative_to(ROOT)
    finally:
        scratch.remove()
    assert not scratch.root.exists()
