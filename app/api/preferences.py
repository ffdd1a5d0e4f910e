"""How long a client wants to wait: the `Prefer` header (RFC 7240)."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LONGEST_WAIT = 86_400
# More than that nobody has to say; every character is looked at once.
LONGEST_HEADER = 1_000
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)


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
    """Of a preference that stands twice the first counts; what is no preference ends the list.

    Parameters, behind a semicolon, are of no interest here.
    """
    found: dict[str, str] = {}
    for item in _split(text[:LONGEST_HEADER], ","):
        preference = next(_split(item, ";"))
        name, _, value = (part.strip() for part in preference.partition("="))
        if not _NAME.fullmatch(name):
            break
        found.setdefault(name.lower(), re.sub(r"\\(.)", r"\1", value.strip('"')))
    return found


def _split(text: str, separator: str) -> Iterator[str]:
    """At each separator that does not stand in quotes."""
    start, quoted, escaped = 0, False, False
    for place, character in enumerate(text):
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = quoted
        elif character == '"':
            quoted = not quoted
        elif character == separator and not quoted:
            yield text[start:place]
            start = place + 1
    yield text[start:]
