"""What a text may hold."""

import math

import pytest

from app.messages.text_policy import is_storable, storable, storable_json


@pytest.mark.parametrize(
    "text", ["", "plain", "\n\t\x01\x7f", "\N{GRINNING FACE}", "\ufffe\uffff", "\u2028"]
)
def test_ordinary_text_stays(text: str) -> None:
    assert is_storable(text)
    assert storable(text) == text


@pytest.mark.parametrize(
    ("text", "stored"),
    [("a\x00b", "a\ufffdb"), ("\ud83d", "\ufffd"), ("x\udfffy\x00", "x\ufffdy\ufffd")],
)
def test_nul_and_lone_surrogates_are_replaced(text: str, stored: str) -> None:
    assert not is_storable(text)
    assert storable(text) == stored


def test_json_values_are_cleaned_all_through() -> None:
    value = {"a\x00": ["\ud800", (1, math.nan)], 2: {"b": math.inf}, "c": 10**40, "d": None}

    assert storable_json(value) == {
        "a\ufffd": ["\ufffd", [1, None]],
        "2": {"b": None},
        "c": 10**40,
        "d": None,
    }
