"""Which characters a text may hold: PostgreSQL stores no NUL, UTF-8 no lone surrogate.

A client's text with one of them is refused. What a model or tool says is never refused:
there each is replaced by U+FFFD before it is streamed or stored.
"""

import math
import re
from typing import cast

from app.messages.message import Json

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
LONGEST_INTEGER = 14_000  # bits
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def is_storable(text: str) -> bool:
    return _UNSTORABLE.search(text) is None


def storable(text: str) -> str:
    return _UNSTORABLE.sub(REPLACEMENT, text)


def storable_json(value: object) -> Json:
    """The same for every string inside a JSON value.

    Numbers that JSON lacks become null, and integers of more than about 4,000 digits too, which
    Python does not write.
    """
    match value:
        case str():
            return storable(value)
        case int() if value.bit_length() > LONGEST_INTEGER:
            return None
        case float() if not math.isfinite(value):
            return None
        case dict():
            items = cast("dict[object, object]", value).items()
            return {storable(str(key)): storable_json(item) for key, item in items}
        case list() | tuple():
            return [storable_json(item) for item in cast("list[object]", value)]
        case _:
            return cast("Json", value)
