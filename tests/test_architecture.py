"""The house's plan as a test: who may import whom, what the kernel may touch, where SQL stands, how long a module gets.

Imports are read from the source, so those inside functions and under TYPE_CHECKING count like any other.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
MODULES = sorted((SRC / "perdure").rglob("*.py"))

LINES_MAX = 700

# From top to bottom. A room may import its own row and every row below it, never one above.
ROWS = (
    ("http", "dashboard", "cli"),
    ("facade",),
    ("engine", "blocking", "upgrade"),
    ("client", "runtime"),
    ("api",),
    ("session", "views", "registry"),
    ("models",),
    ("coordinator",),
    ("ports",),
    ("values",),
    ("kernel",),
    ("errors",),
)
HEIGHT = {room: -number for number, row in enumerate(ROWS) for room in row}

# Beside the rows: the stores see only these; only the session, which opens one, sees them; testing sees everything.
STORAGE_MAY_IMPORT = {"storage", "ports", "kernel", "errors"}
MAY_IMPORT_TESTING = {"perdure.cli.explore"}  # a command for developers, which imports it when it is called
MAY_IMPORT_STORAGE = {"storage", "session", "upgrade", "testing"}

# Three equal rooms. What they share is in models/common, and where two meet is in models/bridges. Graphs are run as
# durable functions are, so they stand on them (docs/decisions/0015-graphs-are-durable-functions.md), and never the
# other way round.
MODELS = {"functions", "graphs", "cooperation"}
STANDS_ON = {("graphs", "functions")}

# These re-export: `perdure` itself, and the extra words of two models.
FACADES = {"perdure", "perdure.graph", "perdure.cooperation"}

# The kernel decides; it does not wait, look at a clock, draw lots or touch anything.
KERNEL_MUST_NOT_IMPORT = {
    "asyncio",
    "concurrent",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "secrets",
    "selectors",
    "socket",
    "sqlite3",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
}


# ---------------------------------------------------------------------------------------------------------------------
# Reading imports


def name_of(path: Path, src: Path = SRC) -> str:
    parts = path.relative_to(src).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_module(name: str, src: Path = SRC) -> bool:
    path = src.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def imports(path: Path, src: Path = SRC) -> Iterator[tuple[int, str]]:
    """Line and full name of every module that a file imports, wherever in the file it does so."""
    package = name_of(path, src).split(".")
    if path.name != "__init__.py":
        package.pop()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                above = package[: len(package) - level + 1] if level else []
                base = ".".join([*above, *([module] if module else [])])
                for alias in names:
                    inner = f"{base}.{alias.name}"
                    yield node.lineno, inner if is_module(inner, src) else base
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, name
            case _:
                pass


def room_of(name: str) -> str:
    if name in FACADES:
        return "facade"
    room = name.split(".")[1]
    return "cli" if room == "__main__" else room


def model_of(name: str) -> str | None:
    """`functions` for perdure.models.functions and all below it; None for what the models share, and for bridges."""
    parts = name.split(".")
    return parts[2] if parts[1:2] == ["models"] and len(parts) > 2 and parts[2] in MODELS else None


def refusal(importer: str, imported: str) -> str | None:
    """Why one module of Perdure may not import another; None if it may."""
    here, there = room_of(importer), room_of(imported)
    if here == "testing":
        return None
    if there == "testing":
        return None if importer in MAY_IMPORT_TESTING else "nobody imports testing"
    if here == "storage":
        return None if there in STORAGE_MAY_IMPORT else "storage imports only ports, kernel and errors"
    if there == "storage":
        return None if here in MAY_IMPORT_STORAGE else "only the session, which opens a store, imports storage"
    if HEIGHT[here] < HEIGHT[there]:
        return f"{here} is below {there}"
    one, other = model_of(importer), model_of(imported)
    if one and other and one != other and (one, other) not in STANDS_ON:
        return "models never import each other"
    return None


def runs_only_for_types(path: Path, line: int) -> bool:
    guards = (
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
    )
    return any(guard.body[0].lineno <= line <= (guard.body[-1].end_lineno or 0) for guard in guards)


# ---------------------------------------------------------------------------------------------------------------------
# Import directions


def test_there_is_something_to_check() -> None:
    assert len(MODULES) > 5


def test_every_module_has_a_room() -> None:
    rooms = {*HEIGHT, "storage", "testing"}
    lost = [name_of(path) for path in MODULES if room_of(name_of(path)) not in rooms]
    assert not lost, "give these a place in ROWS, and in the plan of the packages"


def test_imports_only_point_down() -> None:
    wrong = []
    for path in MODULES:
        importer = name_of(path)
        if importer == "perdure.errors":
            continue  # it has a rule of its own, below
        for line, imported in imports(path):
            if imported.split(".")[0] == "perdure" and (why := refusal(importer, imported)):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {imported}: {why}")
    assert not wrong, "\n".join(wrong)


def test_http_sees_only_what_a_user_sees() -> None:
    """The client, its facets and views, and the vocabulary: what the API can do, anybody's program can."""
    rooms = {"http", "facade", "client", "engine", "api", "views", "values", "errors"}
    words = {"perdure.ports", "perdure.kernel.status"}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {imported}"
        for path in MODULES
        if room_of(name_of(path)) == "http"
        for line, imported in imports(path)
        if imported.split(".")[0] == "perdure" and room_of(imported) not in rooms and imported not in words
    ]
    assert not wrong, "\n".join(wrong)


