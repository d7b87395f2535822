"""Requests with two contradicting lengths, through the proxy: none becomes two.

``python -m tests.robustness.smuggling --count 5000 --seed 1`` sends requests with lengths, codings,
line ends and chunks that servers read differently, with another request hidden in the body, to an
upstream that notes what arrives. A defect is a hidden request that arrives as one, any head or body
upstream that two servers could read differently, and a traceback in the log.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import random
import re
import socket
import sys
import time
from collections import Counter
from typing import NamedTuple

from tests.hostile import HostileServer, Visit
from tests.robustness.campaign import progress, show_defects
from tests.tap.proxied import LEARNED_FROM, proxy

SILENCE = 0.25
"""Seconds without an answer after which a case is over: the proxy waits for more of the body."""
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: h\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
PATHS = (b"/x", b"/v1/chat/completions", b"/metrics")
METHODS = (b"POST", b"POST", b"GET", b"HEAD", b"PUT", b"OPTIONS")
CODINGS = (
    b"chunked",
    b"Chunked",
    b" chunked",
    b"\tchunked",
    b"\x0bchunked",
    b"chunked\x00",
    b"chunked,",
    b"chunked, chunked",
    b"identity",
    b"identity, chunked",
    b"chunked, identity",
    b"gzip, chunked",
    b"xchunked",
    b'"chunked"',
    b"chunked;q=1",
    b"chun\xe7ked",
    b"chunked\r\n chunked",
    b"",
    b",",
    b"\r\n chunked",
    b"chunked\r",
)
CODING_NAMES = (
    b"Transfer-Encoding",
    b"transfer-encoding",
    b"Transfer-Encoding ",
    b"Transfer-Encoding\t",
    b" Transfer-Encoding",
    b"X: y\nTransfer-Encoding",
    b"X: y\rTransfer-Encoding",
    b"X: y\r\n Transfer-Encoding",
    b"\x00Transfer-Encoding",
    b"Transfer-Encoding\x00",
)
LENGTH_NAMES = (
    b"Content-Length",
    b"content-length",
    b"Content-Length ",
    b"Content-Length\t",
    b" Content-Length",
    b"X: y\nContent-Length",
    b"X: y\rContent-Length",
    b"Content-Length\x00",
)
LENGTHS = (
    b"%d",
    b"+%d",
    b"-%d",
    b"0%d",
    b"%d ",
    b"%d, %d",
    b"%d,4",
    b"4, %d",
    b"0x%x",
    b"%d\x00",
    b"%d.0",
    b"%de0",
    b"\xd9\xa4",
    b"",
    b"%d\r\n 4",
    b"1_%d",
    b"'%d'",
    b"99999999999999999999%d",
)
SIZES = (
    b"%x",
    b"%X",
    b"0%x",
    b"0x%x",
    b"+%x",
    b"-%x",
    b"%x ",
    b" %x",
    b"%x;a=b",
    b'%x;a="\r\n"',
    b"%x;\n",
    b"%x\x00",
    b"1000000000000000%x",
    b"%x\xa0",
    b"%x_",
)
ENDS = (b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"\r\r\n", b"")
VERSIONS = (b"HTTP/1.1",) * 6 + (b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"http/1.1", b"HTTP/1.1 ")
_FIELD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t\x20-\x7e\x80-\xff]*")


def chunked(rng: random.Random, data: bytes, *, odd: bool) -> bytes:
    """A chunked body of ``data``, in one chunk."""
    size = rng.choice(SIZES) if odd else b"%x"
    end, after = (rng.choice(ENDS), rng.choice(ENDS)) if odd else (b"\r\n", b"\r\n")
    trailer = b"Content-Length: 4\r\n" if odd and rng.random() < 0.2 else b""
    return size % len(data) + end + data + after + b"0\r\n" + trailer + b"\r\n"


def filled(form: bytes, length: int) -> bytes:
    """A spelling of a length."""
    return form.replace(b"%d", b"%d" % length).replace(b"%x", b"%x" % length)


def request(rng: random.Random, number: int) -> bytes:
    """One request that, read by the standard (RFC 9112, section 6.3), is one or is refused."""
    kind = rng.choice(("coding is odd", "length is odd", "two lengths", "chunk is odd"))
    end = rng.choice((b"\r\n", b"\r\n", b"\r\n", b"\n"))
    fields = [b"Host: h"]
    if kind == "coding is odd":
        # By its length the body has the hidden request; by its coding it ends before.
        body = b"0\r\n\r\n" + HIDDEN
        fields.append(rng.choice(CODING_NAMES) + b":" + rng.choice(CODINGS))
        fields.append(b"Content-Length: %d" % len(body))
    elif kind == "length is odd":
        # By its coding the body has the hidden request; by its length it ends before.
        body = chunked(rng, b"x" * 7 + b"\r\n" + HIDDEN, odd=False)
        short = body.index(HIDDEN)
        fields.append(b"Transfer-Encoding: chunked")
        fields.append(rng.choice(LENGTH_NAMES) + b": " + filled(rng.choice(LENGTHS), short))
    elif kind == "two lengths":
        body = b"x" * 4 + HIDDEN
        fields.append(b"Content-Length: %d" % len(body))
        fields.append(rng.choice(LENGTH_NAMES) + b": " + filled(rng.choice(LENGTHS), 4))
    else:
        body = chunked(rng, b"x" * 7 + b"\r\n" + HIDDEN, odd=True)
        fields.append(b"Transfer-Encoding: chunked")
    if rng.random() < 0.5:
        rng.shuffle(fields)
    if rng.random() < 0.1:
        fields.append(rng.choice((b"Connection: Transfer-Encoding", b"Connection: Content-Length")))
    line = b"%s %s?%d %s" % (rng.choice(METHODS), rng.choice(PATHS), number, rng.choice(VERSIONS))
    return end.join([line, *fields, b"", b""]) + body


class Notes:
    """An upstream that reads by the letter of the standard, and notes what does not follow it."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.faults: list[str] = []

    def answer(self, visit: Visit) -> bool:
        """Read one request to its end and answer it."""
        head, _, rest = visit.head.encode("latin-1").partition(b"\r\n\r\n")
        while True:
            line, *fields = head.split(b"\r\n")
            lengths = [
                field[16:] for field in fields if field.lower().startswith(b"content-length: ")
            ]
            codings = [
                field[19:] for field in fields if field.lower().startswith(b"transfer-encoding: ")
            ]
            self.lines.append(line)
            sound = (
                all(_FIELD.fullmatch(field) for field in fields)
                and len(lengths) + len(codings) <= 1
                and all(re.fullmatch(rb"[0-9]{1,12}", length) for length in lengths)
                and codings in ([], [b"chunked"])
            )
            if not sound:
                self.faults.append(f"ambiguous upstream: {head!r}")
                return False
            after = _after_body(visit, rest, int(lengths[0]) if lengths else None, bool(codings))
            if after is None:
                self.faults.append(f"a body that is not chunked as the standard says: {head!r}")
                return False
            visit.answer(b"{}" if not line.startswith(b"HEAD") else b"", length=2)
            if not after:
                return True
            head, _, rest = after.partition(b"\r\n\r\n")


