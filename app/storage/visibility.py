"""What a caller may see: the only way to a conversation starts here."""

from typing import Literal, TypeAlias

from sqlalchemy import ColumnElement, and_, true

from app.caller import Caller
from app.storage.tables import runs

Action: TypeAlias = Literal["read", "write", "delete"]


def acts_for_anyone(caller: Caller, action: Action) -> bool:
    return f"conversations:{action}:any" in caller.scopes


def visible(caller: Caller, action: Action) -> ColumnElement[bool]:
    """Rows of `runs` that exist for this caller. Erased ones exist for nobody."""
    return and_(runs.c.erased_at.is_(None), owned(caller, action))


def owned(caller: Caller, action: Action) -> ColumnElement[bool]:
    if acts_for_anyone(caller, action):
        return true()
    return runs.c.user_id == caller.user_id
