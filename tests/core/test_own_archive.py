"""Files of our own from strangers: what they claim costs nothing before it is checked."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from uncork import Audit, Box, Head, Image, UncorkError, Verdict, Witness, audit, verify
from uncork.activations.recording import State
from uncork.activations.statistics import Statistics
from uncork.auditing.certify.digits import most_bits
from uncork.auditing.proofs.certificate_file import content_digest
from uncork.core.own_archive import open_archive, write_archive
from uncork.domain.file import read_domain, write_domain
from uncork.reach import best_rank
from uncork.reach.certificates import Certificates, read_certificates, write_certificates

ROOM = 512 << 20  # bytes above what the interpreter and its libraries take
# Imports once, then forks for every command: the fork gets so much more memory, and ten seconds.
SERVER = """
import contextlib, io, json, os, resource, signal, sys
import uncork.cli.commands.verify, uncork.auditing.proofs.certificate_file
import uncork.auditing.backend, uncork.loading.naming, uncork.loading.numpy.file
from uncork.cli import main
for line in sys.stdin:
    arguments, room = json.loads(line)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        with open("/proc/self/statm") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + room,) * 2)
        signal.alarm(10)
        sys.stdin, sys.stdout = open(os.devnull), open(os.devnull, "w")
        sys.stderr = os.fdopen(write, "w")
        sys.argv = ["uncork", *arguments]
        try:
            main()
        except SystemExit as ended:
            sys.stderr.flush()
            os._exit(ended.code or 0)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        said = file.read()
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said]), flush=True)
"""

Run = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """A command in a process of little memory and time: its exit status, and what it said."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None

        def ask(*arguments: str | Path, room: int = ROOM) -> tuple[int, str]:
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write(json.dumps([[str(a) for a in arguments], room]) + "\n")
            server.stdin.flush()
            status, said = json.loads(server.stdout.readline())
            return int(status), str(said)

        yield ask
        server.stdin.close()


@pytest.fixture(scope="module")
def head() -> Head:
    rng = np.random.default_rng(0)
    weight = np.vstack([rng.integers(-3, 4, (14, 3)), np.zeros((1, 3))]).astype(np.float64)
    return Head(weight, rng.integers(-1, 2, 15).astype(np.float64))


@pytest.fixture
def files(head: Head, tmp_path: Path) -> Path:
    np.savez(tmp_path / "head.npz", weight=head.weight, bias=head.bias)
    audit(head, jobs=1).save(tmp_path / "c.npz")
    return tmp_path


def members(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def changed(path: Path, change: Callable[[dict[str, Any], dict[str, np.ndarray]], None]) -> None:
    """The file with another header or members, its digest right again."""
    arrays = members(path)
    header = json.loads(str(arrays["header"]))
    change(header, arrays)
    arrays["header"] = np.array(json.dumps(header))
    if "digest" in arrays:
        arrays["digest"] = np.array(content_digest(arrays))
    write_archive(path, arrays)


def zeros_member(path: Path, name: str, head: bytes, megabytes: int) -> None:
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        info = zipfile.ZipInfo(name)
        info.compress_type = zipfile.ZIP_DEFLATED
        with archive.open(info, "w", force_zip64=True) as member:
            member.write(head)
            for _ in range(megabytes):
                member.write(bytes(1 << 20))


def npy_head(shape: tuple[int, ...], dtype: str) -> bytes:
    file = io.BytesIO()
    form = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, form)
    return file.getvalue()


def test_more_classes_than_the_file_has_are_not_made_room_for(files: Path, run: Run) -> None:
    def claim(header: dict[str, Any], _: dict[str, np.ndarray]) -> None:
        header["classes"] = 300_000_000

    changed(files / "c.npz", claim)
    assert (files / "c.npz").stat().st_size < 20_000
    status, said = run("verify", files / "c.npz", files / "head.npz", room=64 << 20)
    assert status == 2, said
    assert "the header says 300,000,000 classes, and the file has 15" in said


