"""The launcher of the embedded server, with real processes and real kills."""

import asyncio
import fcntl
import multiprocessing
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest

from app.errors import EmbeddedPostgresError
from app.storage import account, embedded, postgres_programs
from app.storage.database import opened_database
from tests.postmasters import postmasters, send_to_postmasters

pytestmark = pytest.mark.process
spawn = multiprocessing.get_context("spawn")
AS_ROOT = os.geteuid() == 0
root_only = pytest.mark.skipif(not AS_ROOT, reason="becomes other users")


@pytest.fixture
def directory() -> Generator[Path]:
    path = Path(tempfile.mkdtemp(prefix="cw-embedded-"))
    path.chmod(0o755)
    yield path
    send_to_postmasters(path, signal.SIGKILL)
    shutil.rmtree(path, ignore_errors=True)


async def query(url: str, sql: str) -> object:
    async with opened_database(url, pool_size=1) as database, database.statement() as driver:
        return await driver.fetchval(sql)


async def test_an_empty_directory_becomes_a_server_that_keeps_its_data(directory: Path) -> None:
    first = embedded.start(directory)
    await query(first.url, "CREATE TABLE kept AS SELECT 42 AS answer")
    first.release()
    assert postmasters(directory) == []

    second = embedded.start(directory)
    try:
        assert await query(second.url, "SELECT answer FROM kept") == 42
        assert await query(second.url, "SHOW server_encoding") == "UTF8"
        assert await query(second.url, "SHOW listen_addresses") == ""
        assert (directory / "postgresql-18" / "cluster").is_dir()
    finally:
        second.release()


async def test_only_its_own_folder_can_be_entered_by_its_owner_alone(directory: Path) -> None:
    server = embedded.start(directory)
    try:
        for name in ("", "cluster", "socket"):
            mode = (directory / "postgresql-18" / name).stat().st_mode
            assert mode & 0o077 == 0
        assert directory.stat().st_mode & 0o777 == 0o755
    finally:
        server.release()


async def test_a_half_finished_initialisation_is_thrown_away(directory: Path) -> None:
    server = embedded.start(directory)
    server.release()
    root = directory / "postgresql-18"
    (root / "cluster").rename(root / "cluster.new")
    shutil.rmtree(root / "cluster.new" / "base")

    again = embedded.start(directory)
    try:
        assert await query(again.url, "SELECT 1") == 1
    finally:
        again.release()


def hold(directory: Path, told: Connection) -> None:
    """A process that uses the server until it is told to leave, or killed."""
    server = embedded.start(directory)
    told.send(server.url)
    told.recv()
    server.release()
    told.send("left")


def holder(directory: Path) -> tuple[SpawnProcess, Connection]:
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=hold, args=(directory, theirs))
    process.start()
    return process, ours


async def test_processes_share_one_server_and_the_last_to_leave_stops_it(directory: Path) -> None:
    holders = [holder(directory) for _ in range(3)]
    urls = {told.recv() for _, told in holders}
    assert len(urls) == 1
    assert sum("-D" in process.cmdline() for process in postmasters(directory)) == 1

    for process, told in holders[:2]:
        told.send("leave")
        assert told.recv() == "left"
        process.join(10)
    assert await query(next(iter(urls)), "SELECT 1") == 1

    process, told = holders[2]
    told.send("leave")
    assert told.recv() == "left"
    process.join(10)
    assert postmasters(directory) == []


async def test_a_killed_process_does_not_count_as_a_user(directory: Path) -> None:
    process, told = holder(directory)
    told.recv()
    process.kill()
    process.join(10)
    assert postmasters(directory) != []

    server = embedded.start(directory)
    server.release()

    assert postmasters(directory) == []


async def test_committed_rows_survive_a_kill_of_the_server(directory: Path) -> None:
    server = embedded.start(directory)
    await query(server.url, "CREATE TABLE kept AS SELECT n FROM generate_series(1, 500) AS n")
    send_to_postmasters(directory, signal.SIGKILL)

    again = embedded.start(directory)
    try:
        assert await query(again.url, "SELECT count(*) FROM kept") == 500
    finally:
        again.release()
        server.release()


