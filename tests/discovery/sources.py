"""Sources of discovery as a file has them, and a small DNS server."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import dns.flags
import dns.message
import dns.rcode
import dns.rrset

from specwatch.config.discovery import DiscoverySource
from specwatch.config.loading import parse


def source_of(written: str) -> DiscoverySource:
    """The source in a line of YAML, such as ``file_sd: {files: [a.json]}``."""
    return parse(f"discovery: [{{{written}}}]", "f", environ={}, hostname="h").discovery[0]


@contextmanager
def dns_server(records: Mapping[str, tuple[str, list[str]] | None]) -> Iterator[str]:
    """A DNS server with these records, ``{"a.example.": ("A", ["10.0.0.1"])}``; its address.

    A name without records has None; one with the type ``SERVFAIL`` cannot be resolved. ``records``
    may change meanwhile.
    """

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            data, sock = self.request
            query = dns.message.from_wire(data)
            answer = dns.message.make_response(query)
            question = query.question[0]
            name = question.name.to_text()
            if name not in records:
                answer.set_rcode(dns.rcode.NXDOMAIN)
            elif (entry := records[name]) is not None:
                kind, values = entry
                if kind == "SERVFAIL":
                    answer.set_rcode(dns.rcode.SERVFAIL)
                elif dns.rdatatype.to_text(question.rdtype) == kind:
                    answer.answer.append(dns.rrset.from_text(question.name, 5, "IN", kind, *values))
            sock.sendto(answer.to_wire(), self.client_address)

    with socketserver.UDPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