def test_errors_import_the_rest_for_types_only_and_only_the_kernel() -> None:
    path = SRC / "perdure" / "errors.py"
    for line, imported in imports(path):
        if imported.split(".")[0] == "perdure":
            assert room_of(imported) == "kernel", f"errors.py:{line} imports {imported}"
            assert runs_only_for_types(path, line), f"errors.py:{line} imports {imported} at run time"


@pytest.mark.parametrize(
    ("importer", "imported", "why"),
    [
        ("perdure.kernel.decide", "perdure.ports", "kernel is below ports"),
        ("perdure.coordinator.inbox", "perdure.models.functions.runner", "coordinator is below models"),
        ("perdure.engine", "perdure.cli.main", "engine is below cli"),
        ("perdure.client", "perdure.engine", "client is below engine"),
        ("perdure.api.runs", "perdure.client", "api is below client"),
        ("perdure.api.runs", "perdure.runtime", "api is below runtime"),
        ("perdure.session", "perdure.api.runs", "session is below api"),
        ("perdure.views", "perdure.api.runs", "views is below api"),
        ("perdure.kernel.rows", "perdure.values.limits", "kernel is below values"),
        ("perdure.models.functions.runner", "perdure", "models is below facade"),
        (
            "perdure.coordinator.inbox",
            "perdure.storage.memory",
            "only the session, which opens a store, imports storage",
        ),
        ("perdure.storage.memory", "perdure.coordinator.inbox", "storage imports only ports, kernel and errors"),
        ("perdure.models.functions.runner", "perdure.models.graphs", "models never import each other"),
        ("perdure.models.graphs.runner", "perdure.models.cooperation", "models never import each other"),
        ("perdure.models.cooperation.runner", "perdure.models.functions", "models never import each other"),
        ("perdure.cli.main", "perdure.testing.clock", "nobody imports testing"),
        ("perdure", "perdure.testing", "nobody imports testing"),
    ],
)
def test_an_import_against_the_plan_is_refused(importer: str, imported: str, why: str) -> None:
    assert refusal(importer, imported) == why


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("perdure.cli.main", "perdure.kernel.status"),  # not only the next row: every row below
        ("perdure.session", "perdure.storage.sqlite.store"),
        ("perdure.engine", "perdure.views"),
        ("perdure.http.routes.runs", "perdure.api.runs"),
        ("perdure.runtime", "perdure.api.topics"),
        ("perdure.api.runs", "perdure.session"),
        ("perdure.values.limits", "perdure.kernel.rows"),
        ("perdure.models.graphs.runner", "perdure.models.graphs.define"),
        ("perdure.models.graphs.runner", "perdure.models.functions.loop"),
        ("perdure.models.graphs.runner", "perdure.models.calls"),
        ("perdure.storage.sqlite.store", "perdure.errors"),
        ("perdure.testing.crash", "perdure.storage.memory"),
        ("perdure", "perdure.engine"),
    ],
)
def test_an_import_by_the_plan_is_allowed(importer: str, imported: str) -> None:
    assert refusal(importer, imported) is None


