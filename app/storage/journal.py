"""What a running turn has finished, by name: kept for its next attempt, gone when it ends."""

from collections.abc import Mapping, Sequence

from app.runs import Claim
from app.storage.database import Driver, Row


class Journal:
    async def entries(self, driver: Driver, claim: Claim) -> Mapping[str, str]:
        """What earlier attempts have left: JSON texts by name."""
        rows: Sequence[Row] = await driver.fetch(_ENTRIES, claim.run_id, claim.turn_id)
        return {row["name"]: row["result"] for row in rows}

    async def is_live(self, driver: Driver, claim: Claim) -> bool:
        """Whether the turn is still ours."""
        row: Row | None = await driver.fetchrow(_IS_LIVE, claim.run_id, claim.turn_id, claim.fence)
        return row is not None

    async def record(self, driver: Driver, claim: Claim, name: str, result: str) -> bool:
        """Once is enough, again is fine. False: the turn is not ours any more."""
        row: Row | None = await driver.fetchrow(
            _RECORD, claim.run_id, claim.turn_id, claim.fence, name, result
        )
        return row is not None


_ENTRIES = "SELECT name, result FROM journal WHERE run_id = $1 AND turn_id = $2"

_IS_LIVE = "SELECT id FROM runs WHERE id = $1 AND active_turn_id = $2 AND fence = $3"

# The lock lets other entries of the turn by, but no takeover and no erasure.
_RECORD = """
WITH live AS (
    SELECT id FROM runs WHERE id = $1 AND active_turn_id = $2 AND fence = $3 FOR SHARE
), written AS (
    INSERT INTO journal (run_id, turn_id, name, result)
    SELECT id, $2, $4, $5 FROM live
    ON CONFLICT DO NOTHING
)
SELECT id FROM live
"""
