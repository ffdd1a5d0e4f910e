"""Titles from first messages."""

import pytest

from app.chat.title import title_of


@pytest.mark.parametrize(
    ("prompt", "title"),
    [
        ("Hello", "Hello"),
        ("  two\n lines ", "two lines"),
        ("x" * 100, "x" * 80),
        ("a " * 100, ("a " * 40).rstrip()),
        ("\N{GRINNING FACE}" * 90, "\N{GRINNING FACE}" * 80),
    ],
)
def test_the_first_80_characters_on_one_line(prompt: str, title: str) -> None:
    assert title_of(prompt) == title


def test_a_message_that_begins_with_a_page_of_blanks_still_has_a_title() -> None:
    assert title_of(" \n" * 500 + "Hello") == "Hello"
