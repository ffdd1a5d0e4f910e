"""Pages, for the description of the API."""

from typing import Generic, Literal, TypeVar

from typing_extensions import TypedDict

T = TypeVar("T")


class Page(TypedDict, Generic[T]):
    """`next_cursor` is opaque, and null at the end."""

    object: Literal["list"]
    data: list[T]
    has_more: bool
    next_cursor: str | None
