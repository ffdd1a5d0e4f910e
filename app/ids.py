"""Identifiers: UUIDv7 (RFC 9562 section 5.7), made here and nowhere else."""

from typing import NewType
from uuid import UUID

from uuid_utils.compat import uuid7

ConversationId = NewType("ConversationId", UUID)
TurnId = NewType("TurnId", UUID)
MessageId = NewType("MessageId", UUID)
WorkerId = NewType("WorkerId", UUID)
KeyId = NewType("KeyId", UUID)


def new_conversation_id() -> ConversationId:
    return ConversationId(uuid7())


def new_turn_id() -> TurnId:
    return TurnId(uuid7())


def new_message_id() -> MessageId:
    return MessageId(uuid7())


def new_worker_id() -> WorkerId:
    return WorkerId(uuid7())


def new_key_id() -> KeyId:
    return KeyId(uuid7())