def test_imports_are_found_wherever_they_hide(tmp_path: Path) -> None:
    room = tmp_path / "perdure" / "kernel"
    room.mkdir(parents=True)
    (tmp_path / "perdure" / "ports.py").touch()
    path = room / "sample.py"
    path.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n"
        "    from perdure import ports\n"
        "def late():\n"
        "    import perdure.engine\n"
        "    from ..models import functions\n"
        "    import importlib\n"
        "    importlib.import_module('perdure.client')\n"
    )
    assert sorted(name for _, name in imports(path, tmp_path) if name.startswith("perdure")) == [
        "perdure.client",
        "perdure.engine",
        "perdure.models",
        "perdure.ports",
    ]


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Groups of modules of which each reaches each other: what imports itself on the way round."""

    def reached(start: str, edges: dict[str, set[str]]) -> set[str]:
        found: set[str] = set()
        ahead = [start]
        while ahead:
            for name in edges.get(ahead.pop(), set()) - found:
                found.add(name)
                ahead.append(name)
        return found

    back: dict[str, set[str]] = {}
    for name, others in graph.items():
        for other in others:
            back.setdefault(other, set()).add(name)
    found: list[set[str]] = []
    for name in graph:
        if not any(name in group for group in found):
            group = reached(name, graph) & reached(name, back)
            if group:
                found.append(group)
    return found


def test_no_modules_import_each_other_in_a_circle() -> None:
    names = {name_of(path) for path in MODULES}
    graph = {
        name_of(path): {imported for _, imported in imports(path) if imported in names and imported != name_of(path)}
        for path in MODULES
    }
    assert [sorted(group) for group in circles(graph)] == [], (
        "these import each other, lazily or for types: move what they share below both"
    )


def test_a_circle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set(), "f": {"a"}}
    assert circles(graph) == [{"a", "b", "c"}]
    assert circles({"a": {"b"}, "b": set()}) == []


# ---------------------------------------------------------------------------------------------------------------------
# The kernel is pure


KERNEL = [path for path in MODULES if room_of(name_of(path)) == "kernel"]


def test_the_kernel_imports_only_what_is_pure() -> None:
    wrong = []
    for path in KERNEL:
        for line, name in imports(path):
            top = name.split(".")[0]
            is_known = top in {"msgspec", "perdure"} or top in sys.stdlib_module_names
            if not is_known or top in KERNEL_MUST_NOT_IMPORT:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


# Deciding a batch is pure: these modules of the coordinator are values and functions of them, and see only each other.
DECIDING = {
    f"perdure.coordinator.{name}"
    for name in (
        "batch_builder",
        "batch_context",
        "damage",
        "decision_inputs",
        "batch_decisions",
        "queued_ops",
        "memory",
        "runless_rows",
    )
}


def test_deciding_a_batch_sees_only_the_kernel_and_values() -> None:
    wrong = []
    for path in MODULES:
        if name_of(path) in DECIDING:
            tree = ast.parse(path.read_text())
            for line, name in imports(path):
                top = name.split(".")[0]
                is_own = name in DECIDING or name in {"perdure.errors", "perdure.ports"} or ".kernel" in name
                # An item has a future for its reply, which is answered after the commit.
                is_future = name == "asyncio" and path.name == "queued_ops.py"
                if (top == "perdure" and not is_own) or (top in KERNEL_MUST_NOT_IMPORT and not is_future):
                    wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
            wrong += [
                f"{path.relative_to(ROOT)}:{node.lineno} is async"
                for node in ast.walk(tree)
                if isinstance(node, ast.AsyncFunctionDef | ast.Await)
            ]
            from_ports = [
                alias.name
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom) and node.module == "perdure.ports"
                for alias in node.names
            ]
            assert set(from_ports) <= {"LoadedRun"}, f"{path.relative_to(ROOT)}: of the ports only values"
    assert not wrong, "\n".join(wrong)
    assert {name_of(path) for path in MODULES} >= DECIDING


def test_the_kernel_never_waits_and_never_reads_a_clock() -> None:
    wrong = []
    for path in KERNEL:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} is async")
                case ast.Attribute(value=ast.Name(id="datetime" | "date"), attr="now" | "utcnow" | "today"):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} reads the clock")
                case _:
                    pass
    assert not wrong, "\n".join(wrong)


# ---------------------------------------------------------------------------------------------------------------------
# The facade


def test_facades_only_re_export() -> None:
    paths = [path for path in MODULES if name_of(path) in FACADES]
    assert SRC / "perdure" / "__init__.py" in paths
    made_here = [
        f"{path.relative_to(ROOT)}:{node.lineno} defines {node.name}"
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    assert not made_here, "\n".join(made_here)


def test_importing_perdure_imports_no_extra() -> None:
    """Extras are installed where tests run, so an import of one would show."""
    script = (
        "import sys; before = set(sys.modules)\n"
        "import perdure; assert perdure.__file__, 'perdure/__init__.py is missing'\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False, timeout=60, cwd=SRC
    )
    assert done.returncode == 0, done.stderr
    # msgspec takes typing_extensions in where it finds it.
    foreign = set(done.stdout.split()) - sys.stdlib_module_names - {"typing_extensions"}
    assert foreign == {"perdure", "msgspec"}


# ---------------------------------------------------------------------------------------------------------------------
# Files


def test_no_module_is_too_long() -> None:
    tests = sorted((ROOT / "tests").rglob("*.py"))
    lengths = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in [*MODULES, *tests]}
    long = {str(path): lines for path, lines in lengths.items() if lines > LINES_MAX}
    assert not long, f"over {LINES_MAX} lines: these want to be two modules each"


SQL = re.compile(
    r"\s*(select\s|insert\s+(or\s+\w+\s+)?into\s|update\s+\S+\s+set\s|delete\s+from\s|replace\s+into\s"
    r"|create\s+(temp\w*\s+|unique\s+|or\s+replace\s+)?(table|index|view|trigger|function)\s|with\s+\w+\s*(\(.*\)\s*)?as\s)",
    re.IGNORECASE | re.DOTALL,
)


def multi_line_sql(source: str) -> list[int]:
    """Lines where a string of several lines, joined and formatted ones included, holds a statement."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)):
                pass
            case ast.JoinedStr(values=values):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in values)
            case _:
                continue
        spans_lines = "\n" in text.strip() or (node.end_lineno or 0) > node.lineno
        if spans_lines and id(node) not in docstrings and SQL.match(text):
            found.append(node.lineno)
    return sorted(set(found))


