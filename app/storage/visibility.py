"""What a caller may see: the only way to a conversation starts here."""

from sqlalchemy import ColumnElement, and_, true

from app.caller import Action, Caller
from app.storage.tables import runs


def visible(caller: Caller, action: Action) -> ColumnElement[bool]:
    """Rows of `runs` that exist for this caller. Erased ones exist for nobody."""
    return and_(runs.c.erased_at.is_(None), owned(caller, action))


def owned(caller: Caller, action: Action) -> ColumnElement[bool]:
    if caller.acts_for_anyone(action):
        return true()
    return runs.c.user_id == caller.user_id
