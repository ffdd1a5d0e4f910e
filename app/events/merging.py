"""Deltas that wait for the same commit become one."""

from collections.abc import Sequence

from app.events.stream_event import ReasoningDelta, StreamEvent, TextDelta


def merged(events: Sequence[StreamEvent]) -> list[StreamEvent]:
    """The same events with neighbouring deltas of one message joined."""
    result: list[StreamEvent] = []
    run: list[StreamEvent] = []
    for event in events:
        if run and not _continues(run[-1], event):
            result.append(_joined(run))
            run = []
        run.append(event)
    if run:
        result.append(_joined(run))
    return result


def _continues(last: StreamEvent, event: StreamEvent) -> bool:
    match last, event:
        case TextDelta(), TextDelta():
            return last.message_id == event.message_id
        case ReasoningDelta(), ReasoningDelta():
            return True
        case _:
            return False


def _joined(run: Sequence[StreamEvent]) -> StreamEvent:
    if len(run) == 1:
        return run[0]
    text = "".join(item.delta for item in run if isinstance(item, TextDelta | ReasoningDelta))
    first = run[0]
    return (
        TextDelta(first.message_id, text) if isinstance(first, TextDelta) else ReasoningDelta(text)
    )
