"""The lock files hold all that pyproject.toml asks for, and say nothing of where it came from."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NAME = re.compile(r"[A-Za-z0-9._-]+")


def named(requirements: list[str]) -> set[str]:
    found = [NAME.match(requirement) for requirement in requirements]
    return {match.group().lower().replace("_", "-") for match in found if match}


def locked(name: str) -> set[str]:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    return named([line for line in lines if line and line[0].isalnum()])


def test_what_runs_is_locked() -> None:
    missing = named(PROJECT["project"]["dependencies"]) - locked("runtime.txt")

    assert not missing, "run 'make lock'"


def test_what_checks_and_tests_is_locked() -> None:
    missing = named(PROJECT["dependency-groups"]["dev"]) - locked("development.txt")

    assert not missing, "run 'make lock'"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda p: p.name
)
def test_no_lock_names_a_host_or_a_folder(path: Path) -> None:
    assert re.search(r"https?://|file:|--index|--find-links", path.read_text()) is None
