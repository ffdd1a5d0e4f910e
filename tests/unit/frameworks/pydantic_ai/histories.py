"""Generated pydantic-ai histories: every message field and part kind that 2.68 has."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    CachePoint,
    CapabilityLoadDeltaPart,
    Citation,
    CompactionPart,
    DocumentUrl,
    FilePart,
    ImageUrl,
    InstructionDeltaPart,
    ModelRequest,
    ModelResponse,
    ModelSettingsDeltaPart,
    NativeToolCallPart,
    NativeToolReturnPart,
    RetryFeedbackPart,
    RetryInfo,
    SpeechPart,
    StructuredContent,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolAvailabilityDeltaPart,
    ToolCallPart,
    ToolReturnPart,
    UploadedFile,
    UserPromptPart,
    VideoUrl,
    WebCitationSource,
)
from pydantic_ai.usage import RequestUsage

# What is stored never holds NUL or a lone surrogate (see the text policy's own tests).
texts = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00"),
    max_size=20,
)
names = st.text("abcdefgh_", min_size=1, max_size=8)
call_ids = st.text("abc0123456789", min_size=1, max_size=6)
moments = st.datetimes(
    min_value=datetime(2024, 1, 1),  # noqa: DTZ001 - hypothesis wants it naive and adds the zone
    max_value=datetime(2027, 1, 1),  # noqa: DTZ001 - the same
    timezones=st.just(UTC),
)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
json_values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
json_objects = st.dictionaries(names, json_values, max_size=3)
optional_details = st.none() | json_objects.filter(bool)
optional_name = st.none() | names

pictures = st.builds(BinaryContent, data=st.binary(max_size=12), media_type=st.just("image/png"))
urls = st.sampled_from(["https://example.org/a.png", "https://example.org/b"])
media = (
    pictures
    | st.builds(ImageUrl, url=urls, force_download=st.booleans())
    | st.builds(AudioUrl, url=urls, media_type=st.just("audio/mpeg"))
    | st.builds(VideoUrl, url=urls, media_type=st.just("video/mp4"))
    | st.builds(DocumentUrl, url=urls, media_type=st.just("application/pdf"))
    | st.builds(UploadedFile, file_id=names, provider_name=st.just("openai"))
)
content_items = (
    texts
    | media
    | st.builds(TextContent, content=texts, metadata=json_values)
    | st.builds(StructuredContent, value=json_objects, tag=st.just("facts"))
    | st.builds(CachePoint, ttl=st.sampled_from(["5m", "1h"]))
)
outcomes = st.sampled_from(["success", "failed", "denied", "interrupted", "retried"])
tool_contents = json_values | media | st.lists(texts | media | json_objects, max_size=3)

request_parts = st.one_of(
    st.builds(SystemPromptPart, content=texts),
    st.builds(InstructionDeltaPart, content=st.none() | texts, id=st.none()),
    st.builds(
        UserPromptPart, content=texts | st.lists(content_items, max_size=4), timestamp=moments
    ),
    st.builds(
        ToolReturnPart,
        tool_name=names,
        content=tool_contents,
        tool_call_id=call_ids,
        metadata=json_values,
        timestamp=moments,
        outcome=outcomes,
    ),
    st.builds(
        RetryFeedbackPart,
        content=texts,
        retry=st.builds(RetryInfo, cause=st.just("no_output"), attempt=st.none() | st.just(1)),
        timestamp=moments,
    ),
    st.builds(CompactionPart, content=texts),
    st.builds(SpeechPart, speaker=st.just("user"), transcript=texts),
    st.builds(ToolAvailabilityDeltaPart, tools_added=st.lists(names, max_size=2)),
    st.builds(CapabilityLoadDeltaPart, loaded=st.lists(names, max_size=2)),
    st.builds(ModelSettingsDeltaPart, settings=st.just({"temperature": 0.5})),
)
citations = st.none() | st.just([Citation(sources=[WebCitationSource(url="https://example.org")])])
tool_args = st.none() | texts | json_objects
response_parts = st.one_of(
    st.builds(
        TextPart,
        content=texts,
        id=optional_name,
        provider_name=optional_name,
        provider_details=optional_details,
        citations=citations,
    ),
    st.builds(
        ThinkingPart,
        content=texts,
        id=optional_name,
        signature=optional_name,
        provider_name=optional_name,
        provider_details=optional_details,
    ),
    st.builds(
        ToolCallPart,
        tool_name=names,
        args=tool_args,
        tool_call_id=call_ids,
        id=optional_name,
        provider_name=optional_name,
        provider_details=optional_details,
    ),
    st.builds(NativeToolCallPart, tool_name=names, args=tool_args, tool_call_id=call_ids),
    st.builds(
        NativeToolReturnPart,
        tool_name=names,
        content=tool_contents,
        tool_call_id=call_ids,
        timestamp=moments,
        outcome=outcomes,
        provider_name=optional_name,
    ),
    st.builds(FilePart, content=pictures, id=optional_name),
    st.builds(CompactionPart, content=st.none() | texts, provider_name=optional_name),
    st.builds(SpeechPart, speaker=st.just("assistant"), transcript=texts, audio=st.none()),
)
counts = st.integers(0, 10**6)
usages = st.builds(
    RequestUsage,
    input_tokens=counts,
    output_tokens=counts,
    cache_read_tokens=counts,
    output_reasoning_tokens=counts,
    details=st.dictionaries(names, counts, max_size=2),
    cost=st.none() | st.decimals(0, 10, places=4).map(Decimal),
)
requests = st.builds(
    ModelRequest,
    parts=st.lists(request_parts, max_size=4),
    timestamp=st.none() | moments,
    instructions=st.none() | texts,
    run_id=optional_name,
    conversation_id=optional_name,
    metadata=optional_details,
    state=st.sampled_from(["complete", "interrupted"]),
)
responses = st.builds(
    ModelResponse,
    parts=st.lists(response_parts, max_size=5),
    usage=usages,
    model_name=optional_name,
    timestamp=moments,
    provider_name=optional_name,
    provider_url=optional_name,
    provider_details=optional_details,
    provider_response_id=optional_name,
    finish_reason=st.none() | st.sampled_from(["stop", "length", "tool_call", "content_filter"]),
    run_id=optional_name,
    conversation_id=optional_name,
    metadata=optional_details,
    history_digest=optional_name,
    state=st.sampled_from(["complete", "incomplete", "suspended", "interrupted"]),
)
histories = st.lists(requests | responses, max_size=6)
