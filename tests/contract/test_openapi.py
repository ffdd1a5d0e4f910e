"""The checked-in description of the API is the one that the code gives."""

import json
from pathlib import Path

from app.api.application import create_application
from app.cli import dump_openapi

CHECKED_IN = Path(__file__).parents[2] / "openapi" / "openapi.json"


def test_the_description_is_up_to_date() -> None:
    described = dump_openapi(create_application().openapi())

    assert CHECKED_IN.read_text() == described + "\n", "run 'make openapi' and look at the diff"


def test_it_is_openapi_3_1_with_a_summary_for_every_route() -> None:
    document = json.loads(CHECKED_IN.read_text())

    assert document["openapi"].startswith("3.1")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], f"{method} {path}"
