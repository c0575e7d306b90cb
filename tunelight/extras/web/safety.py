"""Who may talk to the live page: a token, the address that was asked for, and where a request comes from."""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import PlainTextResponse, RedirectResponse, Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BODY: Final = 1 << 16
"""Bytes of a request's body."""
# plotly writes functions of its own where it draws parallel coordinates: that is what unsafe-eval lets it.
POLICY: Final = (
    "default-src 'none'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src 'self' data: blob:; font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_DAY: Final = 86400


class Guard:
    """Lets only requests through that carry the token, ask for this machine, and come from its own pages.

    A browser gets the token with the address that is printed, and keeps it as a cookie; a program sends it as
    ``Authorization: Bearer TOKEN``. Runs on: server, around the application.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: frozenset[str] = frozenset()) -> None:
        self._app, self._token = app, token
        self.cookie = f"tunelight_{hashlib.sha256(token.encode()).hexdigest()[:12]}"
        """The cookie's name: browsers keep cookies by host alone, and several servers may be behind one."""
        self._hosts = hosts | {"localhost", socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return
        headers, query = Headers(scope=scope), QueryParams(scope["query_string"])
        answer = self._refusal(scope, headers, query)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    added[name] = value
                if "cache-control" not in added:
                    added["cache-control"] = "no-store"
            await send(message)

        if answer is None and "token" in query:
            answer = self._welcome(scope, query)
        await (self._app if answer is None else answer)(scope, receive, guarded)

    def _refusal(self, scope: Scope, headers: Headers, query: QueryParams) -> Response | None:
        """Return why a request is refused; None where it is not."""
        host = headers.get("host", "")
        if not self._is_ours(host):
            return _no(421, f"This server does not answer for the host {host[:100]!r}.")
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return _no(405, "Only GET and POST are answered.")
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        own = f"{self.cookie}="
        kept = [
            part.strip().removeprefix(own)
            for part in headers.get("cookie", "").split(";")
            if part.strip().startswith(own)
        ]
        given = bearer or query.get("token", "") or next(iter(kept), "")
        if not secrets.compare_digest(given.encode(), self._token.encode()):
            return _no(401, "This page needs the whole address that tunelight printed, with its token.")
        if scope["method"] == "POST":
            return self._refused_action(headers, host, trusted=bool(bearer))
        return None

    def _refused_action(self, headers: Headers, host: str, *, trusted: bool) -> Response | None:
        origin = headers.get("origin")
        if origin is None and not trusted:
            return _no(403, "An action must come from a page of this server: its Origin is missing.")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return _no(403, f"An action must come from a page of this server, and not of {origin[:100]}.")
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return _no(403, "An action must come from a page of this server.")
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return _no(415, "An action must be application/json.")
        length = headers.get("content-length", "")
        if not length.isdecimal():
            return _no(411, "An action must say its length.")
        if int(length) > MOST_BODY:
            return _no(413, f"An action may have {MOST_BODY} bytes, and not {length[:20]}.")
        return None

    def _is_ours(self, host: str) -> bool:
        """Tell whether a Host header names this machine; a name of somebody else's may point here by DNS."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _welcome(self, scope: Scope, query: QueryParams) -> Response:
        """Keep the token as a cookie, and go to the same page without it."""
        rest = urlencode([(key, value) for key, value in query.multi_items() if key != "token"])
        path = "/" + quote(scope["path"].lstrip("/"))  # not //elsewhere
        answer = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
        answer.set_cookie(self.cookie, self._token, 30 * _DAY, httponly=True, samesite="lax")
        return answer


def _no(status: int, why: str) -> Response:
    return PlainTextResponse(f"{why}\n", status)
