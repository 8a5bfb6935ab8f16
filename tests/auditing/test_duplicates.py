"""Classes that are the same function are found, and only those."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from small_heads import quick
from uncork import Head, RMSNorm, Verdict, audit
from uncork.auditing import duplicates
from uncork.auditing.backend import TorchBackend
from uncork.auditing.certify.products import Device
from uncork.auditing.duplicates import equal_classes
from uncork.auditing.folded import searched


def groups(head: Head) -> list[list[int]]:
    return [group.tolist() for group in equal_classes(head)]


def test_equal_rows_with_equal_bias_are_a_group() -> None:
    weight = [[1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [5.0, 6.0], [3.0, 4.0], [1.0, 2.0]]
    assert groups(Head(weight)) == [[0, 2, 5], [1, 4]]
    assert groups(Head(weight, [0.0, 1.0, 0.0, 1.0, 2.0, 1.0])) == [[0, 2]]


def test_minus_zero_equals_zero() -> None:
    assert groups(Head([[0.0, 1.0], [-0.0, 1.0]])) == [[0, 1]]
    assert groups(Head([[1.0], [1.0]], [0.0, -0.0])) == [[0, 1]]


def test_rows_an_ulp_apart_are_not_equal() -> None:
    assert groups(Head([[1.0, 1.0], [1.0, np.nextafter(1.0, 2.0)]])) == []
    assert groups(Head([[0.0], [5e-324]])) == []
    assert groups(Head([[1.0], [1.0]], [0.0, 5e-324])) == []


def test_features_swapped_between_rows_are_not_equal() -> None:
    assert groups(Head([[1.0, 2.0], [2.0, 1.0]])) == []


@pytest.mark.parametrize(
    "dtype", [np.int8, np.float16, np.float32, ml_dtypes.bfloat16, np.int64], ids=str
)
def test_equal_rows_are_found_in_every_type(dtype: type) -> None:
    weight = np.array([[1, 2], [3, 4], [1, 2]]).astype(dtype)
    assert groups(Head(weight)) == [[0, 2]]


@quick(200)
@given(seed=st.integers(0, 2**32), classes=st.integers(2, 40), values=st.integers(1, 4))
def test_groups_are_those_of_a_plain_comparison(seed: int, classes: int, values: int) -> None:
    rng = np.random.default_rng(seed)
    head = Head(rng.integers(0, values, (classes, 2)) / 3, rng.integers(0, 2, classes) / 3)
    rows = np.column_stack([head.weight, head.offsets]).tolist()
    plain = [
        [i for i, other in enumerate(rows) if other == row]
        for t, row in enumerate(rows)
        if row not in rows[:t]
    ]
    assert groups(head) == [group for group in plain if len(group) > 1]


def test_equal_rows_far_apart_in_a_large_head_are_found() -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((10_000, 4)).astype(np.float32)
    weight[9_999] = weight[0]
    weight[[5_000, 4_095, 4_096]] = weight[17]
    assert groups(Head(weight)) == [[0, 9_999], [17, 4_095, 4_096, 5_000]]


def test_a_group_on_the_hull_is_tied_and_one_inside_is_lost() -> None:
    weight = [[1.0, 0.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    found = audit(Head(weight), device="cpu", jobs=1)
    assert found.tied.tolist() == [0, 3]
    assert found.unargmaxable.tolist() == [4, 5]
    assert found.argmaxable.tolist() == [1, 2]
    x = found.witness(3)
    assert x is not None
    assert np.array_equal(x, found.witness(0))
    logits = np.array(weight) @ x
    assert logits[0] == logits[3] > np.delete(logits, [0, 3]).max()
    assert found.margin(0) == found.margin(3) > 0


def test_of_equal_rows_the_largest_bias_decides() -> None:
    found = audit(Head([[1.0], [1.0], [1.0], [-1.0]], [0.0, 1.0, 1.0, 0.0]), device="cpu", jobs=1)
    assert list(found.verdicts) == [
        Verdict.UNARGMAXABLE, Verdict.TIED, Verdict.TIED, Verdict.ARGMAXABLE,
    ]  # fmt: skip


def test_classes_that_inputs_cannot_tell_apart_are_equal_as_these_see_them_on_torch_too() -> None:
    backend = pytest.importorskip("torch") and TorchBackend("cpu")
    weight = np.arange(40.0).reshape(10, 4)
    weight[[2, 5, 7]] = weight[1]
    weight[[2, 5], 3] = [100.0, -100.0]  # where the gain is zero
    domain = RMSNorm(np.array([1.0, 2.0, 0.5, 0.0]))
    for device in (Device(), backend):
        folded = searched(Head(weight), domain.affine(4), device)
        assert [g.tolist() for g in equal_classes(folded, device)] == [[1, 2, 5, 7]]
        assert [g.tolist() for g in equal_classes(Head(weight), device)] == [[1, 7]]


def test_rows_whose_keys_agree_by_accident_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "_keys", lambda rows, bias: np.zeros(len(rows), np.uint64))
    weight = [[1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [5.0, 6.0], [3.0, 4.0], [1.0, 2.0]]
    assert groups(Head(weight)) == [[0, 2, 5], [1, 4]]
    assert groups(Head(weight, [0.0, 1.0, 0.0, 1.0, 2.0, 1.0])) == [[0, 2]]
