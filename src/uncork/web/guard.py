"""Who may ask, and what browsers are told: checks and headers around every answer.

A page on the web can make a browser send requests to loopback, and a name of its own can be made to
point there. Such a request carries that name as its Host, so only our own names are answered.
"""

from __future__ import annotations

import ipaddress
from typing import Any

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-cache"),  # a store changes, and so does uncork: ask before using a copy
)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to that host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Refuses requests for other hosts, and adds the headers to every answer.

    `host` is what the server is bound to. Where that is not a loopback address, addresses in
    numbers are answered too: no name of anybody else's can stand for them.
    """

    def __init__(self, app: Any, host: str = "127.0.0.1") -> None:
        self.app = app
        self.names = {*LOOPBACK, host.lower()}
        self.numbers = not is_loopback(host)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
            await send(message)

        if not self.is_ours(scope):
            await _refuse(sending, 421, b"this server does not answer for that host")
        elif scope["method"] == "HEAD":  # what GET would be told, without the content
            await self.app({**scope, "method": "GET"}, receive, _without_content(sending))
        else:
            await self.app(scope, receive, sending)

    def is_ours(self, scope: Any) -> bool:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1:
            return False
        name = _without_port(hosts[0].decode("latin-1").lower())
        if name in self.names:
            return True
        if not self.numbers:
            return False
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True


def _without_content(send: Any) -> Any:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return sending


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


async def _refuse(send: Any, status: int, text: bytes) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text + b"\n"})
