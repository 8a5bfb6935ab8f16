"""The ranges of a head put together again, as one audit with every proof in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from uncork.auditing.certify.certifier import Certifier
from uncork.auditing.certify.products import Device
from uncork.auditing.proofs.formula import Formula
from uncork.auditing.proofs.proofs import Proofs
from uncork.auditing.proofs.range_file import Range
from uncork.auditing.proofs.verdict import Verdict
from uncork.auditing.result import Audit
from uncork.core.head import Head
from uncork.domain import Domain


def join(
    parts: Iterable[Range],
    classes: int,
    asked: np.ndarray | None,
    rows: Callable[[], Head],
) -> Audit:
    """One audit of a head of `classes` classes with the verdicts and proofs of all ranges.

    `asked` are the ids that were asked for, None for all; `rows` is called where machines of
    several kinds found witnesses by several formulas, which the head's rows then turn into inputs.
    """
    proofs = Proofs.empty(classes)
    seconds: dict[str, float] = {}
    devices: list[str] = []
    groups: dict[int, np.ndarray] = {}
    about: Audit | None = None
    for part in parts:
        about = part.about if about is None else about
        groups.update({int(group[0]): group for group in part.stored.groups})
        part.put_into(proofs, _Translation(proofs, part.about.domain, groups, rows))
        for stage, value in part.about.seconds.items():
            seconds[stage] = seconds.get(stage, 0.0) + value
        devices.append(part.about.device)
    assert about is not None
    proofs.groups = [groups[first] for first in sorted(groups)]
    proofs.set_tied()
    for t in [t for t in proofs.reasons if proofs.verdicts[t] != Verdict.UNDECIDED]:
        del proofs.reasons[t]
    return Audit(
        proofs,
        about.fingerprint,
        about.domain,
        about.features,
        about.dtype,
        about.has_bias,
        source=about.source,
        asked=asked,
        approximate=about.approximate,
        algorithm=about.algorithm,
        device=", ".join(sorted(set(devices))),
        seconds=seconds,
        proven=bool((proofs.verdicts != Verdict.UNDECIDED).any()),
        reading=about.reading,
    )


class _Translation:
    """Witnesses by another formula, written down as inputs where the certifier accepts those."""

    def __init__(
        self,
        proofs: Proofs,
        domain: Domain,
        groups: dict[int, np.ndarray],
        rows: Callable[[], Head],
    ) -> None:
        self.proofs, self.domain, self.groups, self.rows = proofs, domain, groups, rows

    def __call__(self, formula: Formula, classes: np.ndarray, scales: np.ndarray) -> None:
        head, device = self.rows(), Device()
        certifier = Certifier(head, self.domain, device)
        inputs = formula.inputs(head, classes, scales, device)
        equals = {int(i): group for group in self.groups.values() for i in group.tolist()}
        margins = certifier.witnesses(classes, inputs, equals)
        for t, x, margin in zip(classes.tolist(), inputs, margins.tolist(), strict=True):
            if margin > 0:
                tied = self.proofs.verdicts[t] == Verdict.TIED
                stored = np.asarray(x, dtype=np.float32)[None]
                self.proofs.set_inputs(np.array([t]), stored, np.array([margin]))
                if tied:
                    self.proofs.verdicts[t] = Verdict.TIED
            else:
                self.proofs.verdicts[t] = Verdict.UNDECIDED
                self.proofs.reasons[t] = "another machine's witness does not hold on this one"
