"""The Prefer header, as RFC 7240 has it."""

import pytest

from app.api.preferences import preference_of


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ([], None),
        ([""], None),
        (["respond-async"], 0),
        (["Respond-Async"], 0),
        (['respond-async=""'], 0),
        (["foo", "respond-async"], 0),
        (["wait=10"], 10),
        (["wait = 10"], 10),
        (['wait="10"'], 10),
        (["respond-async, wait=10"], 10),
        (["respond-async; x=y, wait=3"], 3),
        (["wait=1, wait=2"], 1),
        (["wait=99999999999"], 86_400),
        (["wait=-1"], None),
        (["wait=soon"], None),
        (["wait"], None),
        (['foo="a, respond-async, b"'], None),
        (["foo; wait=1"], None),
        (["foo=bar; respond-async"], None),
        (['foo="unfinished, respond-async'], None),
        (['foo="a\\", b", wait=7'], 7),
        (["wait=7" + "; " * 400 + '"'], 7),
        (["wait" + " " * 900 + "=7"], 7),
        (["a" + "; " * 20_000 + '"'], None),
        (["wait" + " " * 20_000 + "x"], None),
    ],
    ids=str,
)
def test_what_a_client_prefers(headers: list[str], wait: float | None) -> None:
    assert preference_of(headers).wait == wait
