"""Where things are: the absolute paths that links and locations use."""

from dataclasses import dataclass

from typing_extensions import TypedDict

from app.ids import ConversationId, TurnId


class TurnLinks(TypedDict):
    self: str
    events: str
    cancel: str


@dataclass(frozen=True, slots=True)
class Paths:
    """`base`: what stands before all of them behind a proxy, such as "/chat"; else empty."""

    base: str = ""

    def conversation(self, conversation_id: ConversationId) -> str:
        return f"{self.base}/v1/conversations/{conversation_id}"

    def turn(self, conversation_id: ConversationId, turn_id: TurnId) -> str:
        return f"{self.conversation(conversation_id)}/turns/{turn_id}"

    def turn_links(self, conversation_id: ConversationId, turn_id: TurnId) -> TurnLinks:
        path = self.turn(conversation_id, turn_id)
        return {"self": path, "events": f"{path}/events", "cancel": f"{path}/cancel"}