@pytest.mark.parametrize("stranger", ["gone", "another program"])
async def test_a_stale_pid_file_is_no_hindrance(directory: Path, stranger: str) -> None:
    server = embedded.start(directory)
    server.release()
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    if stranger == "gone":
        sleeper.kill()
        sleeper.wait()
    pid_file = directory / "postgresql-18" / "cluster" / "postmaster.pid"
    pid_file.write_text(f"{sleeper.pid}\n{pid_file.parent}\n1\n5432\n/tmp\n\n  1 1\nready   \n")

    again = embedded.start(directory)
    try:
        assert await query(again.url, "SELECT 1") == 1
    finally:
        again.release()
        sleeper.kill()
        sleeper.wait()


async def test_a_long_path_has_its_socket_elsewhere(directory: Path) -> None:
    deep = directory / ("d" * 50) / ("e" * 50)

    server = embedded.start(deep)
    try:
        assert await query(server.url, "SELECT 1") == 1
    finally:
        server.release()


async def test_what_people_write_is_not_in_the_server_s_log(directory: Path) -> None:
    server = embedded.start(directory)
    try:
        with pytest.raises(Exception, match="invalid input syntax"):
            await query(server.url, "SELECT 'MARKER-78'::int")
        log = (directory / "postgresql-18" / "server.log").read_text()
        assert "MARKER-78" not in log
    finally:
        server.release()


@root_only
async def test_root_runs_it_as_an_account_without_privileges(directory: Path) -> None:
    server = embedded.start(directory)
    try:
        assert {process.username() for process in postmasters(directory)} <= {*account.ACCOUNTS}
    finally:
        server.release()


