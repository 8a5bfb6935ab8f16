"""Head: values kept exactly as stored, bad input named, a fingerprint of the bytes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from uncork import Ball, Box, Head, Unbounded, UncorkError

TYPES = [
    np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2, np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64,
    np.bool_,
]  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_weights_keep_their_type_and_are_exact_in_float64(dtype: type) -> None:
    weight = np.array([[1, 0, 1], [0, 1, 1]]).astype(dtype)
    head = Head(weight, weight[:, 0])
    assert head.weight.dtype == np.dtype(dtype)
    assert head.bias is not None
    assert head.bias.dtype == np.dtype(dtype)
    assert head.rows(0, 2).dtype == np.float64
    assert head.rows(0, 2).tolist() == [[1, 0, 1], [0, 1, 1]]
    assert head.offsets.tolist() == [1, 0]
    assert (head.classes, head.features) == (2, 3)


def test_nothing_is_copied() -> None:
    weight = np.zeros((3, 2), dtype=np.float32)
    assert np.shares_memory(Head(weight).weight, weight)


def test_big_endian_values_are_the_same_values() -> None:
    weight = np.array([[1.5, 2.0], [3.0, 4.0]])
    swapped = Head(weight.astype(">f8"))
    assert swapped.rows(0, 2).tolist() == weight.tolist()
    assert swapped.fingerprint == Head(weight).fingerprint


def test_torch_tensors_without_an_array_of_their_own() -> None:
    torch = pytest.importorskip("torch")
    values = torch.tensor([[1.0, 2.0], [3.0, 0.5]])
    for name in ("float8_e4m3fn", "float8_e5m2"):
        head = Head(values.to(getattr(torch, name)))
        assert head.dtype == name
        assert head.rows(0, 2).tolist() == values.tolist()
    for other in (values.to_sparse(), values.to("meta")):
        with pytest.raises(UncorkError, match="cannot be read"):
            Head(other)


def test_torch_tensors_are_taken_as_they_are() -> None:
    torch = pytest.importorskip("torch")
    values = torch.tensor([[1.0, 2.0], [3.0, 1e-3]])
    for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16")):
        tensor = values.to(dtype).requires_grad_()
        head = Head(tensor, tensor[:, 0])
        assert head.dtype == name
        assert head.rows(0, 2).tolist() == tensor.detach().double().tolist()


def test_rows_can_be_had_in_blocks_and_by_name() -> None:
    weight = np.arange(14.0).reshape(7, 2)
    head = Head(weight)
    blocks = list(head.blocks(3))
    assert [start for start, _ in blocks] == [0, 3, 6]
    assert np.array_equal(np.concatenate([block for _, block in blocks]), weight)
    assert np.array_equal(head.take(np.array([5, 1])), weight[[5, 1]])


def test_without_a_bias_the_offsets_are_zero() -> None:
    head = Head(np.eye(3))
    assert head.bias is None
    assert head.offsets.tolist() == [0, 0, 0]


def test_the_domain_is_a_box_of_100_unless_given() -> None:
    assert Head(np.eye(2)).domain == Box(100)
    assert Head(np.eye(2), domain=Unbounded()).domain == Unbounded()


def test_labels_name_classes() -> None:
    head = Head(np.eye(2), labels=["cat", "dog"])
    assert [head.label(t) for t in range(2)] == ["cat", "dog"]
    assert Head(np.eye(2)).label(1) == "1"


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.zeros(3), "two dimensions"),
        (np.zeros((2, 2, 2)), "two dimensions"),
        (np.zeros((1, 3)), "at least two classes"),
        (np.zeros((0, 3)), "at least two classes"),
        (np.zeros((3, 0)), "no features"),
        ([[1.0, np.nan], [0.0, 0.0]], r"weight\[0, 1\] is nan"),
        ([[1.0, 0.0], [-np.inf, 0.0]], r"weight\[1, 0\] is -inf"),
        (np.array([["a", "b"], ["c", "d"]]), "weight holds"),
        (np.array([[1j, 0], [0, 1]]), "weight holds complex128"),
        (np.array([[None, 0], [0, 1]]), "weight holds object"),
        (np.zeros((2, 2), dtype=np.longdouble), "weight holds"),
        ([[2**53 + 1, 0], [0, 1]], r"integers beyond 2\*\*53"),
        ([[-(2**53) - 1, 0], [0, 1]], r"integers beyond 2\*\*53"),
        (np.array([[2**63, 0], [0, 1]], dtype=np.uint64), r"integers beyond 2\*\*53"),
    ],
)
def test_a_bad_weight_is_named(weight: object, message: str) -> None:
    with pytest.raises(UncorkError, match=message):
        Head(weight)


def test_the_place_of_a_bad_value_is_named_deep_in_a_large_head() -> None:
    weight = np.zeros((3_000_000, 3), dtype=np.float32)
    weight[2_999_998, 2] = np.inf
    with pytest.raises(UncorkError, match=r"weight\[2999998, 2\] is inf"):
        Head(weight)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bias": np.zeros(2)}, r"bias has shape \(2,\) but there are 3 classes"),
        ({"bias": np.zeros((3, 1))}, r"bias has shape \(3, 1\)"),
        ({"bias": [0.0, np.nan, 0.0]}, r"bias\[1\] is nan"),
        ({"labels": ["a", "b"]}, "2 labels for 3 classes"),
        ({"domain": "box:100"}, "domain must be"),
        ({"domain": Box(np.zeros(2), np.ones(2))}, "2 bounds but the head has 3 features"),
    ],
    ids=str,
)
def test_what_does_not_fit_the_weight_is_named(options: dict, message: str) -> None:
    with pytest.raises(UncorkError, match=message):
        Head(np.eye(3), **options)


def test_a_fingerprint_follows_every_bit_of_weight_and_bias() -> None:
    weight, bias = np.eye(3), np.zeros(3)
    head = Head(weight, bias)
    moved, moved_bias = weight.copy(), bias.copy()
    moved[2, 1] = 5e-324
    moved_bias[1] = -0.0
    others = [
        Head(weight), Head(moved, bias), Head(weight, moved_bias), Head(weight[::-1], bias),
        Head(weight.astype(np.float32), bias), Head(weight, bias.astype(np.float32)),
        Head(np.vstack([weight, [[0, 0, 0]]]), np.zeros(4)),
    ]  # fmt: skip
    prints = [head.fingerprint, *(other.fingerprint for other in others)]
    assert len(set(prints)) == len(prints)
    assert head.fingerprint.startswith("sha256:")


def test_a_fingerprint_says_nothing_of_memory_layout_labels_or_domain() -> None:
    weight = np.arange(12.0).reshape(4, 3)
    head = Head(weight)
    assert Head(np.asfortranarray(weight)).fingerprint == head.fingerprint
    assert Head(np.repeat(weight, 2, axis=0)[::2]).fingerprint == head.fingerprint
    assert head.replace(domain=Ball(1.0), labels=list("abcd")).fingerprint == head.fingerprint


def test_a_copy_changes_only_what_is_named() -> None:
    head = Head(np.eye(2), np.ones(2), ["a", "b"], Box(3), source="here")
    copy = head.replace(bias=None)
    assert copy.bias is None
    assert (copy.labels, copy.domain, copy.source) == (("a", "b"), Box(3), "here")
    with pytest.raises(TypeError, match="a head has no weights"):
        head.replace(weights=np.eye(3))


def test_a_head_prints_its_shape_type_and_domain() -> None:
    assert repr(Head(np.eye(3, dtype=np.float32))) == (
        "Head(3 × 3, float32, no bias, box:-100,100)"
    )


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "int8", "uint16"]
)
def test_the_largest_weight_is_found_in_every_type(dtype: str) -> None:
    kind = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    for values in ([[1.0, 5.0], [3.0, 2.0]], [[-6.0, 5.0], [3.0, 0.0]], [[0.0, -0.0], [0.0, 0.0]]):
        stored = np.array(values)
        stored = (np.abs(stored) if dtype == "uint16" else stored).astype(kind)
        head = Head(stored)
        assert head.largest_weight == np.abs(stored.astype(np.float64)).max()
