"""The demo model remembers, so that a newcomer sees that the conversation does."""

import pytest

from app.frameworks.pydantic_ai.models import demo_answer


@pytest.mark.parametrize(
    ("prompts", "answers", "part"),
    [
        (["My name is Ada.", "What is my name?"], ["Hello"], "Your name is Ada."),
        (["What is my name?"], [], "You have not told me your name."),
        (["My name is Ada", "No, my name is Eve", "what's my name?"], ["", ""], "Eve"),
        (["I like figs", "What did I say?"], ["ok"], "You said: I like figs"),
        (["Repeat what I said"], [], "You have not said anything before this."),
        (["hi", "What did you say?"], ["Hello"], "I said: Hello"),
        (["hi"], [], "demo model"),
        (["a", "b"], ["c"], "1 thing(s) before"),
    ],
)
def test_what_it_says(prompts: list[str], answers: list[str], part: str) -> None:
    assert part in demo_answer(prompts, answers)
