"""The proofs of some classes as a file of their own: what travels between machines.

It has the members of a certificate file, but nothing in it is as long as the head has classes: what
a certificate file holds for every class stands here for the classes of the range. Ranges that cover
a head are put together again with `Range.put_into`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from uncork.auditing.proofs.certificate_file import (
    HEADER_EACH,
    KIND,
    NAMES,
    certificate_members,
    content_digest,
    domain_of,
    read_formula,
    read_proofs,
    read_verdicts,
)
from uncork.auditing.proofs.formula import Formula
from uncork.auditing.proofs.proofs import Proofs
from uncork.auditing.proofs.verdict import Verdict
from uncork.auditing.result import Audit
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.own_archive import are_ids, open_archive, write_archive
from uncork.core.reading import reading_from
from uncork.domain.members import array_names

_WHAT = "a range of certificates"
_CLASSES, _ASKED = "range_class", "range_asked"
_Proof = TypeVar("_Proof")
_OF_EVERY_CLASS = ("verdict", "margin", "formula_scale")
# Gives witnesses by another formula than the one in `Proofs` a place there, as inputs.
Translate = Callable[[Formula, np.ndarray, np.ndarray], None]


@dataclass(frozen=True)
class Range:
    """Verdicts on some classes of a head, with their proofs."""

    classes: np.ndarray  # (n,) ids, ascending: those of the range, and first equals of those
    is_asked: np.ndarray  # (n,) whether it is one of the range
    verdicts: np.ndarray  # (n,)
    margins: np.ndarray  # (n,)
    formula: Formula | None
    scales: np.ndarray  # (n,)
    stored: Proofs  # what is stored for single classes; its arrays are empty
    about: Audit  # which head and domain this is about, and how it was decided; decides nothing

    @property
    def asked(self) -> np.ndarray:
        """The classes of the range: (m,) ids, ascending."""
        return np.asarray(self.classes[self.is_asked])

    def put_into(self, proofs: Proofs, translate: Translate) -> None:
        """Add these verdicts and proofs to those of the whole head, `proofs`.

        A witness is stored as a formula over the rows, one for a whole head. Machines of one kind
        compute the same one; what was found with another is given to `translate`, with its formula,
        classes and scales.
        """
        known = self.verdicts != Verdict.UNDECIDED  # of the others another range may know more
        proofs.verdicts[self.classes[known]] = self.verdicts[known]
        proofs.margins[self.classes[known]] = self.margins[known]
        for mine, all_ in (
            (self.stored.inputs, proofs.inputs), (self.stored.exact, proofs.exact),
            (self.stored.mixtures, proofs.mixtures), (self.stored.reasons, proofs.reasons),
        ):  # fmt: skip
            all_.update(mine)  # type: ignore[arg-type]
        if self.formula is None:
            return
        if proofs.formula is None:
            proofs.formula = self.formula
        by_formula = self.scales > 0
        if _equal(self.formula, proofs.formula):
            proofs.scales[self.classes[by_formula]] = self.scales[by_formula]
        elif by_formula.any():
            translate(self.formula, self.classes[by_formula], self.scales[by_formula])


def _equal(one: Formula, other: Formula) -> bool:
    return np.array_equal(one.transform, other.transform) and np.array_equal(
        one.centre, other.centre
    )


def with_first_equals(classes: np.ndarray, groups: list[np.ndarray]) -> np.ndarray:
    """These classes and, for those that have equals, the first of each group: what is proven of a
    group is stored there. Ascending."""
    if not groups:
        return np.unique(classes)
    which = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    touched = np.unique(which[np.isin(np.concatenate(groups), classes)])
    first = np.array([int(groups[k][0]) for k in touched.tolist()], dtype=np.int64)
    return np.union1d(classes, first)


def write_range(audit: Audit, classes: np.ndarray, path: str | os.PathLike[str]) -> None:
    """Write what the audit proves of `classes` (n,) and of the first equals of each."""
    proofs = audit.proofs
    asked = np.asarray(classes, dtype=np.int64)
    classes = with_first_equals(asked, proofs.groups)
    wanted = set(classes.tolist())
    part = Proofs(
        proofs.verdicts,
        proofs.margins,
        proofs.formula,
        proofs.scales,
        _of(proofs.inputs, wanted),
        _of(proofs.exact, wanted),
        _of(proofs.mixtures, wanted),
        [group for group in proofs.groups if int(group[0]) in wanted],
        _of(proofs.reasons, wanted),
    )
    members = certificate_members(replace(audit, proofs=part, asked=None))
    for name in _OF_EVERY_CLASS:
        if name in members:
            members[name] = members[name][classes]
    members[_CLASSES] = np.diff(classes, prepend=0).astype(np.int32)
    members[_ASKED] = np.isin(classes, asked).astype(np.uint8)
    members["digest"] = np.array(content_digest(members))
    write_archive(path, members)


def _of(each: dict[int, _Proof], wanted: set[int]) -> dict[int, _Proof]:
    return {t: one for t, one in each.items() if t in wanted}


def read_range(path: str | os.PathLike[str], head: Head | None = None) -> Range:
    """Read a range back, checking its form; what it claims is for the certifier to check."""
    names = (*NAMES, f"domain_{array_names()}", _CLASSES, _ASKED)
    with open_archive(path, _WHAT, names) as archive:
        if _CLASSES not in archive or "margin" not in archive:
            raise UncorkError(f"not {_WHAT}")
        margins = archive.array("margin", (None,), np.float32)
        count = len(margins)
        header = archive.header(KIND, HEADER_EACH, count)
        features, of = int(header["features"]), int(header["classes"])
        classes = np.cumsum(archive.array(_CLASSES, (count,), np.int32), dtype=np.int64)
        if not are_ids(classes, of) or (np.diff(classes) < 1).any():
            raise UncorkError("the classes of the range are damaged")
        domain = domain_of(archive, header, features)
        stored = Proofs.empty(0)
        read_proofs(archive, header, domain, stored, head)
        # Ranges are many: none stays open as a file.
        stored.inputs = {t: np.array(x) for t, x in stored.inputs.items()}
        stored.mixtures = {
            t: replace(
                m, weights=np.array(m.weights), tilt=None if m.tilt is None else np.array(m.tilt)
            )
            for t, m in stored.mixtures.items()
        }
        about = Audit(
            Proofs.empty(0), str(header["fingerprint"]), domain, features,
            str(header["dtype"]), bool(header["bias"]), source=str(header["source"]),
            approximate=bool(header["approximate"]), algorithm=str(header["algorithm"]),
            device=str(header["device"]), seconds=dict(header["seconds"]),
            reading=reading_from(header.get("reading")),
        )  # fmt: skip
        is_asked = archive.array(_ASKED, (count,), np.uint8) > 0
        return Range(
            classes, is_asked, read_verdicts(archive, count), margins.astype(np.float64),
            *read_formula(archive, domain, features, count), stored, about,
        )  # fmt: skip
