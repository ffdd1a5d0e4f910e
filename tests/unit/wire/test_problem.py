"""Every error has its line in the one map from error to problem."""

import re
from pathlib import Path

import pytest

from app import errors
from app.errors import (
    ChatWorkflowError,
    ConfigurationError,
    DatabaseRefusedError,
    KeyTakenError,
    LostOwnershipError,
    StatementDeclinedError,
)
from app.ids import new_conversation_id, new_turn_id
from app.wire.paths import Paths
from app.wire.problem import INTERNAL_ERROR, KINDS, TURN_CANCELLED, kind_of, turn_problem

# Groups that are never raised themselves, what ends a start, and what never leaves the engine.
WITHOUT_A_PROBLEM = {
    *(errors.ChatWorkflowError, errors.CallerError, errors.RequestError, errors.StepError),
    *(LostOwnershipError, KeyTakenError),
    *(DatabaseRefusedError, StatementDeclinedError),  # for clients the same as their parent
}


def tree(root: type[ChatWorkflowError]) -> list[type[ChatWorkflowError]]:
    return [root, *(error for child in root.__subclasses__() for error in tree(child))]


@pytest.mark.parametrize("error", tree(ChatWorkflowError), ids=lambda error: error.__name__)
def test_every_error_of_the_tree_has_a_problem(error: type[ChatWorkflowError]) -> None:
    if error in WITHOUT_A_PROBLEM or issubclass(error, ConfigurationError):
        return
    assert error in KINDS


def test_the_tree_at_the_top_of_the_file_is_the_tree() -> None:
    drawn = re.findall(r"(\w+Error)", errors.__doc__ or "")

    assert set(drawn) >= {error.__name__ for error in tree(ChatWorkflowError)}


def test_codes_are_unique() -> None:
    codes = [kind.code for kind in (*KINDS.values(), TURN_CANCELLED, INTERNAL_ERROR)]

    assert len(codes) == len(set(codes))


def test_an_unexpected_error_tells_nothing() -> None:
    problem = turn_problem(
        RuntimeError("postgres://secret"),
        Paths(),
        new_conversation_id(),
        new_turn_id(),
        request_id="r",
    )

    assert kind_of(RuntimeError()) is INTERNAL_ERROR
    assert "secret" not in str(problem)
    assert problem["status"] == 500


def test_every_problem_is_documented() -> None:
    text = (Path(__file__).parents[3] / "openapi" / "problems.md").read_text()

    for kind in (*KINDS.values(), TURN_CANCELLED, INTERNAL_ERROR):
        assert f"## {kind.code}\n" in text
        assert f"Status {kind.status}" in text
