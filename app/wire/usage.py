"""Tokens and cost on the wire: null is unknown."""

from typing_extensions import TypedDict

from app.runs import Usage


class UsageDocument(TypedDict):
    """`cost` is in US dollars, as a decimal number in a string."""

    input_tokens: int | None
    output_tokens: int | None
    cache_read_tokens: int | None
    reasoning_tokens: int | None
    cost: str | None
    estimated: bool


def usage_document(usage: Usage) -> UsageDocument:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "cost": None if usage.cost is None else format(usage.cost, "f"),
        "estimated": usage.estimated,
    }
