"""Silence: classes that must never be first cannot be, by proof, and nobody else loses anything."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from uncork import Ball, Box, Domain, Head, UncorkError, audit
from uncork.domain import Unbounded
from uncork.repair import silenced


def head_of(
    classes: int = 40, features: int = 4, *, bias: bool = True, domain: Domain | None = None,
    dtype: type = np.float32,
) -> Head:  # fmt: skip
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((classes, features)).astype(dtype)
    offset = rng.standard_normal(classes).astype(dtype) if bias else None
    return Head(weight, offset, domain=domain or Box(10))


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("domain", [Box(10), Box(0, 3), Ball(5.0)], ids=str)
def test_none_of_them_is_first_anywhere_and_the_others_still_are(
    domain: Domain, bias: bool
) -> None:
    head = head_of(bias=bias, domain=domain)
    before = audit(head, device="cpu", jobs=1)
    chosen = [*before.argmaxable[:3].tolist(), *before.unargmaxable[:2].tolist()]
    made = silenced(head, chosen, jobs=1)
    after = audit(made.head(head), device="cpu", jobs=1)
    assert set(chosen) <= set(after.unargmaxable.tolist())
    others = np.setdiff1d(before.argmaxable, chosen)
    assert set(others.tolist()) <= set(after.argmaxable.tolist())
    assert not len(after.undecided)


def test_only_their_biases_change_and_no_more_than_they_have_to() -> None:
    head = head_of()
    made = silenced(head, [1, 5], margin=1e-3, jobs=1)
    kept = np.setdiff1d(np.arange(head.classes), [1, 5])
    np.testing.assert_array_equal(made.bias[kept], head.offsets[kept])
    # A hair less, by twice the margin, and one of them is first somewhere again.
    moved = made.classes[made.lowered > 0]
    assert len(moved)
    for t in moved.tolist():
        bias = made.bias.copy()
        bias[t] += 2.5e-3
        again = audit(head.replace(bias=bias), classes=[t], device="cpu", jobs=1)
        assert again.argmaxable.tolist() == [t]


def test_two_silenced_classes_do_not_keep_each_other_down() -> None:
    """Each lies inside the other's reach: silenced one by one, either would lean on the other."""
    corners = np.array([[1, 0], [-1, 0.1], [-1, -0.1], [2, 0.1], [2, -0.1]], dtype=np.float32)
    head = Head(corners, domain=Box(10))
    made = silenced(head, [3, 4], jobs=1)
    assert (made.lowered > 5).all()
    after = audit(made.head(head), device="cpu", jobs=1)
    assert set(after.unargmaxable.tolist()) == {3, 4}


def test_what_lies_below_the_others_anyway_is_left_alone() -> None:
    square = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1], [0, 0]], dtype=np.float32)
    head = Head(square, np.array([0, 0, 0, 0, -50], np.float32), domain=Box(10))
    made = silenced(head, [4], jobs=1)
    assert made.lowered.tolist() == [0.0]
    np.testing.assert_array_equal(made.bias, head.offsets)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_they_stay_behind_in_the_heads_own_type(dtype: type) -> None:
    from uncork.auditing.backend import Backend
    from uncork.auditing.low_precision import leads_in_own_type

    head = head_of(dtype=dtype)
    made = silenced(head, [1, 5, 17], jobs=1)
    changed = made.head(head)
    assert changed.bias is not None
    assert changed.bias.dtype == dtype
    leads = leads_in_own_type(changed, made.classes, made.nearest, Backend(1))
    assert (leads < 0).all()


def test_on_an_infinite_domain_what_is_proposed_is_not_proven() -> None:
    head = head_of(domain=Unbounded(), bias=False)
    on_the_hull = audit(head, device="cpu", jobs=1).argmaxable[:1]
    made = silenced(head, on_the_hull, jobs=1)
    after = audit(made.head(head), classes=on_the_hull, device="cpu", jobs=1)
    assert not len(after.unargmaxable)


def test_somebody_has_to_be_first() -> None:
    with pytest.raises(UncorkError, match="one has to be first"):
        silenced(head_of(3, 2), [0, 1, 2])
    with pytest.raises(UncorkError, match="margin"):
        silenced(head_of(3, 2), [0], margin=-1.0)
