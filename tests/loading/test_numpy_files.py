"""NumPy files: what is found by name, what is refused."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from uncork import Unbounded, UncorkError
from uncork.loading import AmbiguousError, describe, find, load

W = np.arange(12, dtype=np.float32).reshape(4, 3)  # 4 classes, 3 features
B = np.array([1, 2, 3, 4], dtype=np.float32)


def header(text: str) -> bytes:
    """The bytes of an .npy file with any header at all."""
    body = text.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(body)) + body


def zipped(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize(
    ("weight", "bias"),
    [
        ("weight", "bias"), ("W", "b"), ("lm_head.weight", "lm_head.bias"),
        ("classifier.weight", "classifier.bias"), ("model.lm_head.weight", "model.lm_head.bias"),
        ("coef_", "intercept_"), ("anything", None),
        ("cls.predictions.decoder.weight", "cls.predictions.bias"),
        ("lm_head.decoder.weight", "lm_head.bias"),
        ("Wemb", "decoder_ff_logit_out_b"), ("Wemb_dec", "ff_logit_b"),
        ("decoder_ff_logit_out_Wt", "decoder_ff_logit_out_b"),
    ],
)  # fmt: skip
def test_common_names_are_found(tmp_path: Path, weight: str, bias: str | None) -> None:
    arrays = {weight: W} | ({bias: B.reshape(1, 4)} if bias else {})
    np.savez(tmp_path / "m.npz", **arrays)
    found = find(tmp_path / "m.npz")
    np.testing.assert_array_equal(found.head.weight, W)
    assert found.bias_name == bias
    if bias:
        np.testing.assert_array_equal(found.head.bias, B)


@pytest.mark.parametrize("weight", ["ff_logit_W", "decoder_ff_logit_out_W", "kernel"])
def test_weights_known_to_hold_classes_as_columns_are_turned(tmp_path: Path, weight: str) -> None:
    bias = "bias" if weight == "kernel" else weight.removesuffix("W") + "b"
    np.savez(tmp_path / "m.npz", **{weight: W.T, bias: B})
    for head in (load(tmp_path / "m.npz"), load(tmp_path / "m.npz", weight=weight)):
        np.testing.assert_array_equal(head.weight, W)
        np.testing.assert_array_equal(head.bias, B)


@pytest.mark.parametrize("embedding", ["model.embed_tokens", "lm.transformer.wte", "shared"])
def test_an_input_embedding_is_not_taken_for_the_head(tmp_path: Path, embedding: str) -> None:
    arrays = {"lm_head.weight": W, f"{embedding}.weight": W + 1, "x.weight": W + 2}
    np.savez(tmp_path / "m.npz", **arrays)
    assert find(tmp_path / "m.npz").weight_name == "lm_head.weight"
    del arrays["lm_head.weight"]
    for left in (arrays, {f"{embedding}.weight": W}):
        np.savez(tmp_path / "m.npz", **left)
        with pytest.raises(
            AmbiguousError, match=rf"no output layer: {embedding}.*--weight: {embedding}"
        ):
            load(tmp_path / "m.npz")
        assert find(tmp_path / "m.npz", weight=f"{embedding}.weight").head.classes == 4


def test_a_head_below_any_prefix_is_seen(tmp_path: Path) -> None:
    arrays = {"a.b.lm_head.weight": W, "a.model.embed_tokens.weight": W + 1, "x.weight": W + 2}
    np.savez(tmp_path / "m.npz", **arrays)
    assert find(tmp_path / "m.npz").weight_name == "a.b.lm_head.weight"


def test_likely_heads_are_listed_first(tmp_path: Path) -> None:
    arrays = {f"layers.{k}.mlp.weight": W for k in range(9)} | {"y.out_head": W, "z": W.T}
    np.savez(tmp_path / "m.npz", **arrays)
    with pytest.raises(AmbiguousError, match=r"11 arrays that could be the weight: y\.out_head"):
        load(tmp_path / "m.npz")


def test_several_matrices_are_listed_and_none_is_guessed(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", first=W, second=W.T, third=B)
    with pytest.raises(
        UncorkError, match=r"2 arrays.*first \(4 × 3\), second \(3 × 4\).*name one with --weight"
    ):
        load(tmp_path / "m.npz")
    shown = describe(tmp_path / "m.npz")
    assert shown.head is None
    assert "--weight" in shown.problem
    assert [t.name for t in shown.tensors] == ["first", "second", "third"]


def test_tensors_named_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    np.savez(path, first=W, second=W.T, third=B)
    head = load(path, weight="second", bias="third", transpose=True, domain="unbounded")
    np.testing.assert_array_equal(head.weight, W)
    np.testing.assert_array_equal(head.bias, B)
    assert head.domain == Unbounded()
    with pytest.raises(UncorkError, match=r"no tensor 'secnd'.*did you mean second\?"):
        load(path, weight="secnd")
    np.testing.assert_array_equal(load(path, weight="second", bias="third").weight, W)
    with pytest.raises(UncorkError, match=r"third \(4\) has 1 dimensions; a weight needs two"):
        load(path, weight="third")


def test_transpose_is_advised_only_where_it_helps(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    np.savez(path, first=W, four=B, three=B[:3], five=np.ones(5))
    for bias, transpose, advice in (
        ("four", True, "if the classes are there, leave --transpose out"),
        ("five", False, None),
        ("five", True, None),
    ):
        for weight in (None, "first"):
            with pytest.raises(UncorkError, match=f"bias {bias}.* does not fit weight") as raised:
                load(path, weight=weight, bias=bias, transpose=transpose)
            if advice is None:
                assert "--transpose" not in str(raised.value)
            else:
                assert advice in str(raised.value)
    # These names say themselves which side is which: --transpose changes nothing of it.
    np.savez(path, kernel=W.T, third=B[:3])
    with pytest.raises(UncorkError, match=r"does not fit weight kernel with 4 classes") as raised:
        load(path, weight="kernel", bias="third")
    assert "--transpose" not in str(raised.value)


@pytest.mark.parametrize(
    ("weight", "bias"),
    [
        ("weight", "bias"), ("W", "b"), ("lm_head.weight", "lm_head.bias"),
        ("coef_", "intercept_"), ("layer_W", "layer_b"),
        ("cls.predictions.decoder.weight", "cls.predictions.bias"),
    ],
)  # fmt: skip
def test_a_weights_own_bias_is_never_left_out_in_silence(
    tmp_path: Path, weight: str, bias: str
) -> None:
    path = tmp_path / "m.npz"
    np.savez(path, **{weight: W.T, bias: B})  # 3 × 4, and 4
    for named, transpose in ((None, False), (weight, False), (None, True), (weight, True)):
        np.testing.assert_array_equal(load(path, weight=named, transpose=transpose).bias, B)
    np.savez(path, **{weight: W.T, bias: np.ones(7)})
    for transpose in (False, True):
        with pytest.raises(UncorkError, match=r"\(7\).*go without one \(--drop-bias") as raised:
            load(path, transpose=transpose)
        assert "--transpose" not in str(raised.value)
    assert load(path, drop_bias=True).bias is None
    shown = describe(path)
    assert shown.head is None
    assert f"{bias} (7)" in shown.problem
    np.savez(path, **{weight: W, bias: np.ones(3), "given": B})
    np.testing.assert_array_equal(load(path, bias="given").bias, B)
    np.savez(path, **{weight: W.T, bias: np.ones((2, 2, 2))})  # no vector, on whichever side
    with pytest.raises(UncorkError, match=r"\(2 × 2 × 2\) is by its name the bias") as raised:
        load(path)
    assert "--transpose" not in str(raised.value)


@pytest.mark.parametrize("one", [np.float64(0), np.zeros(1)])
def test_one_number_for_all_classes_changes_nothing_and_is_noted(
    tmp_path: Path, one: np.ndarray
) -> None:
    np.savez(tmp_path / "m.npz", coef_=W, intercept_=one)  # scikit-learn's fit_intercept=False
    found = find(tmp_path / "m.npz")
    assert found.head.bias is None
    assert "intercept_ is one number for all classes" in found.notes[0]


@pytest.mark.parametrize("bias", ["final_logits_bias", "lm_head.bias"])
def test_a_tied_embedding_may_be_padded_beyond_its_bias(tmp_path: Path, bias: str) -> None:
    np.savez(tmp_path / "m.npz", **{"model.shared.weight": W, bias: B[:3]})
    found = find(tmp_path / "m.npz", weight="model.shared.weight")
    assert (found.weight_name, found.bias_name) == ("model.shared.weight", None)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u1", "i4", ">f4"])
def test_values_keep_their_type(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "m.npy", W.astype(dtype))
    head = load(tmp_path / "m.npy")
    assert head.weight.dtype == np.dtype(dtype).newbyteorder("<")
    np.testing.assert_array_equal(head.weight, W)


def test_fortran_order_is_kept_right(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", np.asfortranarray(W))
    np.savez_compressed(tmp_path / "m.npz", weight=np.asfortranarray(W))
    np.testing.assert_array_equal(load(tmp_path / "m.npy").weight, W)
    np.testing.assert_array_equal(load(tmp_path / "m.npz").weight, W)


def test_an_npy_file_is_mapped_not_read(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", W)
    weight = load(tmp_path / "m.npy").weight
    assert isinstance(weight.base, np.memmap) or isinstance(weight, np.memmap)


def test_content_counts_more_than_the_name(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", W)
    (tmp_path / "m.onnx").write_bytes((tmp_path / "m.npy").read_bytes())
    assert load(tmp_path / "m.onnx").classes == 4


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('the pickle ran')",))


@pytest.mark.parametrize("name", ["m.npz", "m.npy", "m.pkl", "m.joblib", "m.pt", "m.bin", "m.dat"])
def test_pickles_are_refused_and_never_run(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "m.npz":
        np.savez(path, weight=np.array([Bomb()], dtype=object))
    elif name == "m.npy":
        np.save(path, np.array([Bomb()], dtype=object))
    else:
        path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UncorkError, match=r"pickle.*runs its code"):
        load(path)


def test_a_header_that_announces_terabytes_allocates_nothing(tmp_path: Path) -> None:
    data = header("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000, 100000), }")
    (tmp_path / "m.npy").write_bytes(data)
    zipped(tmp_path / "m.npz", {"weight.npy": data})
    with pytest.raises(UncorkError, match="truncated"):
        load(tmp_path / "m.npy")
    with pytest.raises(UncorkError, match="its header promises 1000000000 × 100000"):
        load(tmp_path / "m.npz")


def test_a_zip_bomb_is_refused(tmp_path: Path) -> None:
    shape = (1 << 14, 1 << 12)  # 512 MiB of zeros
    data = header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}")
    with (
        zipfile.ZipFile(tmp_path / "m.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("weight.npy", "w", force_zip64=True) as file,
    ):
        file.write(data)
        for _ in range(512):
            file.write(bytes(1 << 20))
    with pytest.raises(UncorkError, match=r"-fold to .* bytes when unpacked"):
        load(tmp_path / "m.npz")


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-4, 3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 'four', }",
        "{'descr': 'nonsense', 'fortran_order': False, 'shape': (4, 3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 40 + ", 3), }",
        "{'descr': '<c8', 'fortran_order': False, 'shape': (4, 3), }",
        "{'descr': '<M8[s]', 'fortran_order': False, 'shape': (4, 3), }",
        "{'descr': '|S4', 'fortran_order': False, 'shape': (4, 3), }",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4, 3), }",
        "((((((((((((((((((",
        "",
    ],
)
def test_odd_headers_end_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.npy").write_bytes(header(text) + bytes(96))
    with pytest.raises(UncorkError) as raised:
        load(tmp_path / "m.npy")
    assert "\n" not in str(raised.value)
    assert "m.npy" in str(raised.value)


def test_a_header_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    data = b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + bytes(1 << 20)
    zipped(tmp_path / "m.npz", {"weight.npy": data}, zipfile.ZIP_DEFLATED)
    (tmp_path / "m.npy").write_bytes(data)
    for name in ("m.npz", "m.npy"):
        with pytest.raises(UncorkError, match="header of 4294967295 bytes"):
            load(tmp_path / name)


def test_truncation_anywhere_ends_in_one_line(tmp_path: Path) -> None:
    for save, name in ((np.save, "m.npy"), (np.savez_compressed, "m.npz")):
        buffer = io.BytesIO()
        save(buffer, W)  # type: ignore[operator]
        data = buffer.getvalue()
        for cut in range(len(data)):
            (tmp_path / name).write_bytes(data[:cut])
            with pytest.raises(UncorkError, match=name):
                load(tmp_path / name)


def test_a_damaged_member_is_noticed(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", weight=W)
    data = bytearray((tmp_path / "m.npz").read_bytes())
    at = data.index(np.float32(7).tobytes())
    data[at] ^= 1
    (tmp_path / "m.npz").write_bytes(data)
    with pytest.raises(UncorkError, match="CRC"):
        load(tmp_path / "m.npz")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((0, 3)), "at least two classes"),
        (np.zeros((1, 3)), "at least two classes"),
        (np.zeros((4, 0)), "no features"),
        (np.float64(3), "no two-dimensional array"),
        (np.zeros(4), "no two-dimensional array"),
        (np.zeros((2, 2, 2)), "no two-dimensional array"),
        (np.array([[0.0, 1.0], [np.nan, 1.0]]), r"weight\[1, 0\] is nan"),
        (np.array([[0.0, np.inf], [0.0, 1.0]]), r"weight\[0, 1\] is inf"),
        (np.zeros((2, 2), np.longdouble), "float64 cannot hold exactly"),
    ],
)
def test_arrays_that_are_no_head_are_named(tmp_path: Path, array: np.ndarray, message: str) -> None:
    np.save(tmp_path / "m.npy", array)
    with pytest.raises(UncorkError, match=rf"m\.npy.*{message}"):
        load(tmp_path / "m.npy")
