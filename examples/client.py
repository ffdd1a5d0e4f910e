"""A small client of chat-workflow: sends a message, prints the answer as it comes, survives a cut.

    python examples/client.py "My name is Ada."
    python examples/client.py "What is my name?"

It needs httpx. SERVICE_URL and SERVICE_KEY say where the service is, and who is calling;
SERVICE_STATE is the file that remembers the conversation.
"""

import json
import os
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx

URL = os.environ.get("SERVICE_URL", "http://localhost:8000")
KEY = os.environ.get("SERVICE_KEY", "")
STATE = Path(os.environ.get("SERVICE_STATE", ".conversation"))
TERMINAL = {"turn.completed", "turn.incomplete", "turn.cancelled", "turn.failed"}
# Seconds without a single event after which it gives up.
PATIENCE = 60


def main(content: str) -> int:
    headers = {"Authorization": f"Bearer {KEY}"} if KEY else {}
    # The service sends a comment every 15 seconds: longer silence is a dead connection.
    timeout = httpx.Timeout(10, read=40)
    try:
        with httpx.Client(base_url=URL, headers=headers, timeout=timeout) as client:
            for event in told(client, conversation(client), content):
                show(event)
    except httpx.HTTPStatusError as error:
        # Every refusal is a problem document (RFC 9457).
        print(error.response.json()["detail"], file=sys.stderr)
        if error.response.status_code == 404:
            print(f"The conversation is gone; remove {STATE} to begin a new one.", file=sys.stderr)
        return 1
    except httpx.TransportError as error:
        print(f"{URL} cannot be reached: {error}", file=sys.stderr)
        return 1
    print()
    return 0 if event["type"] == "turn.completed" else 1


def show(event: dict) -> None:
    """Kinds of events that a client does not know it leaves out."""
    if event["type"] == "text.delta":
        print(event["delta"], end="", flush=True)
    elif event["type"] == "turn.restarted":
        print("\n[from the beginning:]")
    elif event["type"] == "turn.failed":
        print(f"\n{event['error']['title']}: {event['error']['detail']}", file=sys.stderr)


def conversation(client: httpx.Client) -> str:
    """The one of the last call, or a new one."""
    if STATE.exists():
        return STATE.read_text()
    created = client.post("/v1/conversations").raise_for_status().json()
    STATE.write_text(created["id"])
    return created["id"]


def told(client: httpx.Client, conversation_id: str, content: str) -> Iterator[dict]:
    """The events of one turn, each once, however often the connection breaks."""
    # The key makes it safe to send again when nobody knows whether the first try arrived.
    send = {"json": {"content": content}, "headers": {"Idempotency-Key": str(uuid.uuid4())}}
    request = ("POST", f"/v1/conversations/{conversation_id}/messages/stream", send)
    heard = time.monotonic()
    while True:
        wait = 1
        try:
            with client.stream(request[0], request[1], **request[2]) as response:
                wait = refused(response, time.monotonic() - heard)
                for event_id, event in events(response):
                    yield event
                    if event["type"] in TERMINAL:
                        return
                    heard = time.monotonic()
                    path = f"/v1/conversations/{conversation_id}/turns/{event['turn_id']}/events"
                    if event_id:
                        request = ("GET", path, {"headers": {"Last-Event-ID": event_id}})
        except httpx.TransportError as error:
            if time.monotonic() - heard > PATIENCE:
                raise
            print(f"[{type(error).__name__}, going on]", file=sys.stderr)
        time.sleep(wait)


def refused(response: httpx.Response, waited: float) -> int:
    """Seconds to wait before the next try; raises when another try is of no use."""
    if response.is_success:
        return 1
    problem = json.loads(response.read())
    if not problem["retryable"] or waited > PATIENCE:
        response.raise_for_status()
    return int(response.headers.get("Retry-After", 1))


def events(response: httpx.Response) -> Iterator[tuple[str | None, dict]]:
    """Server-Sent Events, as far as this service uses them: id and data, one line each."""
    event_id, data = None, None
    for line in response.iter_lines() if response.is_success else ():
        name, _, value = line.partition(": ")
        if name == "id":
            event_id = value
        elif name == "data":
            data = value
        elif not line and data is not None:
            yield event_id, json.loads(data)
            event_id, data = None, None


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:]) or "Hello!"))
