"""The caller's trace: `traceparent` (W3C Trace Context, section 3.2)."""

import re

_TRACEPARENT = re.compile(
    r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?", re.ASCII
)


def trace_id_of(traceparent: str | None) -> str | None:
    """32 hexadecimal digits; None without a header, or with one that has to be ignored."""
    match = _TRACEPARENT.fullmatch(traceparent or "")
    if match is None:
        return None
    version, trace_id, parent_id, more = match.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    if not int(trace_id, 16) or not int(parent_id, 16):
        return None
    return trace_id
