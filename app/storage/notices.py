"""What the processes tell each other by NOTIFY: of which conversations something has changed.

Ids only, and a hint only: notifications are lost with the connection, the tables are the truth.
A transaction that notifies takes a lock of the whole server while it commits, so that there is at
most one in a flush, however many turns are in it.
"""

from typing import Any

from sqlalchemy import ColumnElement, Function, String, cast, func

# Events of a turn were committed.
EVENTS = "chat_workflow_events"
# A conversation was changed beside its turns: asked to cancel, described, closed, erased.
CHANGES = "chat_workflow_changes"
# A worker has let go of its turns.
RELEASES = "chat_workflow_releases"

# Conversations of one notification, which holds 7,999 bytes; of more it says that there were many.
MOST_IDS = 200
MANY = "many"


def told(channel: str, run_id: ColumnElement[Any]) -> Function[Any]:
    """To be returned by a statement that changes a conversation: tells of it when that commits."""
    return func.pg_notify(channel, cast(run_id, String))