def _after_body(visit: Visit, rest: bytes, length: int | None, is_chunked: bool) -> bytes | None:
    """What came after the body, mostly b""; None for malformed chunks."""

    def more() -> bytes:
        data = visit.receive()
        if not data:
            raise ConnectionError("the proxy left")
        return data

    if not is_chunked:
        while len(rest) < (length or 0):
            rest += more()
        return rest[length or 0 :]
    while True:
        while b"\r\n" not in rest:
            rest += more()
        size, _, rest = rest.partition(b"\r\n")
        if not re.fullmatch(rb"[0-9A-Fa-f]{1,8}", size):
            return None
        count = int(size, 16) + 2
        while len(rest) < count:
            rest += more()
        if rest[count - 2 : count] != b"\r\n":
            return None
        rest = rest[count:]
        if count == 2:
            return rest


class Traces(logging.Handler):
    """Counts the tracebacks in the log, which no client should be able to fill."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Note what is there."""
        if record.exc_info:
            self.found.append(f"a traceback in the log: {record.exc_info[1]!r}")


class Outcome(NamedTuple):
    """How the proxy answered, by status ("" for silence), and what was wrong, with the request."""

    cases: int
    answers: Counter[str]
    arrived: int
    defects: list[str]
    seconds: float


def _sent(port: int, data: bytes, silence: float) -> bytes:
    """The beginning of everything that is answered."""
    seen = b""
    with (
        contextlib.suppress(TimeoutError, ConnectionError),
        socket.create_connection(("127.0.0.1", port), timeout=silence) as client,
    ):
        client.sendall(data)
        while part := client.recv(65536):
            seen += part
    return seen


def run(count: int, seed: int, silence: float = SILENCE) -> Outcome:
    """Send so many requests, each on its own connection."""
    rng = random.Random(seed)
    answers: Counter[str] = Counter()
    defects: list[str] = []
    notes, traces, arrived, begun = Notes(), Traces(), 0, time.monotonic()

    def behave(visit: Visit) -> bool:
        if visit.path in LEARNED_FROM and not visit.path.startswith("/metrics?"):
            visit.answer(b"", "404 Not Found")
            return True
        return notes.answer(visit)

    logging.getLogger().addHandler(traces)
    with (
        contextlib.closing(traces),
        HostileServer(behave) as upstream,
        proxy(upstream.url) as server,
    ):
        for number in range(count):
            data = request(rng, number)
            seen = _sent(server.port, data + LAST, silence)
            answers[seen[9:12].decode("latin-1")] += 1
            lines, faults = notes.lines[:], notes.faults[:]
            del notes.lines[: len(lines)], notes.faults[: len(faults)]
            faults += traces.found
            traces.found.clear()
            own = [line for line in lines if b" /last" not in line]
            arrived += len(own)
            if any(b"/hidden" in line for line in lines) or len(own) > 1:
                faults.append(f"became {len(own)} requests: {own!r}")
            defects += [f"seed {seed}, case {number}: {fault}; sent {data!r}" for fault in faults]
            progress(f"{number + 1} of {count}")
    return Outcome(count, answers, arrived, defects, time.monotonic() - begun)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    outcome = run(asked.count, asked.seed)
    if asked.json:
        print(json.dumps(outcome._asdict()))
        sys.exit(bool(outcome.defects))
    answers = ", ".join(f"{status or 'none'}: {n}" for status, n in outcome.answers.most_common())
    print(
        f"{outcome.cases} requests in {outcome.seconds:.0f} s; answers {answers};"
        f" {outcome.arrived} reached the upstream; {len(outcome.defects)} defects"
    )
    show_defects(outcome.defects)
