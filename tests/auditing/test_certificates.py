"""Certificate files: what is written is read back, and what was tampered with proves nothing."""

from __future__ import annotations

import copy
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracle import expected, false_verdicts
from uncork import Audit, Ball, Box, Domain, Head, Unbounded, UncorkError, Verdict, Witness, verify
from uncork import audit as run_audit
from uncork.auditing.proofs.certificate_file import content_digest
from uncork.auditing.search import tilt

Members = dict[str, np.ndarray]


def make_head(seed: int = 0, domain: Domain | None = None, *, bias: bool = True) -> Head:
    """Vertices, inside points, face points and a pair of equals."""
    rng = np.random.default_rng(seed)
    weight = np.vstack(
        [rng.standard_normal((16, 3)), 0.2 * rng.standard_normal((6, 3)), [[0, 0, 0], [2, 0, 0]]]
    )
    weight = np.vstack([weight, (weight[0] + weight[1]) / 2, weight[0]])
    offsets = np.append(rng.standard_normal(25), 0.0) if bias else None
    if offsets is not None:
        offsets[-1] = offsets[0]
    return Head(weight, offsets, domain=domain)


HEADS = {
    "bias in a box": make_head(),
    "no bias, unbounded": make_head(1, Unbounded(), bias=False),
    "one-sided box": make_head(2, Box(0, np.inf)),
    "ball": make_head(3, Ball(3.0), bias=False),
    "float32": make_head(4).replace(
        weight=make_head(4).weight.astype(np.float32), bias=make_head(4).offsets.astype(np.float32)
    ),
    "ranges": make_head(5, Box(np.array([-1.0, -np.inf, 0.5]), np.array([1.0, 2.0, 0.5]))),
}


@pytest.fixture(params=HEADS, scope="module")
def head(request: pytest.FixtureRequest) -> Head:
    return HEADS[request.param]


@pytest.fixture(scope="module")
def audited_once(head: Head) -> Audit:
    return run_audit(head, device="cpu", jobs=1)


@pytest.fixture
def audited(audited_once: Audit) -> Audit:
    """A copy, to be changed at will."""
    return copy.deepcopy(audited_once)


@pytest.fixture
def path(tmp_path: Path, audited: Audit) -> Path:
    audited.save(tmp_path / "c.npz")
    return tmp_path / "c.npz"


def members(path: Path) -> Members:
    with np.load(path, allow_pickle=False) as archive:
        return {name: np.array(archive[name]) for name in archive.files}


def header(path: Path) -> dict[str, Any]:
    return dict(json.loads(str(members(path)["header"])))


def rewrite(path: Path, change: Callable[[Members], None]) -> None:
    """Change a file's content as someone would who knows the format: checksums are made anew."""
    content = members(path)
    change(content)
    content["digest"] = np.array(content_digest(content))
    np.savez(path, **content)  # type: ignore[arg-type]


def rewrite_header(path: Path, **fields: Any) -> None:
    def change(content: Members) -> None:
        content["header"] = np.array(json.dumps({**json.loads(str(content["header"])), **fields}))

    rewrite(path, change)


_truth: dict[tuple[str, str], list[Verdict]] = {}


def truth(head: Head, domain: Domain) -> list[Verdict]:
    key = head.fingerprint, domain.spec()
    if key not in _truth:
        _truth[key] = expected(head, domain)
    return _truth[key]


def survives(path: Path, head: Head) -> bool:
    """Whether a file still loads and verifies; then every verdict in it has to be true."""
    try:
        loaded = Audit.load(path, head)
        result = verify(loaded, head, jobs=1)
    except UncorkError:
        return False
    if not result.ok:
        return False
    for claimed, true in zip(loaded.verdicts, truth(head, loaded.domain), strict=True):
        assert claimed in (true, Verdict.UNDECIDED)
    return True


# What is written is read back


def test_a_saved_audit_reads_back_the_same(head: Head, audited: Audit, path: Path) -> None:
    loaded = Audit.load(path, head)
    assert list(loaded.verdicts) == list(audited.verdicts)
    assert loaded.domain == audited.domain
    assert loaded.fingerprint == head.fingerprint
    assert loaded.counts == audited.counts
    for t in range(head.classes):
        mine, theirs = audited.mixture(t), loaded.mixture(t)
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            assert mine.classes.tolist() == theirs.classes.tolist()
            assert mine.weights.tolist() == theirs.weights.tolist()
            assert (mine.bulk, mine.integers) == (theirs.bulk, theirs.integers)
        x, y = audited.witness(t), loaded.witness(t)
        assert (x is None) == (y is None)
        if x is not None and y is not None:
            assert x.tolist() == y.tolist()
        assert loaded.stolen_by(t) == audited.stolen_by(t)


