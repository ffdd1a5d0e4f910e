"""What was told of an agent's run is kept, even where the framework forgets it."""

from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
)

from app.events.stream_event import MessageCompleted, TextDelta
from app.frameworks.pydantic_ai.messages import to_conversation
from app.frameworks.pydantic_ai.stream import EventMapper


def told(mapper: EventMapper, *texts: str) -> list[TextDelta]:
    first, *rest = texts
    events = list(mapper.map(PartStartEvent(index=0, part=TextPart(first))))
    for text in rest:
        events += mapper.map(PartDeltaEvent(index=0, delta=TextPartDelta(text)))
    return [event for event in events if isinstance(event, TextDelta)]


def test_a_response_that_the_framework_forgot_is_made_of_what_was_told() -> None:
    mapper = EventMapper()
    deltas = told(mapper, "half ", "an answer")

    lost = mapper.lost([])
    assert lost is not None
    (completed,) = mapper.announce([lost])

    assert isinstance(completed, MessageCompleted)
    assert completed.message.content == "half an answer"
    assert completed.message.id == deltas[0].message_id
    kept = to_conversation([lost], mapper.assistant_ids)
    assert [message.id for message in kept] == [completed.message.id]
    assert mapper.lost([lost]) is None


def test_a_response_that_it_kept_is_not_made_again() -> None:
    mapper = EventMapper()
    told(mapper, "a")
    first: list[ModelMessage] = [ModelResponse([TextPart("a")])]

    assert mapper.lost(first) is None
    list(mapper.announce(first))
    assert mapper.lost(first) is None
    told(mapper, "b")

    lost = mapper.lost(first)
    assert lost is not None
    assert lost.parts == [TextPart("b")]
