"""The file of a label audit: every verdict with its proof. Plain arrays in a zip, no pickle."""

from __future__ import annotations

import json
import os
import zipfile
from fractions import Fraction
from typing import Any

import numpy as np

from uncork.auditing.certify.digits import WholeNumbers
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.own_archive import OwnArchive, open_archive, write_archive
from uncork.domain.members import array_names, domain_from, members_of
from uncork.labels.result import LabelAudit, Proof, SetVerdict
from uncork.labels.sets import LabelSets

_KIND = "uncork label set certificates"
_VERSION = 1
_WHAT = "a file of uncork labels --certificates"
_NAMES = (
    "header", "thresholds", "set_(verdict|margin|partial|count)", "(on|off)_(size|label)",
    "(single|double|tilt)_(set|input)", "tilt_target", "mixture_(set|size|label|weight)",
)  # fmt: skip


def holds_label_sets(path: str | os.PathLike[str]) -> bool:
    """Whether a file says that it holds certificates of label sets."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "set_verdict.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def write_label_audit(audit: LabelAudit, path: str | os.PathLike[str]) -> None:
    """Write the file whole or not at all."""
    decided = np.flatnonzero(audit.verdicts != SetVerdict.UNDECIDED)
    if len(decided) and (not audit.proofs or any(audit.proofs[k] is None for k in decided)):
        raise UncorkError("the proofs were not kept: decide the sets again with keep=True")
    parts, domain_arrays = members_of(audit.domain)
    latent = audit.domain.affine(audit.features).latent
    inputs: dict[str, list[tuple[int, np.ndarray]]] = {"single": [], "double": [], "tilt": []}
    targets, mixtures = [], []
    exact: dict[str, list[str]] = {}
    whole: dict[str, list[str]] = {}
    for k in decided.tolist():
        proof = audit.proofs[k]
        assert proof is not None
        if proof.exact is not None:
            exact[str(k)] = [f"{v.numerator:x}/{v.denominator:x}" for v in proof.exact]
        elif proof.u is not None and audit.verdicts[k] == SetVerdict.INFEASIBLE:
            inputs["tilt"].append((k, proof.u))
            targets.append(proof.target)
        elif proof.u is not None:
            inputs["single" if proof.u.dtype == np.float32 else "double"].append((k, proof.u))
        else:
            mixtures.append((k, proof))
            if proof.whole is not None:
                whole[str(k)] = [f"{n:x}" for n in proof.whole]
    header = {
        "kind": _KIND, "version": _VERSION, "fingerprint": audit.fingerprint, "domain": parts,
        "labels": audit.sets.labels, "features": audit.features, "exact": exact, "whole": whole,
        "source": audit.source,
        "reasons": {str(k): why for k, why in audit.reasons.items()},
    }  # fmt: skip
    sets = audit.sets
    members: dict[str, Any] = {
        "header": np.array(json.dumps(header)), "thresholds": audit.thresholds,
        "set_verdict": audit.verdicts.astype(np.int8), "set_margin": audit.margins,
        "set_partial": sets.partial.astype(np.uint8), "set_count": sets.counts,
        "on_size": sets.sizes, "on_label": _joined(sets.on, np.int64),
        "off_size": np.array([len(ids) for ids in sets.off], dtype=np.int64),
        "off_label": _joined(sets.off, np.int64),
        "tilt_target": np.array(targets, dtype=np.float64),
        "mixture_set": np.array([k for k, _ in mixtures], dtype=np.int64),
        "mixture_size": np.array([len(_labels(p)) for _, p in mixtures], dtype=np.int64),
        "mixture_label": _joined([_labels(p) for _, p in mixtures], np.int64),
        "mixture_weight": _joined([p.weights for _, p in mixtures], np.float64),
        **{f"domain_{name}": array for name, array in domain_arrays.items()},
    }  # fmt: skip
    for name, held in inputs.items():
        kind = np.float32 if name == "single" else np.float64
        members[f"{name}_set"] = np.array([k for k, _ in held], dtype=np.int64)
        stacked = np.array([u for _, u in held], dtype=kind)
        members[f"{name}_input"] = stacked.reshape(len(held), latent)
    write_archive(path, {name: np.asarray(array) for name, array in members.items()})


def read_label_audit(path: str | os.PathLike[str], head: Head) -> LabelAudit:
    """Read a file back, checking its form against the head; what it claims is still unproven."""
    with open_archive(path, _WHAT, (*_NAMES, f"domain_{array_names()}")) as archive:
        return _read(archive, head)


def _read(archive: OwnArchive, head: Head) -> LabelAudit:
    header = archive.header(_KIND, 64, archive.count("set_verdict"))
    if header["version"] != _VERSION:
        raise UncorkError(f"version {header['version']} is not known to this uncork")
    if (header["labels"], header["features"]) != (head.classes, head.features):
        raise UncorkError(
            f"it is about a head of {header['labels']} labels × {header['features']} features, "
            f"and this one has {head.classes} × {head.features}"
        )
    domain = domain_from(header["domain"], archive, prefix="domain_")
    domain.check(head.features)
    latent = domain.affine(head.features).latent
    count = archive.count("set_verdict")
    verdicts = archive.array("set_verdict", (count,), np.int8)
    if not np.isin(verdicts, [int(v) for v in SetVerdict]).all():
        raise UncorkError("set_verdict holds an unknown verdict")
    partial = archive.array("set_partial", (count,), np.uint8)
    on = _lists(archive, "on", count, head.classes)
    off = _lists(archive, "off", count, head.classes)
    counts = archive.array("set_count", (count,), np.int64)
    sets = LabelSets(head.classes, on, off, partial.astype(bool), counts)
    proofs: list[Proof | None] = [None] * count
    for name, kind in (("single", np.float32), ("double", np.float64), ("tilt", np.float64)):
        inputs = archive.mapped(f"{name}_input", (None, latent), kind)
        ids = archive.ids(f"{name}_set", len(inputs), count)
        targets = np.zeros(len(ids))
        if name == "tilt":
            targets = archive.array("tilt_target", (len(ids),), np.float64)
        for k, u, target in zip(ids.tolist(), inputs, targets.tolist(), strict=True):
            proofs[k] = Proof(u=u, target=target)
    digits = WholeNumbers(domain, head.features, head)
    for k, whole in header["exact"].items():
        proofs[_id(k, count)] = Proof(exact=tuple(_fraction(text, digits) for text in whole))
    ids = archive.ids("mixture_set", None, count)
    labels = _lists(archive, "mixture", len(ids), head.classes)
    weights = archive.array("mixture_weight", (sum(map(len, labels)),), np.float64)
    ends = np.cumsum([len(part) for part in labels]) if len(labels) else np.zeros(0, int)
    for k, part, end in zip(ids.tolist(), labels, ends.tolist(), strict=True):
        integers = header["whole"].get(str(k))
        proofs[k] = Proof(
            labels=part, weights=weights[end - len(part) : end],
            whole=None if integers is None else tuple(map(digits, integers)),
        )  # fmt: skip
    reasons = {_id(k, count): str(why) for k, why in header["reasons"].items()}
    return LabelAudit(
        sets, verdicts, archive.array("set_margin", (count,), np.float64),
        str(header["fingerprint"]), archive.array("thresholds", (head.classes,), np.float64),
        domain, head.features, proofs, reasons, head.labels, str(header["source"]),
        reading=head.reading, head=head,
    )  # fmt: skip


def _id(text: str, count: int) -> int:
    if not (text.isdecimal() and int(text) < count):
        raise UncorkError("the header names a set that does not exist")
    return int(text)


def _fraction(text: str, digits: WholeNumbers) -> Fraction:
    top, _, bottom = text.partition("/")
    below = digits(bottom)
    if below <= 0:
        raise UncorkError("an exact input is damaged")
    return Fraction(digits(top), below)


def _lists(archive: OwnArchive, name: str, count: int, labels: int) -> tuple[np.ndarray, ...]:
    """Lists of label numbers that stand one after another."""
    sizes = archive.array(f"{name}_size", (count,), np.int64)
    if (sizes < 0).any() or (sizes > labels).any():
        raise UncorkError(f"{name}_size is damaged")
    ids = archive.ids(f"{name}_label", int(sizes.sum()), labels)
    ends = np.cumsum(sizes).tolist()
    return tuple(ids[end - size : end] for end, size in zip(ends, sizes.tolist(), strict=True))


def _labels(proof: Proof) -> np.ndarray:
    assert proof.labels is not None
    return proof.labels


def _joined(parts: Any, dtype: Any) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *(np.asarray(p, dtype) for p in parts)])
