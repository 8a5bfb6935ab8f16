"""Damaged files by the thousand: each ends in a head, a verdict or one line, soon and in little
memory. `make fuzz-files`, or: python tests/loading/fuzz_files.py --files 1000 --seed 7

File number k of a seed is the same on every machine. A violation is printed with its number, and
the file is kept.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
from samples import SAMPLES, source
from vector_samples import VECTOR_SAMPLES, read_everything

from uncork import Audit, Box, Head, Image, Items, UncorkError, audit, verify
from uncork.activations.recording import State
from uncork.activations.statistics import Statistics
from uncork.auditing.own_rows import audit_items
from uncork.domain.file import read_domain, write_domain
from uncork.labels import LabelSets, decide_sets
from uncork.labels.archive import read_label_audit, write_label_audit
from uncork.labels.verify import verify_sets
from uncork.loading import describe, find
from uncork.reach import best_rank, highest_probability
from uncork.reach.certificates import Certificates, check_certificates, read_certificates
from uncork.reach.certificates import write_certificates as write_reach

SECONDS = 10.0
MEMORY = 512 << 20
_EXTREMES = [
    b"\xff" * 8, b"\xff" * 4, b"\xff\xff\xff\x7f", b"\xff" * 7 + b"\x7f", bytes(8), bytes(4),
    b"\x80", b"\x00\x00\x00\x40", b"\x00\x00\x00\x00\x00\x01\x00\x00", b"\xff\xff",
]  # fmt: skip
_NUMBERS = [b"-1", b"0", b"1", b"2", b"4294967295", b"300000000", b"9" * 18, b"9" * 40, b"1e308",
            b"-0x1", b"null", b"[]", b"NaN", b"true", b'""']  # fmt: skip

Check = Callable[[Path], None]


class _TooSlow(BaseException):
    """Not an Exception: nothing may take it for damage of a file."""


def _show_and_load(path: Path) -> None:
    """What `show` does, and `audit` before it begins to audit."""
    describe(source(path))
    found = find(source(path), domain="auto")
    np.asarray(found.head.weight)


def _tie_heavy_head() -> Head:
    rng = np.random.default_rng(0)
    weight = np.vstack([rng.integers(-2, 3, (14, 3)), np.zeros((1, 3))]).astype(np.float64)
    return Head(np.vstack([weight, weight[0]]))


def checks(folder: Path) -> dict[str, tuple[Path, Check]]:
    """A valid file of every format, and what is done with a damaged one."""
    found: dict[str, tuple[Path, Check]] = {}
    for name, make in SAMPLES.items():
        path = folder / name.replace(".", "-") / name
        path.parent.mkdir()
        make(path)
        found[name] = path, _show_and_load
    for name, make in VECTOR_SAMPLES.items():
        path = folder / f"vectors-{name.replace('.', '-')}" / name
        path.parent.mkdir()
        make(path)
        found[name] = path, read_everything
    items = Items(np.vstack([_tie_heavy_head().weight[:12], np.zeros((1, 3))]), "cosine")
    audit_items(items).save(folder / "items.npz")
    found["items.npz"] = folder / "items.npz", lambda path: (
        verify(Audit.load(path, items), items).ok and None)  # fmt: skip
    head = _tie_heavy_head()
    seen = head.replace(domain=Image(Box(0, 1), np.eye(3) + 0.5, np.ones(3)))
    for name, each in (("certificates.npz", head), ("image certificates.npz", seen)):
        audit(each, jobs=1, device="cpu").save(folder / name)

        def check(path: Path, each: Head = each) -> None:
            verify(Audit.load(path, each), each, jobs=1)

        found[name] = folder / name, check
    proofs = Certificates(
        head.fingerprint, head.domain, highest_probability(head, [0, 14], jobs=1),
        best_rank(head, [0, 14], jobs=1),
    )  # fmt: skip
    write_reach(proofs, folder / "reach.npz")
    found["reach.npz"] = folder / "reach.npz", lambda path: (
        check_certificates(read_certificates(path, head), head, jobs=1) and None)  # fmt: skip
    sets = LabelSets.of(head.classes, [[], [0], [1, 2], [14]])
    write_label_audit(decide_sets(head, sets, jobs=1, device="cpu"), folder / "labels.npz")
    found["labels.npz"] = folder / "labels.npz", lambda path: (
        verify_sets(read_label_audit(path, head), head).ok and None)  # fmt: skip
    write_domain(folder / "domain.npz", seen.domain, {"made": "here"})
    found["domain.npz"] = folder / "domain.npz", lambda path: read_domain(path) and None
    State(folder / "state.npz").save("model", 3, Statistics(3, 16))
    found["state.npz"] = folder / "state.npz", lambda path: (
        State(path).load("model", 3, 16) and None)  # fmt: skip
    return found


# Damage


def damaged(whole: bytes, other: bytes, draw: random.Random) -> bytes:
    """A file that is nearly this one: its bytes, its numbers or its members changed."""
    how = draw.random()
    if whole[:4] == b"PK\x03\x04" and how < 0.5:
        return _members_changed(whole, draw)
    if how < 0.6:
        return _numbers_changed(whole, draw)
    if how < 0.7:
        return whole[: draw.randrange(len(whole))]
    if how < 0.8:  # spliced
        return whole[: draw.randrange(len(whole))] + other[draw.randrange(len(other)) :]
    return _bytes_changed(whole, draw)


def _bytes_changed(whole: bytes, draw: random.Random) -> bytes:
    changed = bytearray(whole)
    for _ in range(draw.choice([1, 1, 1, 2, 4, 16])):
        at, how = draw.randrange(len(changed) or 1), draw.random()
        if how < 0.4 and changed:
            changed[at % len(changed)] ^= 1 << draw.randrange(8)
        elif how < 0.75:
            extreme = draw.choice(_EXTREMES)
            changed[at : at + len(extreme)] = extreme
        elif how < 0.85:
            del changed[at : at + draw.randrange(1, 65)]
        elif how < 0.92:
            changed[at:at] = changed[at : at + draw.randrange(1, 65)] * draw.choice([1, 2, 100])
        else:
            changed[at:at] = draw.randbytes(draw.randrange(1, 9))
    return bytes(changed)


def _numbers_changed(whole: bytes, draw: random.Random) -> bytes:
    """A number in text, or a size field, made another; a length before JSON is kept right."""
    places = list(re.finditer(rb"\d+", whole))
    if not places or draw.random() < 0.2:
        at = draw.randrange(len(whole)) // 4 * 4
        size = draw.choice([0, 1, 2**31 - 1, 2**31, 2**32 - 1, len(whole), len(whole) * 2])
        return whole[:at] + struct.pack("<I", size) + whole[at + 4 :]
    place = draw.choice(places)
    text = draw.choice(_NUMBERS)
    changed = whole[: place.start()] + text + whole[place.end() :]
    if whole[8:9] == b"{" and place.start() > 8:  # safetensors
        size = struct.unpack("<Q", whole[:8])[0] + len(text) - (place.end() - place.start())
        changed = struct.pack("<Q", max(size, 0)) + changed[8:]
    return changed


def _members_changed(whole: bytes, draw: random.Random) -> bytes:
    """The archive packed anew, so that its checksums are right and what is in them is not."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(out, "w") as new:
        names = old.namelist()
        chosen, how = draw.choice(names), draw.random()
        for name in names:
            data = old.read(name)
            if name == chosen:
                if how < 0.1:
                    continue
                data = _member(data, old.read(draw.choice(names)), draw)
            info = zipfile.ZipInfo(name)
            info.compress_type = draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
            new.writestr(info, data)
        if how > 0.95:
            extra = draw.choice([chosen, "extra.npy", "../x.npy", "a" * 3000, chosen + "/"])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a name that is there already
                new.writestr(extra, bytes(draw.choice([0, 10, 1 << 20])))
    return out.getvalue()