def test_members_that_the_format_does_not_name_are_not_unpacked(files: Path, run: Run) -> None:
    zeros_member(files / "c.npz", "extra.npy", npy_head((4 << 30,), "|u1"), 96)
    status, said = run("verify", files / "c.npz", files / "head.npz", room=64 << 20)
    assert status == 2, said
    assert "'extra.npy', which is not part of one" in said


@pytest.mark.parametrize("name", ["verdict", "margin", "witness32_input", "mixture64_row"])
def test_members_that_unpack_to_gigabytes_are_refused(files: Path, run: Run, name: str) -> None:
    kinds = {"verdict": "|u1", "margin": "<f4", "witness32_input": "<f4", "mixture64_row": "<i4"}
    arrays = members(files / "c.npz")
    size = 96 << 20
    del arrays[name]
    write_archive(files / "c.npz", arrays)
    wide = 3 if name.endswith("input") else 1
    count = size // (4 if kinds[name] != "|u1" else 1) // wide
    shape = (count, wide) if wide > 1 else (count,)
    start = npy_head(shape, kinds[name])
    with zipfile.ZipFile(files / "c.npz", "a") as archive:
        info = zipfile.ZipInfo(f"{name}.npy")
        info.compress_type = zipfile.ZIP_DEFLATED
        with archive.open(info, "w", force_zip64=True) as member:
            member.write(start)
            left = int(np.prod(shape)) * np.dtype(kinds[name]).itemsize
            while left:
                left -= member.write(bytes(min(left, 1 << 20)))
    status, said = run("verify", files / "c.npz", files / "head.npz", room=64 << 20)
    assert status == 2, said
    assert name in said


@pytest.mark.parametrize("where", ["exact_witnesses", "exact_mixtures"])
def test_numbers_longer_than_exact_arithmetic_makes_them_are_refused(
    files: Path, run: Run, where: str
) -> None:
    long = hex((1 << 12_000_000) + 1)  # three million digits

    def claim(header: dict[str, Any], _: dict[str, np.ndarray]) -> None:
        proof = [[long] * 3, long] if where == "exact_witnesses" else [[1, 2, 3], [long] * 3]
        header[where] = {"0": proof}

    changed(files / "c.npz", claim)
    status, said = run("verify", files / "c.npz", files / "head.npz")
    assert status == 2, said
    assert "digits: exact arithmetic makes at most" in said


def test_a_mixture_of_more_classes_than_exact_arithmetic_names_is_refused(files: Path) -> None:
    def claim(header: dict[str, Any], _: dict[str, np.ndarray]) -> None:
        header["exact_mixtures"] = {"0": [[1] * 1000, ["0x1"] * 1000]}

    changed(files / "c.npz", claim)
    with pytest.raises(UncorkError, match="names 1,000 classes: exact arithmetic names at most 5"):
        Audit.load(files / "c.npz")


@pytest.mark.parametrize("text", ["[" * 100_000, "[" + "[]," * 3_000_000, '{"a":' * 50_000])
def test_a_header_that_is_nothing_but_brackets_is_refused(files: Path, run: Run, text: str) -> None:
    arrays = members(files / "c.npz")
    arrays["header"] = np.array(text)
    write_archive(files / "c.npz", arrays)
    status, said = run("verify", files / "c.npz", files / "head.npz", room=256 << 20)
    assert status == 2, said
    assert said.count("\n") == 1


def test_a_header_longer_than_such_a_file_needs_is_refused_before_it_is_unpacked(
    files: Path, run: Run
) -> None:
    arrays = members(files / "c.npz")
    del arrays["header"]
    write_archive(files / "c.npz", arrays)
    zeros_member(files / "c.npz", "header.npy", npy_head((), "<U104857600"), 8)
    status, said = run("verify", files / "c.npz", files / "head.npz", room=64 << 20)
    assert status == 2, said
    assert "header has 104,857,600 characters" in said


