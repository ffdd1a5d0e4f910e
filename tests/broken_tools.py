"""Tools that cannot be imported."""

NOTHING = 1 / 0
