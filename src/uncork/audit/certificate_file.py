"""The certificate file: plain arrays in a zip, no pickle; see docs/certificates.md."""

from __future__ import annotations

import hashlib
import json
import math
import os
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from uncork.audit.formula import Formula
from uncork.audit.proofs import Proofs
from uncork.audit.result import Audit
from uncork.audit.verdict import Mixture, Verdict, Witness
from uncork.domain import Domain, parse_domain
from uncork.domain.members import domain_from, members_of
from uncork.domain_file import narrowest
from uncork.errors import UncorkError
from uncork.head import Head
from uncork.reading import reading_from
from uncork.whole_file import whole_file

VERSION = 2
_PLAIN = 1  # the version written where the domain is plain: what version 2 adds is not needed
_KIND = "uncork certificates"
_DIGEST_BYTES = 16 << 20


def write_certificates(audit: Audit, path: str | os.PathLike[str]) -> None:
    """Write the file whole or not at all."""
    with (
        whole_file(path) as target,
        target.open("wb") as file,  # zipfile itself would want to read a pipe as well
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive,
    ):
        for name, array in _members(audit).items():
            # Whole numbers shrink well; floats do not, and stored ones can be mapped.
            packed = zipfile.ZIP_DEFLATED if array.dtype.kind in "iuU" else zipfile.ZIP_STORED
            info = zipfile.ZipInfo(name + ".npy", date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = packed
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _members(audit: Audit) -> dict[str, np.ndarray]:
    proofs = audit.proofs
    view = audit.domain.affine(audit.features)
    description, arrays = members_of(audit.domain) if view.steps else (None, {})
    header = {
        "kind": _KIND, "version": VERSION if view.steps else _PLAIN,
        "fingerprint": audit.fingerprint,
        "domain": audit.domain.spec(), "classes": audit.classes, "features": audit.features,
        "dtype": audit.dtype, "bias": audit.has_bias, "source": audit.source,
        "algorithm": audit.algorithm, "approximate": audit.approximate,
        "device": audit.device, "seconds": audit.seconds,
        "low_precision": audit.low_precision,
        "reading": None if audit.reading is None else audit.reading.as_dict(),
        "reasons": {str(t): why for t, why in proofs.reasons.items()},
        "asked": None if audit.asked is None else [int(t) for t in audit.asked],
        "exact_witnesses": {
            str(t): [[hex(n) for n in w.numerators or ()], hex(w.denominator)]
            for t, w in proofs.exact.items()
        },
        "exact_mixtures": {
            str(t): [[int(i) for i in m.classes], [hex(w) for w in m.integers]]
            for t, m in proofs.mixtures.items() if m.integers is not None
        },
    }  # fmt: skip
    if description is not None:
        header["domain_parts"] = description
    members = {
        "header": np.array(json.dumps(header, ensure_ascii=True)),
        "verdict": proofs.verdicts.astype(np.uint8),
        "margin": _towards_zero(proofs.margins),
        "group_class": np.array([i for g in proofs.groups for i in g.tolist()], dtype=np.int32),
        "group_size": np.array([len(g) for g in proofs.groups], dtype=np.int32),
        **{f"domain_{name}": narrowest(array) for name, array in arrays.items()},
    }
    if proofs.formula is not None and (proofs.scales > 0).any():
        members["formula_transform"] = proofs.formula.transform
        members["formula_centre"] = proofs.formula.centre
        members["formula_scale"] = proofs.scales
    for bits in (32, 64):
        dtype = np.dtype(f"float{bits}")
        stored = sorted(t for t, x in proofs.inputs.items() if x.dtype == dtype)
        rows = [proofs.inputs[t] for t in stored]
        members[f"witness{bits}_class"] = np.array(stored, dtype=np.int32)
        members[f"witness{bits}_input"] = np.array(rows, dtype=dtype).reshape(-1, view.latent)
        held = sorted(
            t for t, m in proofs.mixtures.items() if m.integers is None and m.weights.dtype == dtype
        )
        mixtures = [proofs.mixtures[t] for t in held]
        members[f"mixture{bits}_class"] = np.array(held, dtype=np.int32)
        members[f"mixture{bits}_size"] = np.array(
            [len(m.classes) for m in mixtures], dtype=np.int32
        )
        members[f"mixture{bits}_bulk"] = np.array([m.bulk for m in mixtures], dtype=np.float64)
        members[f"mixture{bits}_row"] = _joined([_steps(m.classes) for m in mixtures], np.int32)
        members[f"mixture{bits}_weight"] = _joined([m.weights for m in mixtures], dtype)
    tilted = sorted(t for t, m in proofs.mixtures.items() if m.tilt is not None)
    tilts = [proofs.mixtures[t].tilt for t in tilted]
    members["tilt_class"] = np.array(tilted, dtype=np.int32)
    members["tilt_input"] = np.array(tilts, dtype=np.float32).reshape(-1, audit.features)
    members["tilt_peak"] = np.array([proofs.mixtures[t].peak for t in tilted], dtype=np.float64)
    members["digest"] = np.array(content_digest(members))
    return members


def content_digest(members: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over names, types, shapes and bytes of every member but the digest itself.

    It says whether a file is still the one that was written, nothing about who wrote it.
    """
    digest = hashlib.sha256(f"{_KIND} {_PLAIN}".encode())
    for name in sorted(set(members) - {"digest"}):
        array = members[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        flat = np.ascontiguousarray(array).reshape(-1)
        step = max(1, _DIGEST_BYTES // max(1, flat.dtype.itemsize))
        for start in range(0, len(flat), step):
            digest.update(flat[start : start + step].tobytes())
    return digest.hexdigest()


def _towards_zero(values: np.ndarray) -> np.ndarray:
    """In float32, claiming no more than was proven; what is positive stays positive."""
    with np.errstate(over="ignore", under="ignore"):
        narrow = values.astype(np.float32)
    narrow = np.where(np.abs(narrow) > np.abs(values), np.nextafter(narrow, np.float32(0)), narrow)
    return np.where((values > 0) & (narrow == 0), np.float32(1e-45), narrow)


def _joined(parts: list[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate([np.asarray(p, dtype=dtype) for p in parts] or [np.empty(0, dtype)])


def _steps(classes: np.ndarray) -> np.ndarray:
    """Ascending ids as differences: small numbers, which deflate packs well."""
    return np.diff(np.asarray(classes, dtype=np.int64), prepend=0)


def read_certificates(path: str | os.PathLike[str], head: Head | None = None) -> Audit:
    """Read a file back, checking its form; what it claims is for the certifier to check."""
    source = Path(path)
    if not source.is_file():
        raise UncorkError(f"{source}: no such file")
    try:
        with source.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return _read(archive, source, head)
    except UncorkError as error:
        raise UncorkError(f"{source}: {error}") from None
    except Exception as error:  # whatever a damaged file makes NumPy or zipfile stumble over
        why = " ".join(str(error).split())
        raise UncorkError(f"{source}: not a certificate file, or a damaged one ({why})") from None


def _read(archive: Any, source: Path, head: Head | None) -> Audit:
    header = json.loads(str(archive["header"]))
    if not isinstance(header, dict) or header.get("kind") != _KIND:
        raise UncorkError("not a certificate file")
    if header["version"] not in (_PLAIN, VERSION):
        raise UncorkError(
            f"certificates of version {header['version']}; this uncork reads versions up to "
            f"{VERSION}"
        )
    classes, features = int(header["classes"]), int(header["features"])
    domain = _domain(archive, header, features)
    latent = domain.affine(features).latent
    proofs = Proofs.empty(classes)
    proofs.verdicts = _shaped(archive, "verdict", (classes,), np.uint8)
    if proofs.verdicts.max(initial=0) > max(Verdict):
        raise UncorkError("verdict holds a value that is no verdict")
    proofs.margins = _shaped(archive, "margin", (classes,), np.float32).astype(np.float64)
    sizes = archive["group_size"]
    members = archive["group_class"]
    if sizes.sum() != len(members) or (sizes < 2).any() or not _are_ids(members, classes):
        raise UncorkError("the groups of equal classes are damaged")
    proofs.groups = np.split(members.astype(np.int64), np.cumsum(sizes)[:-1]) if len(sizes) else []
    if "formula_scale" in archive:
        proofs.scales = _shaped(archive, "formula_scale", (classes,), np.float32)
        proofs.formula = Formula(
            _shaped(archive, "formula_transform", (features, latent), np.float32),
            _shaped(archive, "formula_centre", (features,), np.float64),
        )
    for bits in (32, 64):
        _read_inputs(archive, source, proofs, bits, classes, latent)
        _read_mixtures(archive, proofs, bits, classes)
    _read_tilts(archive, proofs, features)
    named = [*header["exact_witnesses"], *header["exact_mixtures"], *header["reasons"]]
    named += header["asked"] or []
    if not _are_ids(np.array([int(t) for t in named], dtype=np.int64), classes):
        raise UncorkError("the header names a class that does not exist")
    for t, (numerators, denominator) in header["exact_witnesses"].items():
        whole, scale = tuple(int(n, 16) for n in numerators), int(denominator, 16)
        if len(whole) != latent or scale <= 0:
            raise UncorkError("an exact witness is damaged")
        image = np.array([_as_float(n, scale) for n in whole])
        proofs.exact[int(t)] = Witness(image, whole, scale)
    for t, (ids, weights) in header["exact_mixtures"].items():
        integers = tuple(int(w, 16) for w in weights)
        if len(ids) != len(integers) or not _are_ids(np.array(ids, dtype=np.int64), classes):
            raise UncorkError("an exact mixture is damaged")
        total = sum(integers) or 1
        proofs.mixtures[int(t)] = Mixture(
            np.array(ids, dtype=np.int32),
            np.array([_as_float(w, total) for w in integers]),
            0.0,
            integers,
        )
    proofs.reasons = {int(t): str(why) for t, why in header["reasons"].items()}
    asked = header["asked"]
    content = {name: _mapped(archive, source, name) for name in archive.files}
    altered = str(content["digest"]) != content_digest(content)
    return Audit(
        proofs, str(header["fingerprint"]), domain, features,
        str(header["dtype"]), bool(header["bias"]),
        labels=None if head is None else head.labels, source=str(header["source"]), head=head,
        asked=None if asked is None else np.array(asked, dtype=np.int64),
        approximate=bool(header["approximate"]), algorithm=str(header["algorithm"]),
        device=str(header["device"]), seconds=dict(header["seconds"]),
        low_precision=header["low_precision"],
        altered=altered, reading=reading_from(header.get("reading")),
    )  # fmt: skip


def _domain(archive: Any, header: dict[str, Any], features: int) -> Domain:
    """The domain: plain ones by their text, images by their arrays, which must be those that the
    text names."""
    if header["version"] == _PLAIN:
        text = str(header["domain"])
        if text.lstrip().startswith("@"):
            raise UncorkError("the domain of certificates cannot be another file")
        domain = parse_domain(text)
    else:
        names = [name for name in archive.files if name.startswith("domain_")]
        arrays = {name.removeprefix("domain_"): archive[name] for name in names}
        domain = domain_from(header["domain_parts"], arrays)
        if domain.spec() != header["domain"]:
            raise UncorkError("the domain is not the one that the header names")
    domain.check(features)
    return domain


def _mapped(archive: Any, source: Path, name: str) -> np.ndarray:
    """An array of the file, mapped where it is stored as it is: inputs can be as many as the head's
    weights, and need not all be in memory at once."""
    info = archive.zip.getinfo(name + ".npy")
    if info.compress_type != zipfile.ZIP_STORED:
        return archive[name]
    with source.open("rb") as file:
        file.seek(info.header_offset + 26)  # past the fixed part of the member's local header
        lengths = file.read(4)
        names = int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
        file.seek(names, os.SEEK_CUR)
        start = file.tell()
        if np.lib.format.read_magic(file) != (1, 0):
            raise UncorkError(f"{name} is damaged")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        size = file.tell() - start + math.prod(shape) * dtype.itemsize
        if fortran or dtype.hasobject or size != info.file_size:
            raise UncorkError(f"{name} is damaged")
        if not math.prod(shape):
            return np.empty(shape, dtype)
        return np.memmap(source, dtype=dtype, mode="r", offset=file.tell(), shape=shape)


def _read_inputs(
    archive: Any, source: Path, proofs: Proofs, bits: int, classes: int, features: int
) -> None:
    ids = archive[f"witness{bits}_class"]
    inputs = _mapped(archive, source, f"witness{bits}_input")
    if inputs.shape != (len(ids), features) or inputs.dtype != np.dtype(f"float{bits}"):
        raise UncorkError(f"witness{bits}_input is {inputs.dtype} {inputs.shape}")
    if not _are_ids(ids, classes):
        raise UncorkError("a witness names a class that does not exist")
    proofs.inputs.update(zip(ids.tolist(), inputs, strict=True))


def _read_mixtures(archive: Any, proofs: Proofs, bits: int, classes: int) -> None:
    ids, sizes = archive[f"mixture{bits}_class"], archive[f"mixture{bits}_size"]
    bulk = _shaped(archive, f"mixture{bits}_bulk", (len(ids),), np.float64)
    rows, weights = archive[f"mixture{bits}_row"], archive[f"mixture{bits}_weight"]
    ends = np.cumsum(sizes, dtype=np.int64)
    if len(sizes) != len(ids) or (sizes < 0).any() or not _are_ids(ids, classes):
        raise UncorkError("the mixtures are damaged")
    if len(rows) != len(weights) or len(rows) != (ends[-1] if len(ends) else 0):
        raise UncorkError("the mixtures are damaged")
    for t, stop, size, share in zip(ids.tolist(), ends.tolist(), sizes.tolist(), bulk, strict=True):
        part = slice(stop - size, stop)
        members = np.cumsum(rows[part], dtype=np.int64)
        if not _are_ids(members, classes):
            raise UncorkError(f"the mixture of class {t} names a class that does not exist")
        proofs.mixtures[t] = Mixture(members.astype(np.int32), weights[part], float(share))


def _read_tilts(archive: Any, proofs: Proofs, features: int) -> None:
    ids = archive["tilt_class"]
    inputs = _shaped(archive, "tilt_input", (len(ids), features), np.float32)
    peaks = _shaped(archive, "tilt_peak", (len(ids),), np.float64)
    for t, tilt, peak in zip(ids.tolist(), inputs, peaks.tolist(), strict=True):
        if t not in proofs.mixtures:
            raise UncorkError("a tilt belongs to no mixture")
        proofs.mixtures[t] = replace(proofs.mixtures[t], tilt=tilt, peak=peak)


def _shaped(archive: Any, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    array = archive[name]
    if array.shape != shape or array.dtype != np.dtype(dtype):
        raise UncorkError(
            f"{name} is {array.dtype} {array.shape}: expected {np.dtype(dtype)} {shape}"
        )
    return array


def _are_ids(values: np.ndarray, classes: int) -> bool:
    if values.ndim != 1 or values.dtype.kind not in "iu":
        return False
    return not len(values) or (int(values.min()) >= 0 and int(values.max()) < classes)


def _as_float(numerator: int, denominator: int) -> float:
    try:
        return numerator / denominator
    except OverflowError:
        return math.nan
