"""The parser must give the same operations however the bytes were split, and must not guess."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nats_bulk.errors import ProtocolError
from nats_bulk.wire import (
    Acknowledgements,
    ConsumedMessages,
    Delivery,
    Info,
    Operation,
    Parser,
    Ping,
    Pong,
    Refusal,
    StoredMessages,
)

INBOX = "_INBOX.0123456789abcdef."

subjects = st.from_regex(r"[A-Za-z0-9_]{1,12}(\.[A-Za-z0-9_]{1,12}){0,3}", fullmatch=True).map(str.encode)
bodies = st.one_of(st.binary(max_size=200), st.just(b"\r\nMSG a 1 2\r\nxx\r\n"), st.just(b"PING\r\n"))


@st.composite
def messages(draw: st.DrawFn) -> tuple[bytes, Operation]:
    subject, payload = draw(subjects), draw(bodies)
    reply = draw(st.one_of(st.just(b""), subjects.map(lambda subject: subject + b" ")))
    if draw(st.booleans()):
        header = b"NATS/1.0\r\nK: " + draw(st.binary(max_size=20)) + b"\r\n\r\n"
        line = b"HMSG %b 7 %b%d %d\r\n" % (subject, reply, len(header), len(header) + len(payload))
        return line + header + payload + b"\r\n", Delivery(subject, header, payload)
    return b"MSG %b 7 %b%d\r\n%b\r\n" % (subject, reply, len(payload), payload), Delivery(subject, b"", payload)


@st.composite
def acknowledgements(draw: st.DrawFn) -> tuple[bytes, Operation]:
    reply, sequence = draw(st.integers(0, 10**9)), draw(st.integers(1, 10**12))
    duplicate, spaced, domain = draw(st.booleans()), draw(st.booleans()), draw(st.sampled_from(["", "first", "last"]))
    space = b" " if spaced else b""
    body = b'{"stream":"TENANT_A",'
    body += b'%b"domain":"hub",' % space if domain == "first" else b""
    body += b'%b"seq":%d' % (space, sequence)
    body += b',%b"domain":"hub"' % space if domain == "last" else b""
    body += b',%b"duplicate":%btrue' % (space, space) if duplicate else b""
    body += b"}"
    line = b"MSG %b%d 1 %d\r\n%b\r\n" % (INBOX.encode(), reply, len(body), body)
    return line, Acknowledgements([reply], [sequence], [duplicate])


TRAILER = (
    b"Nats-Stream: A\r\nNats-Subject: a.b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: 2026-11-15T09:30:00Z\r\n"
    b"Nats-Num-Pending: 7\r\nNats-Last-Sequence: 0\r\n"
)


@st.composite
def stored(draw: st.DrawFn) -> tuple[bytes, Operation]:
    """A message of a stream, with headers of its publisher that may pretend to be the server's."""
    lines = [b"K: v\r\n", b"Nats-Sequence: 9\r\n", b"odd\r\n", TRAILER % 5, TRAILER % 5 + b"\r\n", b"\r\n"]
    published = b"NATS/1.0\r\n" + b"".join(draw(st.lists(st.sampled_from(lines), max_size=3)))
    reply = b"%bq%d-0" % (INBOX.encode(), draw(st.integers(1, 3)))
    sequence, payload = draw(st.integers(1, 10**12)), draw(bodies)
    header = published + TRAILER % sequence + b"\r\n"
    line = b"HMSG %b 1 %d %d\r\n" % (reply, len(header), len(header) + len(payload))
    raw = line + header + payload + b"\r\n"
    if b"\r\n\r\n" in published:
        return raw, Delivery(reply, header, payload)
    stamp = b"2026-11-15T09:30:00Z"
    return raw, StoredMessages(reply, (b"a.b",), (b"%d" % sequence,), (stamp,), (published,), [payload])