def test_a_saved_audit_verifies(head: Head, path: Path) -> None:
    loaded = Audit.load(path, head)
    result = verify(loaded, head, jobs=1)
    assert result.ok
    assert result.failed == {}
    assert result.held == {
        name: count for name, count in loaded.counts.items() if name != "undecided"
    }
    assert false_verdicts(loaded, head) == {}


def test_an_audit_is_proven_by_verifying_not_by_loading(head: Head, path: Path) -> None:
    loaded = Audit.load(path, head)
    assert not loaded.proven
    verify(loaded, head, jobs=1)
    assert loaded.proven


def test_a_saved_margin_claims_no_more_than_the_proven_one(
    head: Head, audited: Audit, path: Path
) -> None:
    loaded = Audit.load(path, head)
    for t in range(head.classes):
        claimed, proven = loaded.margin(t), audited.margin(t)
        assert claimed == pytest.approx(proven, rel=1e-6, nan_ok=True)
        assert not abs(claimed) > abs(proven)


def test_the_same_audit_writes_the_same_bytes(head: Head, tmp_path: Path, path: Path) -> None:
    loaded = Audit.load(path, head)
    loaded.save(tmp_path / "again.npz")
    again = members(tmp_path / "again.npz")
    for name, array in members(path).items():
        assert np.array_equal(array, again[name], equal_nan=array.dtype.kind == "f")


def test_a_file_can_be_read_without_the_head(audited: Audit, path: Path) -> None:
    loaded = Audit.load(path)
    assert loaded.counts == audited.counts


def test_nothing_in_the_file_is_pickled(path: Path) -> None:
    for array in members(path).values():  # np.load refuses pickles here
        assert array.dtype.kind in "iufU"


def test_undecided_classes_keep_their_reasons(tmp_path: Path) -> None:
    head = HEADS["bias in a box"]
    found = run_audit(head, device="cpu", jobs=1, approximate=True, patience=0)
    assert len(found.undecided)
    found.save(tmp_path / "c.npz")
    loaded = Audit.load(tmp_path / "c.npz", head)
    assert loaded.undecided.tolist() == found.undecided.tolist()
    assert loaded.proofs.reasons == found.proofs.reasons
    assert loaded.approximate
    assert verify(loaded, head, jobs=1).ok


def test_whole_numbers_of_any_length_are_kept(tmp_path: Path) -> None:
    head = Head([[1.0], [0.0]], domain=Unbounded())
    found = run_audit(head, device="cpu", jobs=1)
    long = Witness(np.array([np.nan]), (10**6000 + 1,), 10**5000)
    found.proofs.scales[0] = 0
    found.proofs.inputs.pop(0, None)
    found.proofs.exact[0] = long
    found.save(tmp_path / "c.npz")
    loaded = Audit.load(tmp_path / "c.npz", head)
    assert loaded.proofs.exact[0].numerators == long.numerators
    assert verify(loaded, head, jobs=1).ok


def test_saving_where_nothing_can_be_written_is_one_clear_line(
    audited: Audit, tmp_path: Path
) -> None:
    with pytest.raises(UncorkError, match="cannot be written"):
        audited.save(tmp_path / "no such folder" / "c.npz")
    assert list(tmp_path.glob("**/*.part")) == []


def test_certificates_of_pp_ocr_v4_are_at_most_twice_the_head(
    pp_ocr_v4: Head, pp_ocr_v4_audit: Audit, tmp_path: Path
) -> None:
    pp_ocr_v4_audit.save(tmp_path / "c.npz")
    assert (tmp_path / "c.npz").stat().st_size <= 2 * pp_ocr_v4.weight.nbytes
    loaded = Audit.load(tmp_path / "c.npz", pp_ocr_v4)
    assert verify(loaded, pp_ocr_v4).held["unargmaxable"] == 202


