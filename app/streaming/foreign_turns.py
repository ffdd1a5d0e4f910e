"""Brings what other processes commit to those who follow it here.

One query for all followed turns of other processes, however many streams there are: at once when
a notification says that there is something, and twice a second in any case.
"""

from app.errors import DatabaseUnavailableError
from app.observability.logging import get_logger
from app.storage.database import Database
from app.storage.event_log import EventLog, Place, Progress
from app.streaming.followers import Closing, Followers, ForeignFeed

logger = get_logger()

# Seconds between two looks when nobody tells.
INTERVAL = 0.5
# Characters of one turn that are read in one look.
PAGE = 64 * 1024


class ForeignTurns:
    def __init__(self, database: Database, event_log: EventLog, followers: Followers) -> None:
        self._database = database
        self._event_log = event_log
        self._followers = followers

    async def keep_reading(self) -> None:
        while True:
            await self._followers.foreign_bell.wait(INTERVAL)
            try:
                await self.read()
            except DatabaseUnavailableError:
                logger.warning("foreign_turns_blind")

    async def read(self) -> None:
        """One look at every followed turn of other processes."""
        feeds = {feed.turn_id: feed for feed in self._followers.followed_elsewhere}
        if not feeds:
            return
        places = [Place(feed.run_id, feed.turn_id, feed.last_seq) for feed in feeds.values()]
        async with self._database.statement() as driver:
            found = await self._event_log.read_many(driver, places, limit=PAGE)
        for progress in found:
            self._bring(feeds[progress.turn_id], progress)

    def _bring(self, feed: ForeignFeed, progress: Progress) -> None:
        if progress.status is None:
            self._followers.leave(feed, Closing.DELETED)
            return
        try:
            feed.publish(progress.frames())
        except ValueError:
            # Who follows it reads the table and fails alone; the others go on.
            logger.exception("foreign_turn_unreadable", turn_id=str(feed.turn_id))
            self._followers.leave(feed, Closing.LOST)
            return
        if progress.is_full:
            self._followers.foreign_bell.ring()
        elif progress.status.is_terminal:
            # Its end is among them, or its events are removed already: then the transcript has it.
            self._followers.leave(feed, Closing.LOST)
