"""Runs a step inside this process."""

from collections.abc import AsyncGenerator

from app.frameworks.pydantic_ai.agent import PydanticAIAgent
from app.steps import StepInput, StepOutput, StepResult


class DirectExecutor:
    def __init__(self, agent: PydanticAIAgent) -> None:
        self._agent = agent

    async def run(self, step: StepInput) -> StepResult:
        """The same path as `run_stream`, so that both count and judge alike."""
        async for item in self.run_stream(step):
            if isinstance(item, StepResult):
                return item
        raise AssertionError("a stream ended without a result")

    def run_stream(self, step: StepInput) -> AsyncGenerator[StepOutput]:
        return self._agent.stream(step)