@st.composite
def consumed(draw: st.DrawFn) -> tuple[bytes, Operation]:
    """A message that a consumer handed out, with or without headers."""
    subject, payload, sid = draw(subjects), draw(bodies), draw(st.integers(1, 9999))
    reply = b"$JS.ACK.S.c.1.%d.1.1794813329930473663.9" % draw(st.integers(1, 10**12))
    header = draw(st.sampled_from([b"", b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n"]))
    sizes = b"%d %d" % (len(header), len(header) + len(payload)) if header else b"%d" % len(payload)
    line = b"%bMSG %b %d %b %b\r\n" % (b"H" if header else b"", subject, sid, reply, sizes)
    return line + header + payload + b"\r\n", ConsumedMessages([subject], [reply], [header], [payload])


controls = st.sampled_from(
    [
        (b"PING\r\n", Ping()),
        (b"PONG\r\n", Pong()),
        (b'INFO {"max_payload":1}\r\n', Info(b'{"max_payload":1}')),
        (b"-ERR 'Stale Connection'\r\n", Refusal("Stale Connection")),
    ]
)
conversations = st.lists(st.one_of(messages(), acknowledgements(), stored(), consumed(), controls), max_size=30)


def flat(operations: list[Operation]) -> list[Operation]:
    """Runs are as long as the reads allow; compare what is in them one by one."""
    result: list[Operation] = []
    for operation in operations:
        if isinstance(operation, Acknowledgements):
            result += [Acknowledgements([a], [b], [c]) for a, b, c in zip(*operation, strict=True)]
        elif isinstance(operation, StoredMessages):
            for a, b, c, d, e in zip(*operation[1:], strict=True):
                result.append(StoredMessages(operation.reply, (a,), (b,), (c,), (d,), [e]))
        elif isinstance(operation, ConsumedMessages):
            result += [ConsumedMessages([a], [b], [c], [d]) for a, b, c, d in zip(*operation, strict=True)]
        else:
            result.append(operation)
    return result


@given(conversations, st.data())
def test_any_split_of_the_byte_stream_parses_the_same(
    conversation: list[tuple[bytes, Operation]], data: st.DataObject
) -> None:
    stream = b"".join(raw for raw, _ in conversation)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    parser = Parser(INBOX)
    assert flat([operation for piece in pieces for operation in parser.feed(piece)]) == [
        operation for _, operation in conversation
    ]


@given(st.lists(acknowledgements(), min_size=1, max_size=20))
def test_without_an_inbox_the_same_acknowledgements_come_as_messages(runs: list[tuple[bytes, Operation]]) -> None:
    parsed = Parser().feed(b"".join(raw for raw, _ in runs))
    assert all(isinstance(operation, Delivery) for operation in parsed)
    assert len(parsed) == len(runs)


@given(st.lists(stored(), min_size=1, max_size=5))
def test_who_does_not_read_streams_gets_their_messages_one_by_one(messages: list[tuple[bytes, Operation]]) -> None:
    parsed = Parser(INBOX, reads_streams=False).feed(b"".join(raw for raw, _ in messages))
    assert all(isinstance(operation, Delivery) for operation in parsed)
    assert len(parsed) == len(messages)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_either_parse_or_fail_loudly(noise: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert isinstance(Parser(INBOX).feed(noise), list)


def test_a_message_that_only_looks_like_an_acknowledgement_is_taken_by_its_announced_size() -> None:
    hidden = b'{"stream":"A", "seq":1}\r\nMSG %b2 1 23\r\n{"stream":"A", "seq":9}' % INBOX.encode()
    raw = b"MSG %b1 1 %d\r\n%b\r\n" % (INBOX.encode(), len(hidden), hidden)
    assert Parser(INBOX).feed(raw) == [Delivery(f"{INBOX}1".encode(), b"", hidden)]


@pytest.mark.parametrize(
    "raw",
    [
        b"HELLO\r\n",
        b"MSG a 1\r\n",
        b"MSG a 1 -5\r\n",
        b"MSG a 1 r x 5\r\n",
        b"MSG a 1 five\r\n",
        b"HMSG a 1 5\r\n",
        b"HMSG a 1 9 5\r\n",
        b"MSG a 1 2\r\nabcd\r\n",
        b"PINGS\r\n",
        b"x" * (2 << 20),
    ],
)
def test_what_is_not_the_protocol_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        Parser().feed(raw)


def test_a_large_message_in_small_reads_is_joined_once() -> None:
    payload = bytes(8 << 20)
    raw = b"MSG a 1 %d\r\n%b\r\n" % (len(payload), payload)
    parser = Parser()
    parsed = [operation for start in range(0, len(raw), 1024) for operation in parser.feed(raw[start : start + 1024])]
    assert parsed == [Delivery(b"a", b"", payload)]