def test_sql_stands_in_sql_files() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in MODULES
        if room_of(name_of(path)) == "storage"
        for line in multi_line_sql(path.read_text())
    ]
    assert not wrong, "move these statements to the .sql file beside the store:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('q = """\n  select id\n  from run"""', [1]),
        ('q = (\n  "insert into run (id) "\n  "values (?)"\n)', [2]),
        ('q = f"""update {table}\nset x = 1"""', [1]),
        ('q = "pragma journal_mode = wal"', []),
        ('q = "select 1"', []),
        ('def f():\n  """Select what is due.\n\n  Create table and all."""', []),
        ('m = """update the file\nby hand"""', []),
    ],
)
def test_statements_are_told_from_prose(source: str, lines: list[int]) -> None:
    assert multi_line_sql(source) == lines


# Spelt so that this file does not hold what it forbids.
FORBIDDEN = {
    "a registry or a mirror": re.compile(
        r"pyp[i]\.org|pythonhoste[d]\.org|npmj[s]\.(org|com)|yarnpk[g]\.com|(?<![\w.-])(pip|npm|pypi)?mirror[s]?\.[\w-]+\.\w+"
        r"|npmmirro[r]|[/.]artifactor[y]\b|(extra-)?index-ur[l]|find-link[s]|registry\s*=\s*http[s]?:",
        re.IGNORECASE,
    ),
    "a path of one machine": re.compile(r"(?<![\w.~-])/(wor[k]|roo[t])/|(?<![\w.~-])/(?:home|Users)/\w"),
}


def forbidden(text: str) -> list[tuple[int, str]]:
    return [
        (number, what)
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in FORBIDDEN.items()
        if pattern.search(line)
    ]


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout: there is no list of the project's files")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    paths = [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    assert Path(__file__).resolve() in paths
    wrong = [
        f"{path.relative_to(ROOT)}:{line} names {what}"
        for path in paths
        for line, what in forbidden(path.read_text(errors="replace"))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "line",
    [
        "https://" + "pypi" + ".org/simple",
        "files." + "pythonhosted" + ".org",
        "pip install --index" + "-url x",
        "https://" + "mirrors" + ".example.com/simple",
        "cd /" + "work/main",
        "open('/" + "root/x')",
        "PATH=/" + "home/ann/bin",
    ],
)
def test_what_must_not_be_named_is_found(line: str) -> None:
    assert forbidden(line)


@pytest.mark.parametrize(
    "line", ["docs/work/plan.md", "#!/usr/bin/env bash", "the store mirrors memory.", "pip install perdure"]
)
def test_ordinary_lines_are_left_alone(line: str) -> None:
    assert not forbidden(line)
