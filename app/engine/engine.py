"""What a runner needs of an engine, and an engine of the one who runs turns."""

from contextlib import AbstractContextManager
from typing import Protocol

from app.ids import TurnId, WorkerId
from app.runs import BegunTurn


class RunHandler(Protocol):
    """Runs begun turns to their end."""

    async def execute(self, begun: BegunTurn) -> None:
        """Runs the turn and commits its end. When cancelled it stops the model at once, and ends
        the turn only if its cancellation was asked for."""
        ...


class RunEngine(Protocol):
    """Decides where a begun turn runs."""

    @property
    def is_draining(self) -> bool: ...

    @property
    def is_closed(self) -> bool:
        """The grace is over: no turn is started here any more, and those that run are stopped."""
        ...

    def claiming(self, turn_id: TurnId) -> AbstractContextManager[WorkerId]:
        """While a claim is in flight: the worker to claim for. Raises DrainingError, OverloadedError."""
        ...

    def start(self, begun: BegunTurn) -> None: ...

    async def wait(self, turn_id: TurnId, limit: float) -> None:
        """Until the turn does not run here any more, for `limit` seconds at most."""
        ...

    async def stop(self, turn_id: TurnId, limit: float) -> None:
        """Stops the turn if it runs here, and waits for that for `limit` seconds at most."""
        ...
