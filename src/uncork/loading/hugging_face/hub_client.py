"""One repository of the Hugging Face hub, through the real client: listings, files, errors."""

from __future__ import annotations

import functools
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.hugging_face.hub_address import Address
from uncork.loading.hugging_face.remote import (
    BrokenOffError,
    RangeIgnoredError,
    RemoteFile,
    check_digest,
    download,
    forget,
    register,
    remote,
    write_atomically,
)

_MOST_FILES = 100_000
_LISTED = 12


@dataclass(frozen=True)
class Listing:
    """The files of a repository at one commit: name → (size, SHA-256 or "" where unknown)."""

    commit: str
    files: Mapping[str, tuple[int, str]]


class Hub:
    """One repository through the real client."""

    def __init__(self, address: Address) -> None:
        try:
            import huggingface_hub
            from huggingface_hub import constants, errors
        except ImportError as error:
            raise UncorkError(
                f"{address} is on the Hugging Face hub: pip install 'uncork[hf]' to fetch it"
            ) from error
        self.address = address
        self._client, self._constants, self._errors = huggingface_hub, constants, errors
        self._network_error: Exception | None = None
        self._base = (
            Path(constants.HF_ASSETS_CACHE) / "uncork" / address.repository.replace("/", "--")
        )

    def listing(self) -> Listing | None:
        """What the repository holds now; without a network, what it held last time; else None."""
        revision = self.address.revision or self._constants.DEFAULT_REVISION
        refs = self._base / "refs.json"
        try:
            info = self._client.HfApi().model_info(
                self.address.repository, revision=revision, files_metadata=True, timeout=30
            )
        except Exception as error:
            if not self._is_network(error):
                raise
            try:
                commit = str(json.loads(refs.read_bytes())[revision])
                saved = json.loads((self._base / _safe(commit) / ".listing.json").read_bytes())
                files = {str(name): (int(n), str(digest)) for name, (n, digest) in saved.items()}
                return Listing(commit, files)
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                self._network_error = error
                return None
        files = {}
        for sibling in (info.siblings or [])[:_MOST_FILES]:
            digest = getattr(sibling.lfs, "sha256", "") if sibling.lfs else ""
            if _harmless(name := str(sibling.rfilename)):
                files[name] = (int(sibling.size or 0), str(digest or ""))
        listing = Listing(_safe(str(info.sha)), files)
        try:
            known = dict(json.loads(refs.read_bytes()))
        except (OSError, ValueError, TypeError, RecursionError):
            known = {}
        write_atomically(refs, json.dumps({**known, revision: listing.commit}).encode())
        write_atomically(self.folder(listing) / ".listing.json", json.dumps(files).encode())
        return listing

    def folder(self, listing: Listing) -> Path:
        return self._base / listing.commit

    def snapshot(self) -> Path:
        """The copy of the repository in the hub's cache that another program made."""
        try:
            found = self._client.snapshot_download(
                self.address.repository, revision=self.address.revision, local_files_only=True
            )
        except Exception:
            assert self._network_error is not None
            raise self._network_error from None
        path = Path(found)
        return path / self.address.file if self.address.file else path

    def small(self, listing: Listing, folder: Path, name: str) -> Path:
        """A small file, through the hub's cache, copied beside the weights."""
        target = folder / name
        if not target.exists():
            with _silent():
                found = self._client.hf_hub_download(
                    self.address.repository, name, revision=listing.commit
                )
            target.parent.mkdir(parents=True, exist_ok=True)
            scratch = target.with_name(f"{target.name}.{os.getpid()}.new")
            shutil.copyfile(found, scratch)
            os.replace(scratch, target)
        return target

    def parts(self, listing: Listing, folder: Path, name: str) -> Path:
        """A safetensors file of which only what is read will be fetched."""
        target = folder / name
        if self._linked(listing, name, target):
            return target
        if not target.exists():
            write_atomically(target, b"")
        file = RemoteFile(
            f"{self.address} {name}" if self.address.file is None else str(self.address),
            target,
            listing.files[name][0],
            folder / ".parts" / name,
            functools.partial(self._stream, listing, name),
            functools.partial(self.whole, listing, folder / ".whole", name),
        )
        register(file)
        return target

    def whole(self, listing: Listing, folder: Path, name: str) -> Path:
        """A file with all its bytes."""
        target = folder / name
        if self._linked(listing, name, target) or target.exists():
            return target
        size, digest = listing.files[name]
        stream = functools.partial(self._stream, listing, name)
        try:
            download(stream, 0, size, target, f"{self.address} {name}")
        except RangeIgnoredError:
            # No ranges, so nothing to continue: the client's own way is as good as any.
            with _silent():
                found = self._client.hf_hub_download(
                    self.address.repository, name, revision=listing.commit
                )
            _link(Path(found), target)
        else:
            if digest:
                check_digest(target, digest, f"{self.address} {name}")
        return target

    def single(self, listing: Listing, folder: Path, name: str) -> Path:
        """One file by name, with the file an ONNX model may keep its weights in."""
        if name not in listing.files:
            some = ", ".join(printable(one) for one in sorted(listing.files)[:_LISTED])
            raise UncorkError(
                f"{self.address}: the repository has no file {printable(name)}; it has {some}"
            )
        if name.endswith(".safetensors"):
            target = self.parts(listing, folder, name)
            file = remote(target)
            if file is not None:
                file.safetensors_header()  # a file is known by its first bytes
            return target
        if name.lower().endswith(".onnx"):
            for other in listing.files:
                if other.startswith(name) and other != name:  # model.onnx_data, model.onnx.data
                    self.whole(listing, folder, other)
        return self.whole(listing, folder, name)

    def _linked(self, listing: Listing, name: str, target: Path) -> bool:
        """Whether the file is in the hub's cache already, and then puts it in its place."""
        found = self._client.try_to_load_from_cache(
            self.address.repository, name, revision=listing.commit
        )
        if not isinstance(found, str) or not os.path.exists(found):
            return False
        if not (target.exists() and os.path.samefile(found, target)):
            _link(Path(found), target)
        forget(target)
        return True

    @contextmanager
    def _stream(
        self, listing: Listing, name: str, begin: int, end: int
    ) -> Iterator[Iterator[bytes]]:
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

        url = self._client.hf_hub_url(
            self.address.repository, name, revision=listing.commit,
            endpoint=self._constants.ENDPOINT,
        )  # fmt: skip
        wanted = {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
        headers = {**build_hf_headers(), **wanted}
        with self.explained(broken=True), self._client.get_session().stream(
            "GET", url, headers=headers, timeout=self._constants.HF_HUB_DOWNLOAD_TIMEOUT,
            follow_redirects=True,
        ) as response:  # fmt: skip
            hf_raise_for_status(response)
            if response.status_code != 206 and (begin, end) != (0, listing.files[name][0]):
                raise RangeIgnoredError
            yield response.iter_bytes()

    @contextmanager
    def explained(self, broken: bool = False) -> Iterator[None]:
        """The client's errors in one line; with `broken`, lost connections as such."""
        try:
            yield
        except (UncorkError, RangeIgnoredError, BrokenOffError):
            raise
        except Exception as error:
            if broken and self._is_network(error) and not self._is_offline(error):
                raise BrokenOffError(str(error)) from error
            raise self._explain(error) from error

    def _is_offline(self, error: Exception) -> bool:
        return isinstance(error, self._errors.OfflineModeIsEnabled)

    def _is_network(self, error: Exception) -> bool:
        """Whether nobody answered, as against an answer that says no."""
        errors = self._errors
        if isinstance(error, errors.HfHubHTTPError):
            return error.response is not None and error.response.status_code >= 500
        return isinstance(
            error, ConnectionError | TimeoutError | errors.LocalEntryNotFoundError
        ) or (type(error).__module__.split(".")[0] in ("httpx", "httpx2", "httpcore", "requests"))

    def _explain(self, error: Exception) -> UncorkError:
        errors, address = self._errors, self.address
        page = urljoin(self._constants.ENDPOINT + "/", address.repository)
        if isinstance(error, errors.GatedRepoError):
            text = f"is gated: ask for access at {page}, then `hf auth login` or set HF_TOKEN"
        elif isinstance(error, errors.RevisionNotFoundError):
            text = f"has no revision {address.revision!r}: see {page}"
        elif isinstance(error, errors.RepositoryNotFoundError):
            text = (
                f"is not on the hub ({page}), or private: check the name, or log in with "
                "`hf auth login` or HF_TOKEN"
            )
        elif isinstance(error, errors.EntryNotFoundError) and not self._is_network(error):
            text = "lacks a file it announces: try again, it may be changing just now"
        elif isinstance(error, errors.HFValidationError):
            text = f"is not a model on the hub: {_line(error)}"
        elif self._is_offline(error):
            text = "is not in the cache, and HF_HUB_OFFLINE forbids to fetch it: unset it"
        elif self._is_network(error):
            text = (
                f"cannot be fetched: no connection to {self._constants.ENDPOINT} ({_line(error)}); "
                "check the network, or give a path on disk"
            )
        elif isinstance(error, errors.HfHubHTTPError) and error.response is not None:
            status = error.response.status_code
            hint = {401: ": is HF_TOKEN right?", 403: ": is your token allowed to read it?",
                    429: ": too many requests, wait a little"}.get(status, "")  # fmt: skip
            text = f"cannot be fetched: the hub answered {status}{hint} ({page})"
        elif isinstance(error, OSError):
            text = f"cannot be kept in {self._constants.HF_HOME}: {error.strerror or _line(error)}"
        else:
            text = f"cannot be fetched: {_line(error)}"
        return UncorkError(f"{address} {text}")


def _harmless(name: str) -> bool:
    """Whether a name that the server chose stays inside the folder it is put in."""
    parts = name.split("/")
    return name.isprintable() and "\\" not in name and not any(p in ("", ".", "..") for p in parts)


def _link(found: Path, target: Path) -> None:
    """`found` at `target` too, without a copy where the file system can."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f"{target.name}.{os.getpid()}.new")
    scratch.unlink(missing_ok=True)
    try:
        os.symlink(found.resolve(), scratch)
    except OSError:
        shutil.copyfile(found, scratch)
    os.replace(scratch, target)


def _safe(commit: str) -> str:
    """A commit's name as a folder's: the server chose it."""
    if not commit.isalnum() or len(commit) > 128:
        raise UncorkError(f"the hub names a commit {commit[:60]!r}, which is none")
    return commit


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__


@contextmanager
def _silent() -> Iterator[None]:
    """The client without bars and log lines of its own: there is one progress display."""
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
        logging,
    )

    shown, verbosity = not are_progress_bars_disabled(), logging.get_verbosity()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # HF_HUB_DISABLE_PROGRESS_BARS=0 has the last word
        disable_progress_bars()
        logging.set_verbosity_error()
        try:
            yield
        finally:
            logging.set_verbosity(verbosity)
            if shown:
                enable_progress_bars()
