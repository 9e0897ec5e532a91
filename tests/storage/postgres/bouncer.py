"""PgBouncer in transaction mode, in front of a server. Debian has it: `apt-get install pgbouncer`."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from tests.storage.postgres.server import PostgresServer, _free_port, _is_root

_PACKAGES = ("pgbouncer", "libc-ares2", "libevent-2.1-7")


class PgBouncer:
    """Running from the start. It does not outlive the process that made it."""

    def __init__(self, server: PostgresServer, *, pool: int = 4, ignored: str = "") -> None:
        """Ignores settings that clients bring, by name. With fewer sessions than clients, these share."""
        self._server = server
        self._place = Path(tempfile.mkdtemp(prefix="perdure-pgbouncer-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        lines = [
            "[databases]",
            f"* = host=127.0.0.1 port={server.port} user=postgres",
            "[pgbouncer]",
            "listen_addr = 127.0.0.1",
            f"listen_port = {self.port}",
            "unix_socket_dir =",
            "auth_type = any",
            "pool_mode = transaction",
            "max_client_conn = 500",
            f"default_pool_size = {pool}",
            f"ignore_startup_parameters = {ignored}",
        ]
        (self._place / "pgbouncer.ini").write_text("\n".join(lines))
        try:
            self._program, self._libraries = _program(self._place)
            if _is_root():
                for path in (self._place, *self._place.rglob("*")):
                    shutil.chown(path, "nobody")
            self.start()
        except BaseException:
            self.end()
            raise

    @property
    def url(self) -> str:
        return self._server.url.replace(f":{self._server.port}/", f":{self.port}/")

    def start(self) -> None:
        """Returns when it takes connections."""
        with (self._place / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, self._place / "pgbouncer.ini"],
                stdout=log,
                stderr=log,
                cwd=self._place,
                user="nobody" if _is_root() else None,
                env={**os.environ, "LD_LIBRARY_PATH": self._libraries},
            )
        watch = f"read _; kill -QUIT {self._process.pid}"
        self._watch = subprocess.Popen(["sh", "-c", watch], stdin=subprocess.PIPE, start_new_session=True)
        give_up_at = time.monotonic() + 30
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port)).close()
            except OSError:
                if self._process.poll() is not None or time.monotonic() > give_up_at:
                    raise RuntimeError(f"PgBouncer does not start:\n{(self._place / 'log').read_text()}") from None
                time.sleep(0.02)

    def crash(self) -> None:
        """Stop at once, with all connections."""
        if self._watch is not None:
            self._watch.kill()
            self._watch.communicate()
            self._watch = None
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def end(self) -> None:
        """For good. Idempotent."""
        self.crash()
        shutil.rmtree(self._place, ignore_errors=True)


def _program(place: Path) -> tuple[Path, str]:
    """Where it is, and where its libraries are. If it is not installed, it is fetched for this once."""
    if (found := shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")) is not None:
        return Path(found), ""
    fetching = subprocess.run(
        ["apt-get", "download", *_PACKAGES], cwd=place, capture_output=True, text=True, check=False
    )
    if fetching.returncode:
        raise RuntimeError(f"PgBouncer is needed: apt-get install pgbouncer\n{fetching.stderr}")
    for package in place.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, place / "root"], check=True)
    place.chmod(0o755)
    libraries = {str(path.parent) for path in (place / "root").rglob("*.so.*")}
    return place / "root/usr/sbin/pgbouncer", ":".join(libraries)