def test_reach_domains_and_recordings_are_opened_by_the_same_rules(
    head: Head, tmp_path: Path
) -> None:
    found = best_rank(head, [0, 14], jobs=1)
    write_certificates(Certificates(head.fingerprint, head.domain, rank=found), tmp_path / "r.npz")
    write_domain(tmp_path / "d.npz", Box(np.zeros(3), np.ones(3)))
    State(tmp_path / "s.npz").save("model", 3, Statistics(3, 15))
    readers: dict[str, Callable[[Path], Any]] = {
        "r.npz": lambda path: read_certificates(path, head),
        "d.npz": read_domain,
        "s.npz": lambda path: State(path).load("model", 3, 15),
    }
    for name, read in readers.items():
        path = tmp_path / name
        assert read(path)
        whole = path.read_bytes()
        zeros_member(path, "extra.npy", npy_head((1 << 20,), "|u1"), 1)
        with pytest.raises(UncorkError, match=r"extra.npy.*not part of one"):
            read(path)
        path.write_bytes(whole)
        first = next(k for k, a in members(path).items() if a.dtype.kind == "f" and a.ndim == 1)
        arrays = members(path)
        del arrays[first]
        write_archive(path, arrays)
        zeros_member(path, f"{first}.npy", npy_head((8 << 20,), "<f8"), 64)
        with pytest.raises(UncorkError, match=rf"{first} (is|would unpack)"):
            read(path)


def test_an_array_is_read_back_as_it_was_written_packed_or_not(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(12.0).reshape(3, 4), "b": np.arange(5), "c": np.array("text ✓"),
        "d": np.empty((0, 3), np.float32), "e": np.array(7),
    }  # fmt: skip
    write_archive(tmp_path / "a.npz", arrays)
    with open_archive(tmp_path / "a.npz", "a test", ["[a-e]"]) as archive:
        assert archive.text("c", 6) == "text ✓"
        for name in "abde":
            for read in (archive.array, archive.mapped):
                assert np.array_equal(read(name), arrays[name])
                assert read(name).dtype == arrays[name].dtype
        assert int(archive.array("e", ())) == 7
        with pytest.raises(UncorkError, match=r"a is float64 \(3, 4\): expected float64 \(3, 5\)"):
            archive.array("a", (3, 5), np.float64)
        with pytest.raises(UncorkError, match="c has 6 characters: in such a file it has at most"):
            archive.text("c", 5)


def test_what_exact_arithmetic_makes_is_within_its_bound() -> None:
    """Points on faces, magnitudes far apart, images of images: the longest numbers it has."""
    rng = np.random.default_rng(0)
    longest = 0.0
    for seed in range(12):
        width = 2 + seed % 3
        scale = 2.0 ** rng.integers(-30, 30, (9, 1)) if seed % 2 else 1.0
        weight = rng.integers(-2, 3, (9, width)) * scale + rng.integers(0, 2, (9, width)) * 2.0**-40
        weight = np.vstack([weight, (weight[0] + weight[1]) / 2])
        domain = [Box(1), Image(Box(0, 1), rng.standard_normal((width, width)))][seed % 2]
        head = Head(weight, rng.standard_normal(10), domain=domain)
        from uncork.auditing.search.exact import decide_exactly

        for t in range(10):
            found = decide_exactly(head, domain, t, np.empty(0, int), np.empty(0, int))
            if isinstance(found, Witness):
                numbers = [*(found.numerators or ()), found.denominator]
            else:
                numbers = list(found.integers or ())
                assert len(numbers) <= width + 2
            bits = max(n.bit_length() for n in numbers)
            longest = max(longest, float(Fraction(bits, most_bits(head, domain))))
    assert longest < 1


def test_long_numbers_are_refused_by_the_certifier_too(head: Head) -> None:
    found = audit(head, jobs=1)
    t = int(found.argmaxable[0])
    u = [Fraction(v) for v in np.asarray(found.witness(t)).tolist()]
    scale = 2**60
    for factor, holds in ((1, True), (3**1_000_000, False)):
        whole = tuple(int(v * scale) * factor for v in u)
        found.proofs.inputs.clear()
        found.proofs.scales[:] = 0
        found.proofs.verdicts[:] = Verdict.UNDECIDED
        found.proofs.verdicts[t] = Verdict.ARGMAXABLE
        found.proofs.exact = {t: Witness(np.zeros(3), whole, scale * factor)}
        assert verify(found, head, jobs=1).ok == holds
