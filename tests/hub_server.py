"""A server on this machine that speaks the hub's protocol, and remembers what it was asked."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

_LARGE = (".safetensors", ".bin", ".gguf", ".onnx", ".npz")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Request:
    method: str
    path: str
    range: str
    token: str
    sent: int = 0  # bytes of the answer's body

    @property
    def file(self) -> str:
        """The file of the repository that was asked for, "" for the API."""
        return self.path.split(f"/{COMMIT}/")[-1] if f"/{COMMIT}/" in self.path else ""


@dataclass
class Commit:
    """What somebody sent: into which repository, whether as a pull request, and the files."""

    repository: str
    pull_request: bool
    summary: str
    files: dict[str, bytes]


@dataclass
class Hub:
    """Repositories by name, and how the server is to misbehave."""

    repositories: dict[str, Path] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    gated: set[str] = field(default_factory=set)
    cut: dict[str, int] = field(default_factory=dict)  # file → bytes before the connection drops
    cuts_left: int = 0
    no_ranges: bool = False
    status: int = 200  # other than 200: the answer to everything
    tampered: set[str] = field(default_factory=set)
    extra_siblings: list[dict] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    commit: str = COMMIT
    url: str = ""

    def fetched(self) -> dict[str, int]:
        """Bytes sent of each file."""
        total: dict[str, int] = {}
        for request in self.requests:
            if request.method == "GET" and request.file:
                total[request.file] = total.get(request.file, 0) + request.sent
        return total


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_POST(self) -> None:
        """Commits: which way each file is to be sent (small ones with the commit), then all."""
        url = urlsplit(self.path)
        path, data = unquote(url.path), self.rfile.read(int(self.headers["Content-Length"]))
        token = self.headers.get("authorization", "")
        self.request_ = Request("POST", path, "", token)
        self.hub.requests.append(self.request_)
        name, _, rest = path.removeprefix("/api/models/").partition("/preupload/")
        headers = {"Content-Type": "application/json"}
        if not token.startswith("Bearer "):
            return self._plain(401, {"X-Error-Message": "who are you?"}, b"{}", True)
        if path == "/api/validate-yaml":  # the client has a card's metadata looked at first
            return self._plain(200, headers, b'{"errors": [], "warnings": []}', True)
        if rest:
            asked = json.loads(data)["files"]
            modes = [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
                for one in asked
            ]
            return self._plain(200, headers, json.dumps({"files": modes}).encode(), True)
        name, _, _ = path.removeprefix("/api/models/").partition("/commit/")
        lines = [json.loads(line) for line in data.splitlines()]
        files = {
            line["value"]["path"]: base64.b64decode(line["value"]["content"])
            for line in lines
            if line["key"] == "file"
        }
        is_request = parse_qs(url.query).get("create_pr") == ["1"]
        self.hub.commits.append(Commit(name, is_request, lines[0]["value"]["summary"], files))
        address = f"{self.hub.url}/{name}"
        answer = {"commitUrl": f"{address}/commit/{COMMIT}", "commitOid": COMMIT,
                  "pullRequestUrl": f"{address}/discussions/1"}  # fmt: skip
        self._plain(200, headers, json.dumps(answer).encode(), True)

    def _answer(self, body: bool) -> None:
        hub = self.hub
        path = unquote(urlsplit(self.path).path)
        self.request_ = Request(
            self.command, path, self.headers.get("Range", ""), self.headers.get("authorization", "")
        )
        hub.requests.append(self.request_)
        if hub.status != 200:
            return self._plain(hub.status, {}, b"no", body)
        if path.startswith("/api/models/") and "/tree/" in path:
            name, _, revision = path.removeprefix("/api/models/").partition("/tree/")
            return self._tree(name, revision, body)
        if path.startswith("/api/models/"):
            name, _, revision = path.removeprefix("/api/models/").partition("/revision/")
            return self._info(name, revision or "main", body)
        if path.startswith("/cdn/"):
            return self._file(path.removeprefix("/cdn/"), body, linked=True)
        name, _, rest = path.removeprefix("/").partition("/resolve/")
        revision, _, file = rest.partition("/")
        if (error := self._refused(name, revision)) is not None:
            return self._plain(error[0], error[1], b"", body)
        return self._file(f"{name}/{COMMIT}/{file}", body, linked=False)

    def _refused(self, name: str, revision: str) -> tuple[int, dict[str, str]] | None:
        if name not in self.hub.repositories:
            return 401, {"X-Error-Code": "RepoNotFound"}
        if name in self.hub.gated and "Bearer" not in self.headers.get("authorization", ""):
            return 401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "restricted"}
        if revision not in ("main", "v1", COMMIT):
            return 404, {"X-Error-Code": "RevisionNotFound"}
        return None

    def _info(self, name: str, revision: str, body: bool) -> None:
        # The hub shows what a gated repository holds; only its files are closed.
        error = self._refused(name, revision)
        if error is not None and error[1]["X-Error-Code"] != "GatedRepo":
            return self._plain(error[0], error[1], b"", body)
        siblings: list[dict] = []
        for file, data in self._files(name):
            entry: dict = {"rfilename": file, "size": len(data)}
            if file.endswith(_LARGE):
                digest = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 134}
            siblings.append(entry)
        info = {"id": name, "modelId": name, "sha": self.hub.commit, "private": False,
                "siblings": siblings + self.hub.extra_siblings}  # fmt: skip
        self._plain(200, {"Content-Type": "application/json"}, json.dumps(info).encode(), body)

    def _tree(self, name: str, revision: str, body: bool) -> None:
        if (error := self._refused(name, revision)) is not None:
            return self._plain(error[0], error[1], b"", body)
        listed: list[dict] = []
        for file, data in self._files(name):
            entry: dict = {"type": "file", "path": file, "size": len(data)}
            entry["oid"] = hashlib.sha1(data).hexdigest()
            if file.endswith(_LARGE):
                digest = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"oid": digest, "size": len(data), "pointerSize": 134}
            listed.append(entry)
        self._plain(200, {"Content-Type": "application/json"}, json.dumps(listed).encode(), body)

    def _files(self, name: str) -> Iterator[tuple[str, bytes]]:
        folder = self.hub.repositories[name]
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                yield path.relative_to(folder).as_posix(), path.read_bytes()

    def _file(self, where: str, body: bool, linked: bool) -> None:
        name, _, file = where.partition(f"/{COMMIT}/")
        path = self.hub.repositories[name] / file
        if not path.is_file():
            return self._plain(404, {"X-Error-Code": "EntryNotFound"}, b"", body)
        data = path.read_bytes()
        headers = {
            "X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(data).hexdigest()}"',
            "Accept-Ranges": "bytes",
        }  # fmt: skip
        if path.suffix in (".safetensors", ".bin") and not linked:  # large files live elsewhere
            headers |= {"X-Linked-Size": str(len(data)), "X-Linked-Etag": headers["ETag"],
                        "Location": f"{self.hub.url}/cdn/{where}"}  # fmt: skip
            return self._plain(302, headers, b"", body)
        if file in self.hub.tampered:
            data = data[:-1] + bytes([data[-1] ^ 1])
        status = 200
        wanted = self.headers.get("Range", "")
        if wanted.startswith("bytes=") and not self.hub.no_ranges:
            begin, _, end = wanted.removeprefix("bytes=").partition("-")
            last = min(int(end), len(data) - 1) if end else len(data) - 1
            headers["Content-Range"] = f"bytes {begin}-{last}/{len(data)}"
            data, status = data[int(begin) : last + 1], 206
        cut = self.hub.cut.get(file)
        if body and cut is not None and self.hub.cuts_left > 0 and len(data) > cut:
            self.hub.cuts_left -= 1
            self.close_connection = True
            return self._plain(status, headers, data, body, only=cut)
        self._plain(status, headers, data, body)

    def _plain(
        self, status: int, headers: dict[str, str], data: bytes, body: bool, only: int | None = None
    ) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.request_.sent = len(data[:only])
            self.wfile.write(data[:only])


@contextmanager
def serving() -> Iterator[Hub]:
    """The server, for as long as the context lasts."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
