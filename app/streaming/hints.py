"""What a notification makes this process look at sooner than it would by itself."""

from collections.abc import Callable, Set
from dataclasses import dataclass

from app.ids import ConversationId
from app.storage.listener import Named
from app.streaming.conversation_watch import ConversationWatch
from app.streaming.followers import Followers


@dataclass(frozen=True, slots=True)
class Hints:
    """`held`: the conversations whose turns run here; `look_after_turns`, `sweep`: look at once."""

    followers: Followers
    conversation_watch: ConversationWatch
    held: Callable[[], Set[ConversationId]]
    look_after_turns: Callable[[], None]
    sweep: Callable[[], None]

    def events(self, named: Named) -> None:
        """Our own commits are told to us too; they were shown before that.

        Who follows a conversation while it has a turn is told by the turn.
        """
        streamed = self._streamed()
        if named is None or named & streamed:
            self.followers.foreign_bell.ring()
        if named is None or named & self.conversation_watch.followed - streamed - self.held():
            self.conversation_watch.bell.ring()

    def changes(self, named: Named) -> None:
        if named is None or named & self.held():
            self.look_after_turns()
        if named is None or named & self._streamed():
            self.followers.foreign_bell.ring()
        if named is None or named & self.conversation_watch.followed:
            self.conversation_watch.bell.ring()

    def releases(self, _named: Named) -> None:
        self.sweep()

    def _streamed(self) -> Set[ConversationId]:
        """Those of which a turn of another process is read here."""
        return {feed.run_id for feed in self.followers.followed_elsewhere}
