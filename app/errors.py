"""What can go wrong, in our words. Status codes and prose for people live in `wire/problem.py`.

ChatWorkflowError
├── NotFoundError                 unknown, foreign or erased: the same for all three
├── TurnInProgressError           a turn runs in this conversation
├── ConversationClosedError
├── WorkerLostError               the process that ran the turn died
├── LostOwnershipError            a running turn is no longer ours; never reaches a client
├── KeyTakenError                 the idempotency key is known; never reaches a client
├── StillRunningError             a waiting send gave up; the turn goes on
├── DrainingError                 the service is shutting down
├── OverloadedError               as many turns run in this process as may
├── DatabaseUnavailableError
│   ├── StatementDeclinedError    it answers, but a row stays locked, or it takes no writes
│   ├── DatabaseRefusedError      it is there, but not for us: no such database, wrong password
│   └── OutcomeUnknownError       whether the turn was begun will show when the database is back
├── CallerError
│   ├── UnauthenticatedError
│   ├── RateLimitedError          too many requests, sends or open streams of this caller
│   └── ForbiddenError            a foreign Host or Origin, or a missing scope
├── RequestError                  the request is at fault; nothing was stored
│   ├── MalformedJsonError
│   ├── UnsupportedMediaTypeError
│   ├── BodyTooLargeError
│   ├── BodyTimeoutError
│   ├── InvalidRequestError       carries a pointer for each fault
│   ├── BadCursorError
│   ├── BadLastEventIdError       beyond the last committed event, or of another turn
│   ├── PreconditionFailedError   the conversation is not at the version that If-Match names
│   └── IdempotencyMismatchError  the key was used for something else
├── StepError                     the step failed; its turn is stored with this problem
│   ├── ModelError
│   ├── ModelTimeoutError         no first token in time
│   └── ModelRateLimitedError     carries the provider's waiting time
└── ConfigurationError            one clear line at the start, then exit
    ├── EmbeddedPostgresError
    └── SchemaError
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.ids import ConversationId, TurnId


class ChatWorkflowError(Exception):
    """The root: everything below is expected and has an answer."""


class NotFoundError(ChatWorkflowError):
    """There is nothing there that this caller may see."""


class TurnInProgressError(ChatWorkflowError):
    """Another turn runs; `turn_id` is None when it ended while we looked."""

    def __init__(self, conversation_id: ConversationId, turn_id: TurnId | None) -> None:
        super().__init__(f"a turn is running in conversation {conversation_id}")
        self.conversation_id = conversation_id
        self.turn_id = turn_id


class ConversationClosedError(ChatWorkflowError):
    """The conversation was closed and takes no more messages."""


class WorkerLostError(ChatWorkflowError):
    """The process that ran the turn died or was frozen."""


class LostOwnershipError(ChatWorkflowError):
    """The fence has moved on: stop, and write nothing more."""


class KeyTakenError(ChatWorkflowError):
    """A request with this idempotency key was stored before; nothing was stored now."""


class StillRunningError(ChatWorkflowError):
    """The turn was begun and has not ended within the time a client is made to wait."""

    def __init__(self, conversation_id: ConversationId, turn_id: TurnId) -> None:
        super().__init__(f"turn {turn_id} is still running")
        self.conversation_id = conversation_id
        self.turn_id = turn_id


class DrainingError(ChatWorkflowError):
    """This process is shutting down; with a turn id: it was begun and will be ended elsewhere."""

    def __init__(
        self, conversation_id: ConversationId | None = None, turn_id: TurnId | None = None
    ) -> None:
        super().__init__("the service is shutting down")
        self.conversation_id = conversation_id
        self.turn_id = turn_id


class OverloadedError(ChatWorkflowError):
    """`limit` turns run in this process; another one would be at their expense."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} turns run in this process already")
        self.limit = limit


class DatabaseUnavailableError(ChatWorkflowError):
    """PostgreSQL cannot be reached, or did not answer in time."""


class DatabaseRefusedError(DatabaseUnavailableError):
    """PostgreSQL does not let us in: waiting alone will not help."""


class StatementDeclinedError(DatabaseUnavailableError):
    """PostgreSQL has declined the statement; nothing of it was stored."""


class OutcomeUnknownError(DatabaseUnavailableError):
    """The connection broke when the turn was to be begun, and has not come back since."""

    def __init__(self, conversation_id: ConversationId, turn_id: TurnId) -> None:
        super().__init__(f"it is not known whether turn {turn_id} was begun")
        self.conversation_id = conversation_id
        self.turn_id = turn_id


class CallerError(ChatWorkflowError):
    """The caller is not known, or may not do this."""


class UnauthenticatedError(CallerError):
    """No credentials, or unknown ones."""


class ForbiddenError(CallerError):
    """Never for a foreign id: that is NotFoundError."""


class RateLimitedError(CallerError):
    """More than the operator allows one caller; `retry_after` in seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__("this caller has done too much at once")
        self.retry_after = retry_after


class RequestError(ChatWorkflowError):
    """The request cannot be understood; nothing was stored."""


class MalformedJsonError(RequestError):
    """The body is not JSON (RFC 8259): NaN and Infinity are not JSON either."""


class UnsupportedMediaTypeError(RequestError):
    """The body is not declared as application/json."""


class BodyTooLargeError(RequestError):
    """The body is larger than `limit` bytes; it was not read to its end."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than {limit} bytes")
        self.limit = limit


class BodyTimeoutError(RequestError):
    """The body did not come to its end in time."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: a JSON pointer (RFC 6901) and a sentence without the value."""

    pointer: str
    message: str


class InvalidRequestError(RequestError):
    """Well-formed, but not what the route takes."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(f"{fault.pointer}: {fault.message}" for fault in faults))
        self.faults = tuple(faults)


class BadCursorError(RequestError):
    """The cursor was not made by this service, or not for this list."""


class BadLastEventIdError(RequestError):
    """The id of no event that this turn has committed."""


class PreconditionFailedError(RequestError):
    """The conversation has changed since the client looked; nothing was stored."""


class IdempotencyMismatchError(RequestError):
    """The Idempotency-Key belongs to another request of this caller."""


class StepError(ChatWorkflowError):
    """A step failed. The message is for logs and holds no text of a user, model or provider."""


class ModelError(StepError):
    """The model refused, broke off or answered nonsense."""


class ModelTimeoutError(StepError):
    """The model sent no first token within the limit."""


class ModelRateLimitedError(StepError):
    """The provider asks us to wait; `retry_after` in seconds, None when it did not say."""

    def __init__(self, message: str, retry_after: int | None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ConfigurationError(ChatWorkflowError):
    """The service cannot start like this; the message is the one line shown."""


class EmbeddedPostgresError(ConfigurationError):
    """The embedded PostgreSQL cannot be used here."""


class SchemaError(ConfigurationError):
    """The database's schema is not one that this release can work with."""
