"""The certificate file: plain arrays in a zip, no pickle; see docs/certificates.md."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from uncork.auditing.certify.digits import WholeNumbers, most_named
from uncork.auditing.proofs.formula import Formula
from uncork.auditing.proofs.proofs import Proofs
from uncork.auditing.proofs.verdict import Mixture, Verdict, Witness
from uncork.auditing.result import Audit
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.items import Items, check_metric
from uncork.core.own_archive import OwnArchive, are_ids, open_archive, write_archive
from uncork.core.reading import reading_from
from uncork.domain import Domain, parse_domain
from uncork.domain.file import narrowest
from uncork.domain.members import array_names, domain_from, members_of

VERSION = 3
_PLAIN = 1  # the version written where nothing of what came later is needed
_IMAGE = 2  # adds the arrays of a domain that is an image
_OWN_VECTORS = 3  # adds a metric other than inner products, whose witnesses are the items' vectors
KIND = "uncork certificates"
_WHAT = "a certificate file"
NAMES = (
    "header", "verdict", "margin", "group_(size|class)", "formula_(transform|centre|scale)",
    "witness(32|64)_(class|input)", "mixture(32|64)_(class|size|bulk|row|weight)",
    "tilt_(class|input|peak)", "own_scale", "digest",
)  # fmt: skip
HEADER_EACH = 256  # characters of the header for one class: why it is undecided, that it was asked
_DIGEST_LENGTH = 64
_DIGEST_BYTES = 16 << 20


def write_certificates(audit: Audit, path: str | os.PathLike[str]) -> None:
    """Write the file whole or not at all."""
    write_archive(path, certificate_members(audit))


def certificate_members(audit: Audit) -> dict[str, np.ndarray]:
    """The arrays of an audit's file by name."""
    proofs = audit.proofs
    affine = audit.domain.affine(audit.features)
    description, arrays = members_of(audit.domain) if affine.steps else (None, {})
    header = {
        "kind": KIND, "version": _version(audit),
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
    if audit.metric != "inner":
        header["metric"] = audit.metric
    members = {
        "header": np.array(json.dumps(header, ensure_ascii=True)),
        "verdict": proofs.verdicts.astype(np.uint8),
        "margin": _towards_zero(proofs.margins),
        "group_class": np.array([i for g in proofs.groups for i in g.tolist()], dtype=np.int32),
        "group_size": np.array([len(g) for g in proofs.groups], dtype=np.int32),
        **{f"domain_{name}": narrowest(array) for name, array in arrays.items()},
    }
    if audit.metric != "inner":
        members["own_scale"] = proofs.scales
    if proofs.formula is not None and (proofs.scales > 0).any():
        members["formula_transform"] = proofs.formula.transform
        members["formula_centre"] = proofs.formula.centre
        members["formula_scale"] = proofs.scales
    for bits in (32, 64):
        dtype = np.dtype(f"float{bits}")
        stored = sorted(t for t, x in proofs.inputs.items() if x.dtype == dtype)
        rows = [proofs.inputs[t] for t in stored]
        members[f"witness{bits}_class"] = np.array(stored, dtype=np.int32)
        members[f"witness{bits}_input"] = np.array(rows, dtype=dtype).reshape(-1, affine.latent)
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


def _version(audit: Audit) -> int:
    if audit.metric != "inner":
        return _OWN_VECTORS
    return _IMAGE if audit.domain.affine(audit.features).steps else _PLAIN


def content_digest(members: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over names, types, shapes and bytes of every member but the digest itself.

    It says whether a file is still the one that was written, nothing about who wrote it.
    """
    digest = hashlib.sha256(f"{KIND} {_PLAIN}".encode())
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


def read_certificates(path: str | os.PathLike[str], head: Head | Items | None = None) -> Audit:
    """Read a file back, checking its form; what it claims is for the certifier to check."""
    with open_archive(path, _WHAT, (*NAMES, f"domain_{array_names()}")) as archive:
        if isinstance(head, Items) and head.metric == "inner":
            head = head.head()
        return _read(archive, head)


def _read(archive: OwnArchive, known: Head | Items | None) -> Audit:
    # Floats are not packed: a file of that many classes is at least as long as this array.
    if "margin" not in archive:
        raise UncorkError(f"not {_WHAT}")
    margins = archive.mapped("margin", (None,), np.float32)
    header = archive.header(KIND, HEADER_EACH, len(margins))
    if header["version"] not in (_PLAIN, _IMAGE, _OWN_VECTORS):
        raise UncorkError(
            f"certificates of version {header['version']}; this uncork reads versions up to "
            f"{VERSION}"
        )
    classes, features = int(header["classes"]), int(header["features"])
    if classes != len(margins):
        raise UncorkError(f"the header says {classes:,} classes, and the file has {len(margins):,}")
    domain = domain_of(archive, header, features)
    head = known if isinstance(known, Head) else None
    proofs = Proofs.empty(classes)
    proofs.verdicts = read_verdicts(archive, classes).copy()
    proofs.margins = np.asarray(margins, dtype=np.float64)
    formula, scales = read_formula(archive, domain, features, classes)
    if formula is not None:
        proofs.formula, proofs.scales = formula, scales.copy()
    read_proofs(archive, header, domain, proofs, head)
    asked = header["asked"]
    if not are_ids(np.array(asked or [], dtype=np.int64), classes):
        raise UncorkError("the header names a class that does not exist")
    digest = archive.text("digest", _DIGEST_LENGTH)
    altered = digest != content_digest(_Contents(archive))
    return Audit(
        proofs, str(header["fingerprint"]), domain, features,
        str(header["dtype"]), bool(header["bias"]),
        labels=None if known is None else known.labels, source=str(header["source"]), head=head,
        asked=None if asked is None else np.array(asked, dtype=np.int64),
        approximate=bool(header["approximate"]), algorithm=str(header["algorithm"]),
        device=str(header["device"]), seconds=dict(header["seconds"]),
        low_precision=header["low_precision"],
        altered=altered, reading=reading_from(header.get("reading")),
        metric=_metric(archive, header, proofs),
        items=known if isinstance(known, Items) else None,
    )  # fmt: skip


def read_verdicts(archive: OwnArchive, count: int) -> np.ndarray:
    """So many verdicts: (count,)."""
    verdicts = archive.array("verdict", (count,), np.uint8)
    if verdicts.max(initial=0) > max(Verdict):
        raise UncorkError("verdict holds a value that is not a verdict")
    return verdicts


def read_formula(
    archive: OwnArchive, domain: Domain, features: int, count: int
) -> tuple[Formula | None, np.ndarray]:
    """The formula of witnesses that are not stored, if there is one, and their scales: (count,)."""
    if "formula_scale" not in archive:
        return None, np.zeros(count, dtype=np.float32)
    latent = domain.affine(features).latent
    formula = Formula(
        archive.array("formula_transform", (features, latent), np.float32),
        archive.array("formula_centre", (features,), np.float64),
    )
    return formula, archive.array("formula_scale", (count,), np.float32)


def read_proofs(
    archive: OwnArchive,
    header: dict[str, Any],
    domain: Domain,
    proofs: Proofs,
    head: Head | None,
) -> None:
    """Everything that is stored for single classes: groups, inputs, mixtures, reasons."""
    classes, features = int(header["classes"]), int(header["features"])
    latent = domain.affine(features).latent
    if archive.count("group_class") > classes:
        raise UncorkError("there are more equal classes than classes")
    members = archive.array("group_class", (None,), np.int32)
    sizes = archive.array("group_size", (None,), np.int32)
    if int(sizes.sum()) != len(members) or (sizes < 2).any() or not are_ids(members, classes):
        raise UncorkError("the groups of equal classes are damaged")
    proofs.groups = np.split(members.astype(np.int64), np.cumsum(sizes)[:-1]) if len(sizes) else []
    for bits in (32, 64):
        _read_inputs(archive, proofs, bits, classes, latent)
        _read_mixtures(archive, proofs, bits, classes)
    _read_tilts(archive, proofs, features)
    named = [*header["exact_witnesses"], *header["exact_mixtures"], *header["reasons"]]
    if not are_ids(np.array([int(t) for t in named], dtype=np.int64), classes):
        raise UncorkError("the header names a class that does not exist")
    whole_number = WholeNumbers(domain, features, head)
    for t, (numerators, denominator) in header["exact_witnesses"].items():
        if len(numerators) != latent:
            raise UncorkError("an exact witness is damaged")
        whole, scale = tuple(map(whole_number, numerators)), whole_number(denominator)
        if scale <= 0:
            raise UncorkError("an exact witness is damaged")
        image = np.array([_as_float(n, scale) for n in whole])
        proofs.exact[int(t)] = Witness(image, whole, scale)
    for t, (ids, weights) in header["exact_mixtures"].items():
        if len(ids) > most_named(latent):
            raise UncorkError(
                f"the exact mixture of class {t} names {len(ids):,} classes: exact arithmetic "
                f"names at most {most_named(latent):,} for such a head"
            )
        integers = tuple(map(whole_number, weights))
        if len(ids) != len(integers) or not are_ids(np.array(ids, dtype=np.int64), classes):
            raise UncorkError("an exact mixture is damaged")
        total = sum(integers) or 1
        proofs.mixtures[int(t)] = Mixture(
            np.array(ids, dtype=np.int32),
            np.array([_as_float(w, total) for w in integers]),
            0.0,
            integers,
        )
    proofs.reasons = {int(t): str(why) for t, why in header["reasons"].items()}


def _metric(archive: OwnArchive, header: dict[str, Any], proofs: Proofs) -> str:
    """How items are compared; under another metric than inner products, the scales of their own
    vectors are the witnesses."""
    if header["version"] != _OWN_VECTORS:
        return "inner"
    metric = check_metric(str(header["metric"]))
    if metric == "inner":
        raise UncorkError("certificates of this version are of cosine or Euclidean distance")
    scales = archive.array("own_scale", (len(proofs.verdicts),), np.float32)
    if proofs.inputs or proofs.exact or proofs.mixtures or proofs.formula is not None:
        raise UncorkError("the witnesses of these items are their own vectors, and nothing else")
    proofs.scales = scales.copy()
    return metric


def domain_of(archive: OwnArchive, header: dict[str, Any], features: int) -> Domain:
    """The domain: plain ones by their text, images by their arrays, which must be those that the
    text names."""
    if header["version"] != _IMAGE:
        text = str(header["domain"])
        if text.lstrip().startswith("@"):
            raise UncorkError("the domain of certificates cannot be another file")
        domain = parse_domain(text)
    else:
        domain = domain_from(header["domain_parts"], archive, prefix="domain_")
        if domain.spec() != header["domain"]:
            raise UncorkError("the domain is not the one that the header names")
    domain.check(features)
    return domain


def _read_inputs(archive: OwnArchive, proofs: Proofs, bits: int, classes: int, latent: int) -> None:
    inputs = archive.mapped(f"witness{bits}_input", (None, latent), np.dtype(f"float{bits}"))
    ids = archive.array(f"witness{bits}_class", (len(inputs),), np.int32)
    if not are_ids(ids, classes):
        raise UncorkError("a witness names a class that does not exist")
    proofs.inputs.update(zip(ids.tolist(), inputs, strict=True))


def _read_mixtures(archive: OwnArchive, proofs: Proofs, bits: int, classes: int) -> None:
    bulk = archive.array(f"mixture{bits}_bulk", (None,), np.float64)
    weights = archive.mapped(f"mixture{bits}_weight", (None,), np.dtype(f"float{bits}"))
    ids = archive.array(f"mixture{bits}_class", (len(bulk),), np.int32)
    sizes = archive.array(f"mixture{bits}_size", (len(bulk),), np.int32)
    rows = archive.array(f"mixture{bits}_row", (len(weights),), np.int32)
    ends = np.cumsum(sizes, dtype=np.int64)
    if (sizes < 0).any() or not are_ids(ids, classes):
        raise UncorkError("the mixtures are damaged")
    if len(rows) != (ends[-1] if len(ends) else 0):
        raise UncorkError("the mixtures are damaged")
    for t, stop, size, share in zip(ids.tolist(), ends.tolist(), sizes.tolist(), bulk, strict=True):
        part = slice(stop - size, stop)
        members = np.cumsum(rows[part], dtype=np.int64)
        if not are_ids(members, classes):
            raise UncorkError(f"the mixture of class {t} names a class that does not exist")
        proofs.mixtures[t] = Mixture(members.astype(np.int32), weights[part], float(share))


def _read_tilts(archive: OwnArchive, proofs: Proofs, features: int) -> None:
    inputs = archive.mapped("tilt_input", (None, features), np.float32)
    ids = archive.array("tilt_class", (len(inputs),), np.int32)
    peaks = archive.array("tilt_peak", (len(inputs),), np.float64)
    for t, tilt, peak in zip(ids.tolist(), inputs, peaks.tolist(), strict=True):
        if t not in proofs.mixtures:
            raise UncorkError("a tilt belongs to no mixture")
        proofs.mixtures[t] = replace(proofs.mixtures[t], tilt=tilt, peak=peak)


class _Contents(Mapping[str, np.ndarray]):
    """The members for their digest: one at a time, mapped where they can be."""

    def __init__(self, archive: OwnArchive) -> None:
        self.archive = archive

    def __getitem__(self, name: str) -> np.ndarray:
        if name == "header":
            return np.array(self.archive.text(name, sys.maxsize))
        return self.archive.mapped(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.archive)

    def __len__(self) -> int:
        return len(self.archive)


def _as_float(numerator: int, denominator: int) -> float:
    try:
        return numerator / denominator
    except OverflowError:
        return math.nan