def test_tilted_mixtures_are_written_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tilt, "_WIDE", 0)  # tilts are for wide heads; here for any
    rng = np.random.default_rng(0)
    deep = 0.05 * rng.standard_normal((6, 6))
    head = Head(np.vstack([rng.standard_normal((200, 6)), deep]), domain=Unbounded())
    found = run_audit(head, device="cpu", jobs=1)
    tilted = [t for t, mixture in found.proofs.mixtures.items() if mixture.tilt is not None]
    assert tilted
    assert set(range(200, 206)) <= set(found.unargmaxable.tolist())
    found.save(tmp_path / "c.npz")
    loaded = Audit.load(tmp_path / "c.npz", head)
    for t in tilted:
        mine, theirs = found.mixture(t), loaded.mixture(t)
        assert mine is not None
        assert theirs is not None
        assert np.array_equal(mine.tilt, theirs.tilt)  # type: ignore[arg-type]
        assert mine.peak == theirs.peak
    assert verify(loaded, head, jobs=1).ok
    # A tilt the other way proves nothing.
    rewrite(tmp_path / "c.npz", lambda content: content.update(tilt_input=-content["tilt_input"]))
    failed = verify(Audit.load(tmp_path / "c.npz", head), head, jobs=1).failed
    assert set(tilted) & set(failed)
    # Nor does a tilt given to a class that is argmaxable.
    rewrite(
        tmp_path / "c.npz",
        lambda content: content.update(tilt_class=content["tilt_class"][::-1].copy()),
    )
    survived = Audit.load(tmp_path / "c.npz", head)
    held = set(survived.unargmaxable.tolist()) - set(verify(survived, head, jobs=1).failed)
    assert held <= set(found.unargmaxable.tolist())


# What was tampered with proves nothing


def test_certificates_of_another_head_are_refused(path: Path, head: Head) -> None:
    weight = np.array(head.weight)
    weight[0, 0] = np.nextafter(weight[0, 0], np.inf)
    changed = [head.replace(weight=weight), head.replace(weight=weight[::-1])]
    if head.bias is not None:
        changed.append(head.replace(bias=None))
        bias = np.array(head.bias)
        bias[3] = np.nextafter(bias[3], np.inf)
        changed.append(head.replace(bias=bias))
    for other in changed:
        with pytest.raises(UncorkError, match="prove nothing about it"):
            verify(Audit.load(path, other), other, jobs=1)


def test_a_forged_fingerprint_does_not_make_them_another_heads(path: Path, head: Head) -> None:
    # Mirrored weights: every witness now puts the wrong class first.
    other = head.replace(weight=-np.array(head.weight))
    rewrite_header(path, fingerprint=other.fingerprint)
    assert not survives(path, other)
    assert not survives(path, head)


def test_certificates_for_another_shape_are_refused(path: Path, head: Head) -> None:
    other = Head(head.weight[:-1], None if head.bias is None else head.bias[:-1])
    rewrite_header(path, fingerprint=other.fingerprint)
    assert not survives(path, other)
    rewrite_header(path, fingerprint=head.fingerprint, classes=head.classes + 1)
    assert not survives(path, head)


@pytest.mark.parametrize(
    "spec", ["box:1e-9", "box:1e9", "unbounded", "box:1,2", "box:0,inf", "ball:1e-9", "ball:1e9"]
)
def test_a_changed_domain_fails_or_is_just_as_true(path: Path, head: Head, spec: str) -> None:
    rewrite_header(path, domain=spec)
    survives(path, head)  # which holds every verdict against the domain now claimed


@pytest.mark.parametrize("member", ["margin", "verdict", "header"])
def test_a_file_changed_after_it_was_written_does_not_verify(
    path: Path, head: Head, member: str
) -> None:
    content = members(path)
    if member == "header":  # a larger box: the proofs may well hold there too
        content[member] = np.array(str(content[member]).replace('"features"', ' "features"'))
    else:
        content[member][0] = 0
    np.savez(path, **content)  # type: ignore[arg-type]
    result = verify(Audit.load(path, head), head, jobs=1)
    assert result.altered
    assert not result.ok


def test_a_domain_that_the_witnesses_leave_fails() -> None:
    head = HEADS["bias in a box"]
    found = run_audit(head, device="cpu", jobs=1)
    found.domain = Box(1e-9)
    assert set(verify(found, head, jobs=1).failed) >= set(found.argmaxable.tolist()) - {
        int(np.argmax(head.offsets))
    }


