"""Addresses on the Hugging Face hub: hf:owner/name@revision/file, and web pages of models."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from uncork.core.errors import UncorkError

_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_ID = re.compile(
    r"(?P<repository>[^@/]+(?:/[^@/]+)?)"
    r"(?:@(?P<revision>refs/(?:pr|convert)/[^/]+|[^/]+))?"  # the one revision with slashes in it
    r"(?:/(?P<file>.+))?"
)
_VIEWS = ("tree", "blob", "resolve", "raw", "commit", "commits")
_NOT_MODELS = ("datasets", "spaces", "papers", "docs", "buckets", "kernels", "collections")


@dataclass(frozen=True)
class Address:
    """A model repository, perhaps at a revision (None: main), perhaps one file of it."""

    repository: str
    revision: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        if self.file and not revision and "/" not in self.repository:
            revision = "@main"  # gpt2 has no owner, and hf:gpt2/file would read as one
        return f"hf:{self.repository}{revision}" + (f"/{self.file}" if self.file else "")


def is_address(source: str) -> bool:
    """Whether a source means the hub rather than a path."""
    if source.startswith("hf:"):
        return True
    try:
        host = urlsplit(source if "://" in source else f"//{source}").netloc.lower()
    except ValueError:  # brackets, in which an address has IPv6 alone and a path what it likes
        return False
    if "://" in source:
        return source.startswith(("http://", "https://")) and host in (*_HOSTS, _endpoint())
    return host in _HOSTS and "/" in source


def parse_address(source: str) -> Address:
    """The repository, revision and file that a text names."""
    if source.startswith("hf:"):
        address = _from_id(source.removeprefix("hf:").removeprefix("//"))
    else:
        url = urlsplit(source if "://" in source else f"https://{source}")
        address = _from_page([part for part in url.path.split("/") if part])
    if address is None or not _REPO.fullmatch(address.repository) or not _harmless(address):
        raise UncorkError(
            f"{source!r} is not a model on the hub: write hf:owner/name, hf:owner/name@revision, "
            "hf:owner/name/file, or the address of the model's page"
        )
    return address


def _harmless(address: Address) -> bool:
    texts = (address.repository, address.revision or "", address.file or "")
    return all(
        ".." not in text.split("/") and text.isprintable() and "\\" not in text for text in texts
    )


def _from_id(text: str) -> Address | None:
    found = _ID.fullmatch(text)
    if not found:
        return None
    revision = None if found["revision"] == "main" else found["revision"]
    return Address(found["repository"], revision, found["file"])


def _from_page(parts: list[str]) -> Address | None:
    if parts and parts[0] == "models":
        parts = parts[1:]
    if not parts or parts[0] in _NOT_MODELS:
        return None
    size = 1 if len(parts) == 1 or parts[1] in _VIEWS else 2  # gpt2 has no owner
    repository, rest = "/".join(map(unquote, parts[:size])), parts[size:]
    if not rest:
        return Address(repository)
    if rest[0] not in _VIEWS or len(rest) < 2:
        return Address(repository) if rest[0] in (*_VIEWS, "discussions") else None
    file = "/".join(map(unquote, rest[2:])) if rest[0] in ("blob", "resolve", "raw") else ""
    revision = unquote(rest[1])
    return Address(repository, None if revision == "main" else revision, file or None)


def _endpoint() -> str:
    """The host of the hub that HF_ENDPOINT names."""
    return urlsplit(os.environ.get("HF_ENDPOINT", "")).netloc.lower() or _HOSTS[0]
