"""What holds of the stored state between any two statements, whatever processes did or died of.

Here and nowhere else: the state machine, the chaos and the process tests all ask `violations`.

I1  A run points to a turn exactly while that turn runs, and then to a worker; no other turn of it runs.
I2  The turns of a run are numbered 1, 2, … without a gap, up to its count.
I3  Messages are numbered 1, 2, … without a gap, up to the run's next number. Each turn's are one range,
    in the order of the turns, and begin with the user's one: no user message is lost, none is twice.
I4  A turn's events are numbered 1, 2, … without a gap or overlap, from `turn.started` on.
I5  A turn has exactly one terminal event when it has ended, its last, which tells its status; none before.
I6  Attempts grow by one with each restart, and the log never tells of one that the turn has not begun.
I7  What the log tells of the last attempt is what the transcript keeps.
I8  Tool calls and results are paired, in the transcript and in the log of an ended turn.
I9  The journal holds entries of running turns only.
I10 Of an erased conversation nothing is left but its tombstone (once purged).
I11 A conversation's sums are those of its turns.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from app.events.projection import project
from app.events.stream_event import TERMINAL_TYPES
from app.storage.database import Driver

Row = Mapping[str, Any]

TABLES = ("runs", "turns", "messages", "events", "journal", "idempotency_keys")
COUNTS = ("input_tokens", "output_tokens", "cache_read_tokens", "reasoning_tokens")


async def violations(driver: Driver) -> list[str]:
    """One line for each thing that is not as it must be, read in one snapshot."""
    async with driver.transaction(isolation="repeatable_read", readonly=True):
        tables = {name: await driver.fetch(f"SELECT * FROM {name}") for name in TABLES}  # noqa: S608 - our own names
    return list(_violations(tables))


def _violations(tables: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    of_run = {name: _by(rows, "run_id") for name, rows in tables.items() if name != "runs"}
    for run in tables["runs"]:
        mine = {name: rows.get(run["id"], []) for name, rows in of_run.items()}
        check = _of_erased if run["erased_at"] is not None else _of_run
        for line in check(run, mine):
            yield f"run {run['id']}: {line}"


def _by(rows: Iterable[Row], column: str) -> dict[Any, list[Row]]:
    grouped: dict[Any, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row[column], []).append(row)
    return grouped


def _of_erased(run: Row, mine: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    if run["active_turn_id"] is not None or run["worker_id"] is not None:
        yield "I10 an erased run still runs"
    for name, rows in mine.items():
        if rows:
            yield f"I10 {len(rows)} rows are left in {name}"


def _of_run(run: Row, mine: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    turns = sorted(mine["turns"], key=lambda turn: turn["number"])
    messages = sorted(mine["messages"], key=lambda message: message["seq"])
    events, entries = _by(mine["events"], "turn_id"), _by(mine["journal"], "turn_id")
    running = [turn["id"] for turn in turns if turn["status"] == "running"]
    active = run["active_turn_id"]
    if running != ([] if active is None else [active]):
        yield f"I1 {running} run, but {active} is active"
    if (active is None) != (run["worker_id"] is None):
        yield "I1 a turn without a worker, or the other way round"
    if [turn["number"] for turn in turns] != list(range(1, run["turn_count"] + 1)):
        yield "I2 turns are not numbered through"
    if [m["seq"] for m in messages] != list(range(1, run["next_message_seq"])):
        yield "I3 messages are not numbered through"
    yield from _ranges(turns, messages)
    for turn in turns:
        for line in _of_turn(turn, events.get(turn["id"], []), messages):
            yield f"turn {turn['number']}: {line}"
    if stale := set(entries) - set(running):
        yield f"I9 journal entries of {stale}"
    for name in COUNTS:
        known = [turn[name] for turn in turns if turn[name] is not None]
        if run[name] != (sum(known) if known else None):
            yield f"I11 {name} is {run[name]}, the turns have {known}"


def _ranges(turns: Sequence[Row], messages: Sequence[Row]) -> Iterator[str]:
    expected = 1
    for turn in turns:
        first, last = turn["first_message_seq"], turn["last_message_seq"]
        if first != expected or last < first:
            yield f"I3 turn {turn['number']} has the messages {first} to {last}"
            return
        expected = last + 1
        own = [m for m in messages if first <= m["seq"] <= last]
        if [m["role"] == "user" for m in own] != [True] + [False] * (len(own) - 1):
            yield f"I3 turn {turn['number']} does not begin with its one user message"
        if {m["turn_number"] for m in own} != {turn["number"]}:
            yield f"I3 a message of turn {turn['number']} bears another number"


def _of_turn(turn: Row, rows: Sequence[Row], messages: Sequence[Row]) -> Iterator[str]:
    rows = sorted(rows, key=lambda row: row["first_seq"])
    events = [json.loads(line) for row in rows for line in row["frames"].split("\n")]
    if [event["seq"] for event in events] != list(range(1, len(events) + 1)):
        yield f"I4 events are numbered {[event['seq'] for event in events]}"
    for row in rows:
        told = [json.loads(line)["seq"] for line in row["frames"].split("\n")]
        if (told[0], told[-1]) != (row["first_seq"], row["last_seq"]):
            yield "I4 a flush is not what its row says"
    if events and [event["type"] == "turn.started" for event in events] != [
        True,
        *[False] * (len(events) - 1),
    ]:
        yield "I4 the log does not begin with its one turn.started"
    yield from _terminal(turn, events)
    attempts = [event["attempt"] for event in events if event["type"] == "turn.restarted"]
    if attempts != sorted(set(attempts)) or (attempts and attempts[-1] > turn["attempt"]):
        yield f"I6 restarts {attempts}, but attempt {turn['attempt']}"
    if turn["status"] != "running" and events:
        own = [m for m in messages if m["turn_number"] == turn["number"]]
        yield from _transcript(events, own)


def _terminal(turn: Row, events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    ends = [event for event in events if event["type"] in TERMINAL_TYPES]
    if turn["status"] == "running":
        if ends:
            yield "I5 a running turn has a terminal event"
        return
    if not events:
        return  # pruned
    if len(ends) != 1 or ends[0] is not events[-1]:
        yield f"I5 {len(ends)} terminal events"
    elif ends[0]["type"] != f"turn.{turn['status']}" or ends[0]["seq"] != turn["last_seq"]:
        yield f"I5 {turn['status']}, last {turn['last_seq']}, but {ends[0]['type']} is told"


def _transcript(events: Sequence[Mapping[str, Any]], own: Sequence[Row]) -> Iterator[str]:
    told = [(m.role.value, m.content) for m in project(events).messages if m.is_shown]
    kept = [(m["role"], m["content"]) for m in own[1:] if m["content"] or "tool" in m["role"]]
    if sorted(told) != sorted(kept):
        yield f"I7 told {told}, kept {kept}"
    calls = [_call_id(m, "call") for m in own if m["role"] == "tool_call"]
    results = [_call_id(m, "result") for m in own if m["role"] == "tool_result"]
    if sorted(calls) != sorted(results):
        yield f"I8 calls {calls} and results {results} in the transcript"
    shown = _last_attempt(events)
    opened = [e["tool_call_id"] for e in shown if e["type"] == "tool_call.started"]
    closed = [e["tool_call_id"] for e in shown if e["type"] == "tool_call.completed"]
    if sorted(opened) != sorted(closed):
        yield f"I8 calls {opened} and results {closed} in the log"


def _last_attempt(events: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    starts = [n for n, event in enumerate(events) if event["type"] == "turn.restarted"]
    return events[starts[-1] :] if starts else events


def _call_id(message: Row, kind: str) -> str:
    return message["metadata"][kind]["id"]