@pytest.mark.parametrize("spec", ["box:2,1", "nonsense", "", 7, None, "box:1,2;3,4"])
def test_a_domain_that_is_none_is_refused(path: Path, head: Head, spec: Any) -> None:
    rewrite_header(path, domain=spec)
    assert not survives(path, head)


@pytest.mark.parametrize("verdict", list(Verdict)[1:])
def test_a_changed_verdict_fails(path: Path, head: Head, verdict: Verdict) -> None:
    honest = members(path)["verdict"]
    for t in np.flatnonzero((honest != verdict) & (honest != Verdict.UNDECIDED)).tolist():

        def change(content: Members, t: int = t) -> None:
            content["verdict"] = honest.copy()
            content["verdict"][t] = verdict

        rewrite(path, change)
        assert t in verify(Audit.load(path, head), head, jobs=1).failed


def test_a_proof_given_to_another_class_fails(head: Head, audited: Audit) -> None:
    proofs = audited.proofs
    lost, won = audited.unargmaxable.tolist(), audited.argmaxable.tolist()
    inputs = {t: proofs.witness(head, t) for t in won}
    for t in won:
        other = won[(won.index(t) + 1) % len(won)]
        witness = inputs[other]
        assert witness is not None
        proofs.exact.pop(t, None)
        proofs.scales[t] = 0
        proofs.inputs[t] = witness.x
    for t in lost:
        proofs.mixtures[t] = type(proofs.mixtures[t])(np.array([t]), np.array([1.0]))
    assert sorted(verify(audited, head, jobs=1).failed) == sorted(won + lost)


def test_swapped_mixtures_fail_or_are_true(head: Head, audited: Audit) -> None:
    lost = audited.unargmaxable.tolist()
    mixtures = dict(audited.proofs.mixtures)
    for t, other in zip(lost, lost[1:] + lost[:1], strict=True):
        audited.proofs.mixtures[t] = mixtures[other]
    verify(audited, head, jobs=1)
    assert false_verdicts(audited, head) == {}


def test_a_class_argmaxable_only_together_with_its_equal_is_not_argmaxable(head: Head) -> None:
    found = run_audit(head, device="cpu", jobs=1)
    if found.tied.tolist():
        first = int(found.tied[0])
        found.proofs.verdicts[first] = Verdict.ARGMAXABLE
        assert first in verify(found, head, jobs=1).failed
        found.proofs.groups = []
        assert first in verify(found, head, jobs=1).failed


def test_a_group_of_one_class_named_twice_ties_nothing() -> None:
    head = Head([[1.0], [-1.0]])
    found = run_audit(head, device="cpu", jobs=1)
    found.proofs.groups = [np.array([0, 0])]
    found.proofs.verdicts[0] = Verdict.TIED
    assert 0 in verify(found, head, jobs=1).failed


def test_a_lost_class_cannot_be_tied() -> None:
    head = Head([[0.0], [0.0], [-1.0], [1.0]])
    found = run_audit(head, device="cpu", jobs=1)
    assert found.unargmaxable.tolist() == [0, 1]
    found.proofs.verdicts[1] = Verdict.TIED
    assert 1 in verify(found, head, jobs=1).failed


def test_a_missing_proof_fails(head: Head, audited: Audit) -> None:
    decided = np.flatnonzero(audited.proofs.verdicts != Verdict.UNDECIDED).tolist()
    proofs = audited.proofs
    proofs.inputs.clear()
    proofs.exact.clear()
    proofs.mixtures.clear()
    proofs.scales[:] = 0
    result = verify(audited, head, jobs=1)
    assert sorted(result.failed) == decided
    assert set(result.held.values()) == {0}
    assert not audited.proven


@pytest.mark.parametrize("class_id", [-1, 26, 10**12, "x"])
@pytest.mark.parametrize("field", ["exact_witnesses", "exact_mixtures"])
def test_an_exact_proof_for_a_class_that_does_not_exist_is_refused(
    field: str, class_id: Any, tmp_path: Path
) -> None:
    head = HEADS["bias in a box"]
    run_audit(head, device="cpu", jobs=1).save(tmp_path / "c.npz")
    value = [["0", "0", "0"], "1"] if field == "exact_witnesses" else [[0], ["1"]]
    rewrite_header(tmp_path / "c.npz", **{field: {str(class_id): value}})
    with pytest.raises(UncorkError):
        Audit.load(tmp_path / "c.npz", head)


