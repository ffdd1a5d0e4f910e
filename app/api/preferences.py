"""How long a client wants to wait: the `Prefer` header (RFC 7240)."""

import re
from dataclasses import dataclass

LONGEST_WAIT = 86_400
_WAIT = re.compile(r"wait=(\d{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Preference:
    """`wait` in seconds; None: until the turn has ended."""

    wait: float | None
    applied: str | None


def preference_of(header: str | None) -> Preference:
    """`respond-async` alone does not wait at all. What we do not know is ignored, as it has to be."""
    names = [name.strip().lower() for name in re.split("[,;]", header or "")]
    waits = [int(match.group(1)) for name in names if (match := _WAIT.fullmatch(name))]
    if waits:
        wait = min(waits[0], LONGEST_WAIT)
        return Preference(wait, f"wait={wait}")
    if "respond-async" in names:
        return Preference(0, "respond-async")
    return Preference(None, None)
