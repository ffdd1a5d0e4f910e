"""Whom the embedded PostgreSQL runs as, since it refuses to run as root.

As root, every file operation of ours inside the account's folder is done as the account too:
whoever owns a folder can put a link where a file is expected.
"""

import os
import pwd
import stat
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.errors import EmbeddedPostgresError

# When the service runs as root and the directory's owner has privileges: the first that exists.
ACCOUNTS = ("chat-workflow", "postgres", "nobody")


@dataclass(frozen=True, slots=True)
class Account:
    """`switch` holds what subprocess needs to become them; empty when that is ourselves."""

    name: str
    uid: int
    gid: int
    switch: Mapping[str, Any]

    @contextmanager
    def acting(self) -> Generator[None]:
        """Files are opened and made as the account until the block ends.

        This changes the whole process, so the block must be short.
        """
        if not self.switch:
            yield
            return
        groups, gid, uid = os.getgroups(), os.getegid(), os.geteuid()
        os.setgroups([self.gid])
        os.setegid(self.gid)
        os.seteuid(self.uid)
        try:
            yield
        finally:
            os.seteuid(uid)
            os.setegid(gid)
            os.setgroups(groups)


def account_for(directory: Path) -> Account:
    """Ourselves; as root the directory's owner, else an existing account without privileges."""
    me, owner = os.geteuid(), directory.stat().st_uid
    if me != 0:
        return Account(name_of(me), me, os.getegid(), {})
    entry = _entry(owner) if owner != 0 else _first_account()
    switch: dict[str, Any] = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, switch)


def check_reachable(directory: Path, account: Account) -> None:
    """Nobody's permissions outside our folder are changed, so a closed parent is the end."""
    if not account.switch:
        return
    for parent in directory.parents:
        if not parent.stat().st_mode & _execute_bit(parent, account):
            raise EmbeddedPostgresError(
                f"{parent} is closed to the account {account.name!r} that PostgreSQL must run as: set "
                "CHAT_DATA_DIR to a directory outside it, or DATABASE_URL to a PostgreSQL server"
            )


def name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _execute_bit(directory: Path, account: Account) -> int:
    status = directory.stat()
    if status.st_uid == account.uid:
        return stat.S_IXUSR
    return stat.S_IXGRP if status.st_gid == account.gid else stat.S_IXOTH


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
