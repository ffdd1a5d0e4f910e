"""A data directory and a starter of real services for each test."""

import signal
import tempfile
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from tests.postmasters import send_to_postmasters
from tests.process import service
from tests.process.service import RunningService
from tests.scripted_model import ScriptedModel


@pytest.fixture
def directory() -> Generator[Path]:
    """An empty data directory; whatever was left running in it is ended."""
    with tempfile.TemporaryDirectory(prefix="cw-process-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path / "data"
        send_to_postmasters(path, signal.SIGKILL)


@pytest.fixture
async def started(directory: Path, model: ScriptedModel) -> AsyncGenerator["Starter"]:
    starter = Starter(directory, model)
    yield starter
    for running in starter.all:
        await running.kill()


class Starter:
    def __init__(self, directory: Path, model: ScriptedModel) -> None:
        self._directory = directory
        self._model = model
        self.all: list[RunningService] = []

    async def __call__(self, *arguments: str, **settings: object) -> RunningService:
        defaults: dict[str, object] = {
            "chat_data_dir": self._directory,
            "chat_model": "scripted",
            "chat_model_base_url": self._model.base_url,
        }
        running = await service.launch(*arguments, **{**defaults, **settings})
        self.all.append(running)
        return await running.serving()
