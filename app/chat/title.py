"""A conversation without a title takes its first message's beginning."""

LONGEST_TITLE = 80


def title_of(prompt: str) -> str:
    """The first 80 characters, on one line."""
    return " ".join(prompt.lstrip()[: LONGEST_TITLE * 4].split())[:LONGEST_TITLE].rstrip()