def _member(data: bytes, other: bytes, draw: random.Random) -> bytes:
    how = draw.random()
    if how < 0.1:
        return other
    if how < 0.2 or not data:
        return data[: draw.randrange(len(data) + 1)]
    if data[:6] == b"\x93NUMPY" and b"<U" in data[:80] and how < 0.7:
        return _text_changed(data, draw)
    if how < 0.6:
        return _numbers_changed(data, draw)
    return _bytes_changed(data, draw)


def _text_changed(data: bytes, draw: random.Random) -> bytes:
    """A NumPy text, JSON perhaps, with something else in it."""
    text = str(np.load(io.BytesIO(data), allow_pickle=False)).encode()
    changed = _numbers_changed(text, draw) if draw.random() < 0.7 else _bytes_changed(text, draw)
    file = io.BytesIO()
    np.save(file, np.array(changed.decode(errors="replace")))
    return file.getvalue()


# The run


class Fuzzer:
    """Files of one seed, one after another, in this process."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.seed, self.folder = seed, folder
        self.formats = checks(folder)
        self.whole = {name: path.read_bytes() for name, (path, _) in self.formats.items()}
        for path, check in self.formats.values():
            check(path)  # imports what it needs, and is valid
        self.counts: Counter[str] = Counter()
        self.slowest = 0.0

    def run(self, number: int) -> str | None:
        """What is wrong with the way in which file `number` ended, or None."""
        draw = random.Random(f"{self.seed}-{number}")
        name = draw.choice(sorted(self.formats))
        path, check = self.formats[name]
        other = self.whole[draw.choice(sorted(self.formats))]
        path.write_bytes(damaged(self.whole[name], other, draw) or b"x")
        began = time.process_time()
        wrong = None
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            check(path)
            self.counts["read"] += 1
        except UncorkError as error:
            self.counts["refused"] += 1
            text = str(error)
            if "does not fit into memory" in text or not text.isprintable():
                wrong = f"{name}: {text[:300]}"
        except (MemoryError, RecursionError, _TooSlow):
            wrong = f"{name}: {traceback.format_exc(limit=-3)}"
        except Exception:
            wrong = f"{name}: {traceback.format_exc()}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        seconds = time.process_time() - began
        self.slowest = max(self.slowest, seconds)
        if wrong is None and seconds > SECONDS:
            wrong = f"{name}: took {seconds:.1f} s"
        if wrong is not None:
            (self.folder / f"violation-{number}-{path.name}").write_bytes(path.read_bytes())
        path.write_bytes(self.whole[name])
        return wrong


def limit_memory() -> None:
    """Another 512 MB for this process, and no more."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(
        resource.RLIMIT_AS, (used + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1])
    )


def stop(signum: int, frame: FrameType | None) -> None:
    raise _TooSlow(f"more than {SECONDS:g} s")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, stop)
    shared = Path("/dev/shm")  # in memory: a disk would take longer than uncork does
    folder = Path(tempfile.mkdtemp(prefix="fuzz-files-", dir=shared if shared.is_dir() else None))
    fuzzer, violations = Fuzzer(folder, asked.seed), 0
    limit_memory()
    began = time.perf_counter()
    for number in range(asked.first, asked.first + asked.files):
        wrong = fuzzer.run(number)
        if wrong is not None:
            violations += 1
            print(f"file {number}: {wrong}", flush=True)
        if number % 5000 == 4999:
            print(f"{number + 1:,} files, {violations} violations", file=sys.stderr, flush=True)
    print(json.dumps({
        "files": asked.files, "seed": asked.seed, "violations": violations, **fuzzer.counts,
        "formats": len(fuzzer.formats), "slowest": round(fuzzer.slowest, 3),
        "seconds": round(time.perf_counter() - began), "kept": str(folder) if violations else None,
    }))  # fmt: skip
    if not violations:
        shutil.rmtree(folder)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
