"""Files made to harm: a clear refusal in bounded time and memory, and nothing of them is run."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bounds import bounded
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file
from samples import SAMPLES, B, W, source

from uncork import UncorkError
from uncork.loading import Found, describe, find, load

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def refused(path: Path | str, **options: Any) -> str:
    """The one line that loading ends with."""
    with bounded(), pytest.raises(UncorkError) as raised:
        find(path, domain="auto", **options)
    text = str(raised.value)
    assert text.isprintable()
    assert "does not fit into memory" not in text
    return text


def survived(path: Path | str) -> Found | None:
    """A head, or None after a refusal in one line; nothing else, and not for long."""
    found, text = None, ""
    with bounded():
        try:
            found = find(path, domain="auto")
            np.asarray(found.head.weight)
        except UncorkError as error:
            text = str(error)
    assert text.isprintable()
    assert "does not fit into memory" not in text
    return found


# Any format: cut off, or with a few bytes changed.


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name, make in SAMPLES.items():
        made[name] = tmp_path_factory.mktemp("samples") / name
        make(made[name])
    return made


CLASSES = {  # of samples that do not have six
    "m.tflite": 5, "m.traineddata": 5, "inference.pdmodel": 9, "inference.pdiparams": 9,
    "inference.json": 9, "frozen.pb": 5, "saved_model.pb": 5, "variables.index": 5,
    "layers.json": 7, "program.part": 12, "blob.part": 12, "m.pt2": 30, "m.pte": 12,
    "xnnpack.pte": 12, "flair.pt": 9, "brain.js": 5,
}  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample_is_a_head_before_it_is_damaged(name: str, samples: dict[str, Path]) -> None:
    head = find(source(samples[name]), domain="auto").head
    assert head.classes == CLASSES.get(name, 6)


_EXTREMES = [
    b"\xff" * 8, b"\xff" * 4, b"\xff\xff\xff\x7f", b"\xff" * 7 + b"\x7f", bytes(8), bytes(4),
    b"\x80", b"\x00\x00\x00\x40", b"\x00\x00\x00\x00\x00\x01\x00\x00",
]  # fmt: skip


def damaged(data: bytes, generator: random.Random) -> bytes:
    """Truncated, or with bits flipped, numbers made extreme, bytes lost or added."""
    if generator.random() < 0.25:
        return data[: generator.randrange(len(data))]
    changed = bytearray(data)
    for _ in range(generator.choice([1, 1, 1, 2, 4])):
        at, how = generator.randrange(len(changed)), generator.random()
        if how < 0.5:
            changed[at] ^= 1 << generator.randrange(8)
        elif how < 0.85:
            extreme = generator.choice(_EXTREMES)
            changed[at : at + len(extreme)] = extreme
        elif how < 0.95:
            del changed[at : at + generator.randrange(1, 9)]
        else:
            changed[at:at] = generator.randbytes(generator.randrange(1, 9))
    return bytes(changed)


@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@seed(1)
@given(number=st.integers(0, 2**32))
def test_damage_ends_in_one_line_or_in_a_head(
    name: str, samples: dict[str, Path], number: int
) -> None:
    path = samples[name]
    whole = path.read_bytes()
    try:
        path.write_bytes(damaged(whole, random.Random(number)) or b"x")
        survived(source(path))
    finally:
        path.write_bytes(whole)


# Safetensors


def safetensors(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2**40, 2**20], "data_offsets": [0, 2**62]},
        {"dtype": "F32", "shape": [2**63, 2**63], "data_offsets": [0, 96]},
        {"dtype": "F32", "shape": [2, 2], "data_offsets": [2**63 - 16, 2**63]},
        {"dtype": "F32", "shape": [2, 2], "data_offsets": [-16, 0]},
        {"dtype": "F32", "shape": [-2, -2], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [2, 2], "data_offsets": [16, 0]},
        {"dtype": "F32", "shape": [1e300, 2], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [True, 4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": {"a": 1}, "data_offsets": [0, 16]},
        {"dtype": ["F32"], "shape": [2, 2], "data_offsets": "ab"},
        [],
    ],
)
def test_safetensors_with_impossible_entries(tmp_path: Path, entry: Any) -> None:
    refused(safetensors(tmp_path / "m.safetensors", {"weight": entry}, bytes(96)))


@pytest.mark.parametrize(
    ("header", "length"),
    [(b"{}", 2**63), (b"{}", 99_999_999), (b'{"a":' * 100_000, None), (b"[" * 100_000, None),
     (b'{"a": 1e999999999}', None), (b"{" + b'"a":"b",' * 9 + b"}", None)],
)  # fmt: skip
def test_safetensors_with_impossible_headers(
    tmp_path: Path, header: bytes, length: int | None
) -> None:
    refused(safetensors(tmp_path / "m.safetensors", header, bytes(64), length))


# NumPy


def npy_header(text: str) -> bytes:
    body = text.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(body)) + body


def zeros_member(archive: zipfile.ZipFile, name: str, head: bytes, mebibytes: int) -> None:
    with archive.open(name, "w", force_zip64=True) as file:
        file.write(head)
        for _ in range(mebibytes):
            file.write(bytes(1 << 20))


def test_a_member_that_lies_about_its_size_is_not_unpacked(tmp_path: Path) -> None:
    """64 MiB behind a directory entry that announces 96 bytes."""
    path = tmp_path / "m.npz"
    head = npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (6, 4), }")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        zeros_member(archive, "weight.npy", head, 64)
        archive.filelist[0].file_size = len(head) + 96
    refused(path)


def test_a_large_member_that_shrank_a_thousandfold_is_no_weight(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    head = npy_header("{'descr': '<f8', 'fortran_order': False, 'shape': (16384, 2176), }")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        zeros_member(archive, "weight.npy", head, 272)
    assert "-fold" in refused(path)


def test_an_archive_of_a_million_empty_members(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\x01\x02", 20, 3, 20, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0,
                        0, 0, 0, 0) + b"a.npy"  # fmt: skip
    count = 30_000
    directory = entry * count
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count, count, len(directory), 4, 0)
    path.write_bytes(b"PK\x03\x04" + directory + end)
    assert "too many" in refused(path)


# PyTorch


def checkpoint(path: Path, pickled: bytes, storage: bytes = b"", method: int = 0) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("m/data.pkl", pickled)
        archive.writestr(zipfile.ZipInfo("m/data/0"), storage)
    return path


def tensor_pickle(
    shape: Any, stride: Any, offset: int = 0, count: int = 24, kind: str = "FloatStorage"
) -> bytes:
    """The pickle of {"weight": tensor}, with any numbers at all."""

    def number(n: int) -> bytes:
        data = n.to_bytes((n.bit_length() + 8) // 8, "little", signed=True)
        return b"\x8a" + bytes([len(data)]) + data

    def row(values: Any) -> bytes:
        return b"(" + b"".join(map(number, values)) + b"t"

    persistent = (
        b"(X\x07\x00\x00\x00storage" + b"ctorch\n" + kind.encode() + b"\n"
        + b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpu" + number(count) + b"tQ"
    )  # fmt: skip
    tensor = (
        b"ctorch._utils\n_rebuild_tensor_v2\n(" + persistent + number(offset) + row(shape)
        + row(stride) + b"\x89ccollections\nOrderedDict\n)RtR"
    )  # fmt: skip
    return b"\x80\x02}X\x06\x00\x00\x00weight" + tensor + b"s."


def test_the_handmade_pickle_is_a_checkpoint(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "m.pt", tensor_pickle((6, 4), (4, 1)), W.tobytes())
    np.testing.assert_array_equal(load(path).weight, W)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"shape": (10**9, 10**9), "stride": (10**9, 1)}, "reaches past its storage"),
        ({"shape": (10**6, 10**6), "stride": (0, 0)}, "repeats its elements"),
        ({"shape": (10**6, 10**6), "stride": (10**6, 1), "count": 10**12}, "past its storage"),
        ({"shape": (6, 4), "stride": (4, 1), "offset": 2**61}, "reaches past its storage"),
        ({"shape": (6, 4), "stride": (4, 1), "offset": -1}, "not understood"),
        ({"shape": (6, 4), "stride": (-4, 1)}, "not understood"),
        ({"shape": (6, 4), "stride": (4, 1, 1)}, "not understood"),
        ({"shape": (2**70, 4), "stride": (4, 1)}, "not understood"),
        ({"shape": (6, 4), "stride": (4, 1), "count": 2**61}, "reaches past its storage"),
        ({"shape": (6, 4), "stride": (4, 1), "kind": "NoSuchStorage"}, "not understood"),
    ],
)
def test_tensors_outside_their_storage(tmp_path: Path, numbers: Any, message: str) -> None:
    path = checkpoint(tmp_path / "m.pt", tensor_pickle(**numbers), W.tobytes())
    assert message in refused(path, weight="weight")


@pytest.mark.parametrize(
    "pickled",
    {
        "bytes announced, none there": b"\x80\x04\x8e" + struct.pack("<Q", 2**60) + b".",
        "bytearray of a terabyte": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".",
        "text announced": b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b".",
        "memo at four billion": b"\x80\x02}r\xff\xff\xff\xff.",
        "memo never set": b"\x80\x02j\xff\xff\xff\xff.",
        "millions of tables": b"\x80\x02" + b"}" * 1_500_000 + b".",
        "marks without end": b"\x80\x02" + b"(" * 100_000 + b"t" * 100_000 + b".",
        "a list of itself": b"\x80\x02]q\x00" + b"h\x00a" * 50_000 + b".",
        "a table of itself": b"\x80\x02}q\x00X\x05\x00\x00\x00modelh\x00s.",
        "doubled forty times": b"\x80\x02" + b"]" + b"2\x86" * 40 + b".",
        "nested a hundred thousand deep": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
        "tables nested in tables": b"\x80\x02" + b"}X\x05\x00\x00\x00model" * 50_000 + b"}"
        + b"s" * 50_000 + b".",
        "a long number": b"\x80\x02\x8b" + struct.pack("<i", 1 << 20) + bytes(1 << 20) + b".",
        "a long number in digits": b"\x80\x02I" + b"9" * 1_000_000 + b"\n.",
        "keys that collide": b"\x80\x02}(" + b"".join(
            b"\x8a\x0a" + (n * (2**61 - 1)).to_bytes(10, "little") + b"N" for n in range(30_000)
        ) + b"u.",
        "nothing": b"",
        "stop": b".",
        "an extension code": b"\x80\x02\x82\x01.",
        "a class without a name": b"\x80\x04NN\x93.",
        "an instance the old way": b"(iposix\nsystem\n.",
        "an object the old way": b"(cposix\nsystem\no.",
        "an out-of-band buffer": b"\x80\x05\x97.",
        "a call of a number": b"\x80\x02K\x01)R.",
        "a state for a number": b"\x80\x02K\x01}b.",
    }.values(),
)  # fmt: skip
def test_pickles_made_to_exhaust(tmp_path: Path, pickled: bytes) -> None:
    refused(checkpoint(tmp_path / "m.pt", pickled))
    if len(pickled) < 1 << 20:
        (tmp_path / "m.bin").write_bytes(pickled or b"\x80\x02.")
        refused(tmp_path / "m.bin")


def test_a_pickle_that_unpacks_to_a_gigabyte_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        zeros_member(archive, "m/data.pkl", b"\x80\x02", 70)
    assert "too many" in refused(path)


class Attack:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return exec, (f"open({str(self.path)!r}, 'w')",)


@pytest.mark.parametrize(
    "name", ["m.pt", "m.pth", "m.bin", "m.ckpt", "m.pkl", "m.joblib", "m", "m.safetensors", "m.npy",
             "m.onnx", "pytorch_model.bin", "m.skops", "m.keras"],
)  # fmt: skip
def test_code_in_a_pickle_is_never_run(tmp_path: Path, name: str) -> None:
    touched = tmp_path / "touched"
    (tmp_path / "model").mkdir()
    path = tmp_path / "model" / name
    for data in (
        pickle.dumps(Attack(touched)),
        pickle.dumps({"weight": Attack(touched)}, protocol=2),
        checkpoint(tmp_path / "z", pickle.dumps(Attack(touched))).read_bytes(),
    ):
        path.write_bytes(data)
        refused(path)
        refused(path.parent)
    buffer = io.BytesIO()
    np.save(buffer, np.array([Attack(touched)], dtype=object))
    path.write_bytes(buffer.getvalue())
    refused(path)
    assert not touched.exists()


# ONNX


def onnx_file(path: Path, nodes: list[Any], stored: list[Any], output: str) -> Path:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", output)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


GEMM = helper.make_node("Gemm", ["h0", "weight"], ["y"], transB=1)
WEIGHT = numpy_helper.from_array(W, "weight")


@pytest.mark.parametrize("op", ["Identity", "Relu", "Tanh", "Reshape", "Add"])
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_graph_ten_thousand_nodes_deep(tmp_path: Path, op: str, where: str) -> None:
    count = 10_000
    names = [f"h{n}" for n in range(count)] + ["x" if where == "before" else "y"]
    second = {"Add": ["x"], "Reshape": ["shape"]}.get(op, [])
    chain = [helper.make_node(op, [names[n + 1], *second], [names[n]]) for n in range(count)]
    shape = numpy_helper.from_array(np.array([-1, 4]), "shape")
    path = tmp_path / "m.onnx"
    if where == "before":
        onnx_file(path, [*chain[::-1], GEMM], [WEIGHT, shape], "y")
    else:
        gemm = helper.make_node("Gemm", ["x", "weight"], ["y"], transB=1)
        onnx_file(path, [gemm, *chain[::-1]], [WEIGHT, shape], "h0")
    found = survived(path)
    assert found is None or found.head.classes == 6


def test_a_graph_that_bites_its_tail(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    refused(onnx_file(tmp_path / "m.onnx", nodes, [WEIGHT], "a"))
    loop = [helper.make_node("Relu", ["h1"], ["h0"]), helper.make_node("Add", ["h0", "x"], ["h1"])]
    survived(onnx_file(tmp_path / "m.onnx", [*loop, GEMM], [WEIGHT], "y"))


def test_a_graph_whose_paths_double_at_every_node(tmp_path: Path) -> None:
    """Fifty additions of a value to itself: 2^50 ways from the head to the input."""
    nodes = [helper.make_node("Add", [f"h{n + 1}"] * 2, [f"h{n}"]) for n in range(49, -1, -1)]
    path = onnx_file(tmp_path / "m.onnx", [*nodes, GEMM], [WEIGHT], "y")
    with bounded():
        find(path, domain="auto")


def test_constants_that_double_at_every_node(tmp_path: Path) -> None:
    """A weight that is built by concatenating or expanding constants to terabytes."""
    size = numpy_helper.from_array(np.array([2**30, 2**10]), "size")
    one = numpy_helper.from_array(np.ones((1, 1), np.float32), "one")
    for nodes, stored in (
        ([helper.make_node("Expand", ["one", "size"], ["w"])], [one, size]),
        ([helper.make_node("ConstantOfShape", ["size"], ["w"])], [size]),
        ([helper.make_node("Tile", ["one", "size"], ["w"])], [one, size]),
        ([helper.make_node("Concat", [f"c{n + 1}"] * 2, [f"c{n}"], axis=0)
          for n in range(40, 0, -1)]
         + [helper.make_node("Concat", ["c1"] * 2, ["w"], axis=0)],
         [numpy_helper.from_array(np.ones((1, 1), np.float32), "c41")]),
    ):  # fmt: skip
        gemm = helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)
        refused(onnx_file(tmp_path / "m.onnx", [*nodes, gemm], stored, "y"))


@pytest.mark.parametrize(
    "location", ["../secret.bin", "/etc/passwd", "a/../../secret.bin", "..\\secret.bin", "", "pipe"]
)
def test_external_data_stays_beside_the_model(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret.bin").write_bytes(W.tobytes())
    folder = tmp_path / "model"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    tensor = TensorProto(name="weight", data_type=TensorProto.FLOAT, dims=[6, 4])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    gemm = helper.make_node("Gemm", ["x", "weight"], ["y"], transB=1)
    refused(onnx_file(folder / "m.onnx", [gemm], [tensor], "y"))


def test_external_data_through_a_link_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(W.tobytes())
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "data.bin").symlink_to(tmp_path / "secret.bin")
    tensor = TensorProto(name="weight", data_type=TensorProto.FLOAT, dims=[6, 4])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="data.bin")
    gemm = helper.make_node("Gemm", ["x", "weight"], ["y"], transB=1)
    path = onnx_file(folder / "m.onnx", [gemm], [tensor], "y")
    survived(path)


@pytest.mark.parametrize("dims", [[2**40, 2**20], [-6, 4], [6, -1], [2**62, 2**62], [0, 4]])
def test_onnx_tensors_of_impossible_size(tmp_path: Path, dims: list[int]) -> None:
    tensor = TensorProto(
        name="weight", data_type=TensorProto.FLOAT, raw_data=W.tobytes(), dims=dims
    )
    gemm = helper.make_node("Gemm", ["x", "weight"], ["y"], transB=1)
    refused(onnx_file(tmp_path / "m.onnx", [gemm], [tensor], "y"))


def test_graphs_inside_graphs(tmp_path: Path) -> None:
    """Each graph twice in the next: 2^12 of them, or as deep as the library lets a file be."""
    for depth, branches in ((12, 2), (30, 1)):
        graph = helper.make_graph([], "g", [], [])
        for n in range(depth):
            inside = dict(zip(("then_branch", "else_branch"), [graph] * branches, strict=False))
            node = helper.make_node("If", ["c"], [f"o{n}"], **inside)
            graph = helper.make_graph([node], "g", [], [])
        nodes = [*graph.node, helper.make_node("Gemm", ["x", "weight"], ["y"], transB=1)]
        survived(onnx_file(tmp_path / "m.onnx", nodes, [WEIGHT], "y"))
    # A length-delimited field inside a field, a hundred thousand deep.
    deep = b""
    for _ in range(10_000):
        size = len(deep)
        length = bytearray()
        while size > 127:
            length.append(size & 127 | 128)
            size >>= 7
        deep = b"\x3a" + bytes([*length, size]) + deep
    (tmp_path / "m.onnx").write_bytes(b"\x08\x07" + deep)
    refused(tmp_path / "m.onnx")


# Formats with counts in their headers


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("<IQQ", 3, 2**63, 0), struct.pack("<IQQ", 3, 0, 2**63),
        struct.pack("<IQQ", 3, 2**40, 2**40) + bytes(64),
        struct.pack("<IQQQ", 3, 0, 1, 2**62),
        struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 8, 2**61),
        struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 9) * 2000,
        struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 9, 2**32) * 2000,
        struct.pack("<IQQQ", 3, 1, 0, 13) + b"output.weight"
        + struct.pack("<IQQIQ", 2, 2**40, 2**20, 0, 0),
        struct.pack("<IQQQ", 3, 1, 0, 13) + b"output.weight" + struct.pack("<I", 2**31),
        struct.pack("<IQQQ", 3, 1, 0, 13) + b"output.weight"
        + struct.pack("<IQQIQ", 2, 4, 6, 0, 2**63),
        struct.pack("<IQQ", 2**31, 1, 1), struct.pack(">IQQ", 3, 2**40, 2**40),
    ],
)  # fmt: skip
def test_gguf_with_impossible_counts(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + body)
    refused(tmp_path / "m.gguf")


def test_fasttext_with_impossible_counts(tmp_path: Path, samples: dict[str, Path]) -> None:
    data = samples["fasttext.bin"].read_bytes()
    for at in range(8, len(data) - 4, 4):
        for number in (2**31 - 1, -1, 2**30):
            changed = data[:at] + struct.pack("<i", number) + data[at + 4 :]
            (tmp_path / "m.bin").write_bytes(changed)
            survived(tmp_path / "m.bin")


@pytest.mark.parametrize("name", ["m.keras", "m.skops"])
def test_archives_whose_description_unpacks_to_gigabytes(
    tmp_path: Path, name: str, samples: dict[str, Path]
) -> None:
    path = tmp_path / name
    with (
        zipfile.ZipFile(samples[name]) as old,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new,
    ):
        for member in old.namelist():
            if member in ("config.json", "schema.json"):
                zeros_member(new, member, b"[", 200)
            else:
                new.writestr(member, old.read(member))
    refused(path)


@pytest.mark.parametrize("name", ["m.keras", "m.skops"])
@pytest.mark.parametrize("text", [b"[" * 1_000_000, b'{"a":' * 200_000, b"\xff\xfe", b"nul", b"[]"])
def test_archives_whose_description_is_no_description(
    tmp_path: Path, name: str, text: bytes, samples: dict[str, Path]
) -> None:
    path = tmp_path / name
    with zipfile.ZipFile(samples[name]) as old, zipfile.ZipFile(path, "w") as new:
        for member in old.namelist():
            told = member in ("config.json", "schema.json")
            new.writestr(member, text if told else old.read(member))
    refused(path)


def test_an_hdf5_heap_without_an_end(tmp_path: Path, samples: dict[str, Path]) -> None:
    """Free space of size zero: the HDF5 library itself never comes back from it."""
    data = bytearray(samples["m.h5"].read_bytes())
    at = data.index(b"GCOL") + 16
    while int.from_bytes(data[at : at + 2], "little"):
        at += 16 + (int.from_bytes(data[at + 8 : at + 16], "little") + 7) // 8 * 8
    data[at + 8 : at + 16] = bytes(8)
    (tmp_path / "m.h5").write_bytes(data)
    assert "does not end" in refused(tmp_path / "m.h5")


# Folders


def folder_with(path: Path, index: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


@pytest.mark.parametrize(
    "shard", ["../secret.safetensors", "/etc/passwd", "a/../../secret.safetensors", "", ".", "..",
              "..\\secret.safetensors", "x\0.safetensors", "C:secret.safetensors", 7, None, ["a"],
              "config.json", "pipe.safetensors", "loop.safetensors", "\x1b[2J.safetensors"],
)  # fmt: skip
def test_an_index_leads_nowhere_else(tmp_path: Path, shard: Any) -> None:
    save_file({"lm_head.weight": W}, tmp_path / "secret.safetensors")
    folder = folder_with(tmp_path / "model", {"weight_map": {"lm_head.weight": shard}})
    os.mkfifo(folder / "pipe.safetensors")
    (folder / "loop.safetensors").symlink_to("loop.safetensors")
    refused(folder)


@pytest.mark.parametrize("index", [[], 7, {"weight_map": []}, {"weight_map": {}}, {}])
def test_an_index_that_is_none(tmp_path: Path, index: Any) -> None:
    refused(folder_with(tmp_path / "model", index))


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "pytorch_model.bin", "vocab.txt",
             "model.safetensors.index.json"],
)  # fmt: skip
def test_pipes_and_loops_in_a_folder_are_not_waited_for(tmp_path: Path, name: str) -> None:
    for kind in ("pipe", "loop", "folder"):
        folder = tmp_path / kind
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
        save_file({"lm_head.weight": W}, folder / "model.safetensors")
        (folder / name).unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(folder / name)
        elif kind == "loop":
            (folder / name).symlink_to(name)
        else:
            (folder / name).mkdir()
        survived(folder)


def test_a_folder_of_twenty_thousand_files(tmp_path: Path) -> None:
    for n in range(20_000):  # looking at each for each would take minutes
        os.mknod(tmp_path / f"{n:06}.bin")
    refused(tmp_path)
    save_file({"lm_head.weight": W}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with bounded():
        assert find(tmp_path, domain="auto").head.classes == 6


@pytest.mark.parametrize(
    "text", [b"[" * 1_000_000, b'{"a":' * 300_000, b"\xff\xfe\x00", b"{", b"3", b"null",
             b'{"model_type": ["llama"]}', b'{"model_type": "llama", "text_config": {"a": [[[]]]}}',
             b'{"model_type": "../../x"}', b'{"hidden_size": 1e999, "model_type": "gpt2"}'],
)  # fmt: skip
def test_a_configuration_that_is_none(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "config.json").write_bytes(text)
    save_file({"lm_head.weight": W, "lm_head.bias": B}, tmp_path / "model.safetensors")
    survived(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "vocab.txt", "tokenizer.model",
                                  "model.safetensors.index.json", "dict.txt"])  # fmt: skip
def test_descriptions_of_gigabytes_are_not_read(tmp_path: Path, name: str) -> None:
    save_file({"lm_head.weight": W}, tmp_path / "model.safetensors")
    with (tmp_path / name).open("wb") as file:
        file.truncate(8 << 30)  # takes no room on the disk
    survived(tmp_path)


def test_names_from_a_file_do_not_move_the_cursor(tmp_path: Path) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07\r\n‮weight"
    save_file({evil: W, evil + "2": W}, tmp_path / "m.safetensors")
    assert "\\x1b" in refused(tmp_path / "m.safetensors")
    assert describe(tmp_path / "m.safetensors").problem.isprintable()
    refused(tmp_path / "m.safetensors", weight="no such name")
