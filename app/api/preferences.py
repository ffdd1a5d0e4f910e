"""How long a client wants to wait: the `Prefer` header (RFC 7240)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

LONGEST_WAIT = 86_400
_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_WORD = rf"(?:{_NAME}|{_QUOTED})"
# A preference, its value, and its parameters, which are of no interest here.
_PREFERENCE = re.compile(
    rf"\s*({_NAME})\s*(?:=\s*({_WORD})?)?((?:\s*;\s*(?:{_NAME}\s*(?:=\s*{_WORD}?)?)?)*)\s*(?:,|$)"
)


@dataclass(frozen=True, slots=True)
class Preference:
    """`wait` in seconds; None: until the turn has ended."""

    wait: float | None
    applied: str | None


def preference_of(headers: Sequence[str]) -> Preference:
    """`respond-async` alone does not wait at all. What we do not know is ignored, as it has to be."""
    found = _parsed(", ".join(headers))
    wait = found.get("wait", "")
    if wait.isascii() and wait.isdigit():
        seconds = min(int(wait[:9]), LONGEST_WAIT)
        return Preference(seconds, f"wait={seconds}")
    if "respond-async" in found:
        return Preference(0, "respond-async")
    return Preference(None, None)


def _parsed(text: str) -> dict[str, str]:
    """Of a preference that stands twice the first counts; what is no preference ends the list."""
    found: dict[str, str] = {}
    place = 0
    while place < len(text) and (match := _PREFERENCE.match(text, place)):
        name, value = match.group(1).lower(), match.group(2) or ""
        found.setdefault(name, re.sub(r"\\(.)", r"\1", value.strip('"')))
        place = match.end()
    return found