def test_every_changed_number_is_caught_or_harmless(head: Head, path: Path) -> None:
    """Bits of every array flipped at random, checksums made anew."""
    rng = np.random.default_rng(0)
    honest = members(path)
    names = [name for name, array in honest.items() if array.nbytes and array.dtype.kind != "U"]
    caught = 0
    for _ in range(60):
        name = names[rng.integers(len(names))]

        def change(content: Members, name: str = name) -> None:
            content.update({key: array.copy() for key, array in honest.items()})
            raw = content[name].reshape(-1).view(np.uint8)
            raw[rng.integers(len(raw))] ^= np.uint8(1 << rng.integers(8))

        rewrite(path, change)
        caught += not survives(path, head)
    assert caught


def test_every_changed_letter_of_the_header_is_caught_or_harmless(head: Head, path: Path) -> None:
    rng = np.random.default_rng(1)
    honest = str(members(path)["header"])
    for _ in range(60):
        at = int(rng.integers(len(honest)))
        letter = '0123456789abcdef"[]{},:- '[rng.integers(25)]

        def change(content: Members, at: int = at, letter: str = letter) -> None:
            content["header"] = np.array(honest[:at] + letter + honest[at + 1 :])

        rewrite(path, change)
        survives(path, head)


def test_flipped_bits_anywhere_in_the_file_are_caught_or_harmless(head: Head, path: Path) -> None:
    rng = np.random.default_rng(2)
    honest = path.read_bytes()
    for _ in range(60):
        damaged = bytearray(honest)
        damaged[rng.integers(len(damaged))] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        survives(path, head)


def test_a_truncated_file_is_one_clear_line(head: Head, path: Path) -> None:
    honest = path.read_bytes()
    for share in (0.0, 0.01, 0.3, 0.7, 0.99):
        path.write_bytes(honest[: int(share * len(honest))])
        with pytest.raises(UncorkError, match=r"c\.npz"):
            Audit.load(path, head)
    path.write_bytes(honest[:-1])
    assert not survives(path, head)


def test_a_member_left_out_is_one_clear_line(head: Head, path: Path) -> None:
    honest = members(path)
    for name in honest:
        content = {key: array for key, array in honest.items() if key != name}
        if name != "digest":
            content["digest"] = np.array(content_digest(content))
        np.savez(path, **content)  # type: ignore[arg-type]
        try:
            loaded = Audit.load(path, head)
        except UncorkError:
            continue
        assert not verify(loaded, head, jobs=1).ok


def test_a_pickle_is_never_loaded(head: Head, path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (pytest.fail, ("a pickle was loaded",))

    honest = members(path)
    for name in honest:
        content = {**honest, name: np.array([Bomb()], dtype=object)}
        np.savez(path, **content)  # type: ignore[arg-type]
        with pytest.raises(UncorkError):
            Audit.load(path, head)


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04", b"not a zip at all", b"\x80\x04K\x01.", b"\x93NUMPY\x01\x00"],
    ids=["empty", "zip magic", "text", "pickle", "npy magic"],
)
def test_what_is_no_certificate_file_is_one_clear_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "c.npz"
    path.write_bytes(content)
    with pytest.raises(UncorkError, match=r"c\.npz"):
        Audit.load(path)


def test_other_arrays_are_no_certificates(tmp_path: Path) -> None:
    np.savez(tmp_path / "c.npz", weight=np.eye(3))
    with pytest.raises(UncorkError, match="not a certificate file"):
        Audit.load(tmp_path / "c.npz")
    buffer = io.BytesIO()
    np.save(buffer, np.eye(3))
    (tmp_path / "c.npz").write_bytes(buffer.getvalue())
    with pytest.raises(UncorkError):
        Audit.load(tmp_path / "c.npz")
    with zipfile.ZipFile(tmp_path / "c.npz", "w") as archive:
        archive.writestr("header.npy", b"nonsense")
    with pytest.raises(UncorkError):
        Audit.load(tmp_path / "c.npz")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UncorkError, match=r"nowhere\.npz: no such file"):
        Audit.load(tmp_path / "nowhere.npz")


def test_a_later_version_is_refused(path: Path, head: Head) -> None:
    rewrite_header(path, version=99)
    with pytest.raises(UncorkError, match="version 99"):
        Audit.load(path, head)
