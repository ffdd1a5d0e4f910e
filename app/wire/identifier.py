"""Ids on the wire: UUIDs (version 7) as RFC 9562 writes them."""

from typing import Annotated, TypeAlias

from pydantic import WithJsonSchema

Id: TypeAlias = Annotated[str, WithJsonSchema({"type": "string", "format": "uuid"})]
