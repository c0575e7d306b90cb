"""A server of the live page for tests: the command `tunelight serve`, and requests as programs send them."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.kit.programs import held


@dataclass(frozen=True)
class Answer:
    """What a request got."""

    status: int
    text: str
    headers: Mapping[str, str]


@dataclass
class Served:
    """A running server."""

    address: str
    process: subprocess.Popen[str]

    @property
    def port(self) -> int:
        return int(urlsplit(self.address).port or 0)

    @property
    def token(self) -> str:
        return parse_qs(urlsplit(self.address).query)["token"][0]

    def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        body: bytes | None = None,
        token: str | None = "",
        limit_s: float = 20,
        **headers: str,
    ) -> Answer:
        """Send a request with the token as a program sends it; None sends none, and text another one."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token or self.token}"
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=limit_s)) as connection:
            connection.request(method, path, body=body, headers=sent)
            found = connection.getresponse()
            return Answer(
                found.status, found.read().decode(), {key.lower(): value for key, value in found.getheaders()}
            )

    def act(self, sweep: str, do: str, trial: int | None = None, **arguments: Any) -> Answer:
        """Send a command as a page does."""
        body = json.dumps({"sweep": sweep, "do": do, "trial": trial, "arguments": arguments}).encode()
        return self.ask("/api/act", method="POST", body=body, Content_Type="application/json")

    def messages(self, path: str, count: int = 1) -> list[dict[str, Any]]:
        """Return the first messages of a stream of events."""
        found: list[dict[str, Any]] = []
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self.token}"})
            stream = connection.getresponse()
            assert stream.status == http.client.OK, stream.read()
            while len(found) < count:
                line = stream.readline()
                assert line, "the stream ended"
                if line.startswith(b"data: "):
                    found.append(json.loads(line[6:]))
        return found


@contextlib.contextmanager
def serving(
    storage: Path,
    *options: str,
    program: Sequence[str] = (sys.executable, "-m", "tunelight"),
) -> Iterator[Served]:
    """Run `tunelight serve` for a folder, on a port that no other test asks for."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with held(*program, "serve", storage, "--port", str(port), *options, env={"PYTHONUNBUFFERED": "1"}) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "http://" in line, line + process.stdout.read()
        yield Served(line.split()[-1], process)
        process.send_signal(signal.SIGINT)
        process.wait(10)
