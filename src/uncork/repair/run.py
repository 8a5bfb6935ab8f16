"""`repair`: the smallest edit of a trained head that makes every class argmaxable, or those chosen.

A class is argmaxable iff its plane z_t stands above all others at some input, so the biases at
which every class touches the surface max_i z_i are those of a convex function of the rows:
−b_i = φ(w_i), with the inputs as slopes. The smallest change of the bias is a convex regression,
and all of its constraints are linear in biases and inputs together.

    ∞-norm   Raise each class below the surface by its own δ_t (`reach.surface`) and no other: no
             class stands above the surface, so none is buried. A common constant is free, and
             with it the largest change is max δ_t/2. No change does with less: at the mixture that
             proves δ_t, class t must gain δ_t on an average of others, so one of them moves by half
             of it (`bias`).
    1-norm   Lowering one class may free hundreds. `smallest_change` begins with one input for all
             unargmaxable classes, then alternates between a linear programme over the mixtures met
             so far, a lower bound, and raising what still lies below, an upper one.
    rows     Rows move instead, as little as is found (`rows`).

These are infima: touching is not yet leading. A little more makes every class with a row of its own
first somewhere, by more than the model's own type rounds away unless another margin is asked for
(`margin`). Where rows lie so near to one another that no modest bias does that, they are moved a
little as well. Equal rows tie whatever is done. Every class is proven anew on the weights and
biases as they are stored (`proven`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from uncork.auditing import Audit
from uncork.auditing.run import check_time_limit
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.core.progress import Progress, progress_bar
from uncork.reach.limits import check_sizes
from uncork.repair.bias import raise_biases
from uncork.repair.job import Options, Repair, RepairJob, audit_of
from uncork.repair.margin import check_margin
from uncork.repair.rows import move_rows

HOW = {"bias": raise_biases, "row": move_rows}
NORMS = ("inf", "1")


def repair(
    head: Head,
    classes: Sequence[int] | np.ndarray | None = None,
    *,
    how: str = "bias",
    norm: str = "inf",
    margin: float | None = None,
    audit: Audit | None = None,
    device: str = "auto",
    jobs: int | None = None,
    progress: bool | Progress = False,
    time_limit: float | None = None,
) -> Repair:
    """The smallest edit found that makes all classes argmaxable, or those named, and loses none.

    how         "bias": biases change. "row": rows of unargmaxable classes move, nothing else
    norm        "inf" or "1": what of the bias's change is to be small
    margin      by how much freed classes are to lead, in logits; None: by what the head's own type
                resolves, for which rows that crowd are moved a little; 0: by anything at all
    audit       of this head, if there is one: it saves making it
    time_limit  seconds for the search; what it left is in `left`
    """
    if how not in HOW:
        raise UncorkError(f"how {how!r} is not known: expected {' or '.join(HOW)}")
    if norm not in NORMS:
        raise UncorkError(f"norm {norm!r} is not known: expected {' or '.join(NORMS)}")
    check_margin(margin)
    check_time_limit(time_limit)
    check_sizes(head)
    options = Options(how, norm, margin, device, jobs, time_limit)
    with progress_bar(progress) as bar, np.errstate(all="ignore"):
        known = audit_of(head, audit, jobs, device, bar)
        return HOW[how](RepairJob(head, known, classes, options, bar))