@root_only
async def test_root_runs_it_as_the_directory_s_owner(directory: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    os.chown(directory, nobody.pw_uid, nobody.pw_gid)

    server = embedded.start(directory)
    try:
        assert {process.username() for process in postmasters(directory)} == {"nobody"}
    finally:
        server.release()


@root_only
async def test_a_closed_parent_is_one_clear_line_and_stays_closed(directory: Path) -> None:
    directory.chmod(0o700)

    with pytest.raises(
        EmbeddedPostgresError, match=r"is closed to the account .* set CHAT_DATA_DIR"
    ):
        embedded.start(directory / "inside")

    assert directory.stat().st_mode & 0o777 == 0o700


@root_only
async def test_a_directory_of_another_user_is_one_clear_line(directory: Path) -> None:
    server = embedded.start(directory)
    server.release()
    os.chown(directory / "postgresql-18", 0, 0)
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from app.errors import EmbeddedPostgresError\n"
        "from app.storage import embedded\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try: embedded.start(Path(sys.argv[1]))\n"
        "except EmbeddedPostgresError as error: print(error)\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(directory), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()

    assert b"belongs to 'root', this is 'nobody'" in output
    assert output.count(b"\n") == 1


@root_only
async def test_programs_in_a_closed_home_are_copied_with_their_libraries(directory: Path) -> None:
    closed = Path(tempfile.mkdtemp(prefix="cw-closed-"))
    original = postgres_programs.find_programs()
    package = original.parents[1]
    shutil.copytree(package, closed / "site" / package.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(libraries, closed / "site" / libraries.name)
    try:
        server = embedded.start(directory, closed / "site" / package.name / "pginstall" / "bin")
        try:
            assert await query(server.url, "SELECT 1") == 1
            (copy,) = (directory / "postgresql-18").glob("programs-*")
            assert {process.exe() for process in postmasters(directory)} == {
                str(copy / package.name / "pginstall" / "bin" / "postgres")
            }
            assert (copy / libraries.name).is_dir()
        finally:
            server.release()
        assert closed.stat().st_mode & 0o777 == 0o700
    finally:
        shutil.rmtree(closed)


async def test_a_link_to_the_directory_is_the_same_directory(directory: Path) -> None:
    link = directory / "link"
    link.symlink_to(directory / "real")
    (directory / "real").mkdir()
    first = embedded.start(directory / "real")
    second = embedded.start(link)
    third = embedded.start(directory / "real" / ".." / "link")
    try:
        assert first.url == second.url == third.url
        third.release()
        second.release()
        assert await query(first.url, "SELECT 1") == 1
    finally:
        first.release()
    assert postmasters(directory) == []


@pytest.mark.parametrize("name", ["a b", "it's", 'say "x"', "a,b", "$HOME", "`id`", "ü", "%41?&"])
async def test_any_printable_path_will_do(directory: Path, name: str) -> None:
    server = embedded.start(directory / name)
    try:
        assert await query(server.url, "SELECT 1") == 1
    finally:
        server.release()
    assert postmasters(directory) == []


def test_an_unprintable_path_is_one_clear_line(directory: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match="unprintable"):
        embedded.start(directory / "a\nb")


async def test_a_server_that_died_is_started_again(directory: Path) -> None:
    server = embedded.start(directory)
    try:
        await query(server.url, "CREATE TABLE kept AS SELECT 1 AS n")
        send_to_postmasters(directory, signal.SIGKILL)
        while postmasters(directory):
            time.sleep(0.01)
        server.ensure_running()
        assert await query(server.url, "SELECT n FROM kept") == 1
    finally:
        server.release()
    assert postmasters(directory) == []


@root_only
async def test_root_never_writes_through_a_link_of_the_account(directory: Path) -> None:
    server = embedded.start(directory)
    server.release()
    secret = directory / "secret"
    secret.write_text("root's own")
    secret.chmod(0o600)
    log = directory / "postgresql-18" / "server.log"
    log.unlink()
    log.symlink_to(secret)

    with pytest.raises(EmbeddedPostgresError, match=r"server\.log"):
        embedded.start(directory)

    assert secret.stat().st_uid == 0
    assert secret.read_text() == "root's own"
    assert postmasters(directory) == []


@pytest.mark.parametrize("trap", ["open", "link"])
async def test_a_socket_directory_that_is_not_ours_alone_is_refused(
    directory: Path, trap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.chmod(0o1777)
    monkeypatch.setattr(embedded, "OUTSIDE", directory)
    deep = directory / ("d" * 60) / ("e" * 60)
    server = embedded.start(deep)
    server.release()
    (made,) = directory.glob("chat-workflow-*")
    if trap == "open":
        made.chmod(0o777)
    else:
        made.rmdir()
        (directory / "target").mkdir()
        (directory / "target" / "kept").touch()
        made.symlink_to(directory / "target")

    with pytest.raises(EmbeddedPostgresError, match="is not a folder of"):
        embedded.start(deep)

    assert trap == "open" or (directory / "target" / "kept").exists()


@root_only
async def test_root_first_and_then_the_owner_share_the_directory(directory: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    os.chown(directory, nobody.pw_uid, nobody.pw_gid)
    embedded.start(directory).release()

    paths = [directory / "postgresql-18", *(directory / "postgresql-18").iterdir()]

    assert {path.stat().st_uid for path in paths} == {nobody.pw_uid}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_during_the_start_leaves_no_server_behind(
    directory: Path, number: signal.Signals
) -> None:
    script = (
        "import sys, signal\n"
        "from pathlib import Path\n"
        "from app.storage import embedded\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\n"
        "print('begin', flush=True)\n"
        "server = embedded.start(Path(sys.argv[1]))\n"
        "try: signal.pause()\n"
        "finally: server.release()\n"
    )
    for delay in (0.05, 0.2, 0.4, 0.6):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", script, str(directory)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert process.stdout is not None
        await process.stdout.readline()
        await asyncio.sleep(delay)
        process.send_signal(number)
        await process.wait()
        assert postmasters(directory) == []


def no_package(_name: str) -> None:
    return None


def test_a_platform_without_a_wheel_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_programs, "find_spec", no_package)
    monkeypatch.setenv("PATH", "/nonexistent")

    with pytest.raises(
        EmbeddedPostgresError, match=r"no PostgreSQL for this platform.*DATABASE_URL"
    ):
        postgres_programs.find_programs()


def test_a_lock_is_not_waited_for_for_ever(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "LOCK_TIMEOUT", 0.2)
    process, told = holder(directory)
    told.recv()
    started = time.monotonic()
    with (directory / "postgresql-18" / "start.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(EmbeddedPostgresError, match=r"start\.lock"):
            embedded.start(directory)
    assert time.monotonic() - started < 10
    told.send("leave")
    told.recv()
    process.join(10)
