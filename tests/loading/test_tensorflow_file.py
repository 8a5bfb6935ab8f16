"""TensorFlow: SavedModels old and new, frozen graphs, checkpoints; held to what it computes.

The models in made/tensorflow were written by tensorflow itself, by made/make_tensorflow.py.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from uncork import UncorkError
from uncork.loading import find
from uncork.loading.onnx.file import OnnxModel
from uncork.loading.tensorflow.bundle import read_bundle
from uncork.loading.tensorflow.flat import Flat
from uncork.loading.tensorflow.graph import Function, Node, Signature, TensorFlowGraph, Value
from uncork.loading.tensorflow.operators import Translation

MADE = Path(__file__).parent / "made" / "tensorflow"
DOMAINS = {"dense": "box:0,6", "images": "ReduceMean", "words": "Tanh", "session": "Softplus"}
MODELS = sorted(path.parent.name for path in MADE.rglob("computed.npz"))


def source(model: str) -> Path:
    return MADE / model / "frozen.pb" if model.endswith("frozen") else MADE / model


def copied(model: str, folder: Path) -> Path:
    shutil.copytree(MADE / model, folder / "model")
    return folder / "model"


@pytest.mark.parametrize("model", MODELS)
def test_the_head_computes_what_tensorflow_computes(model: str) -> None:
    found = find(source(model), domain="auto")
    computed, head = np.load(MADE / model / "computed.npz"), found.head
    x = computed["x"].reshape(-1, head.features).astype(np.float64)
    z = computed["z"].reshape(-1, head.classes)
    logits = x @ np.asarray(head.weight, np.float64).T + np.asarray(head.bias, np.float64)
    np.testing.assert_allclose(logits, z, atol=1e-5)
    assert logits.std(axis=0).min() > 0.01  # so that agreeing is no accident
    assert all(head.domain.contains(row, 1e-6) for row in x)
    assert DOMAINS[model.partition("-")[0]] in f"{found.domain_from} {head.domain}"
    assert found.contents.format == "tensorflow"
    assert not head.reading.doubts


def test_a_variables_values_are_those_that_the_restoring_nodes_assign() -> None:
    """Keras and tf.Module call a variable otherwise than the checkpoint does."""
    saved = read_bundle(MADE / "words" / "variables", "variables")
    found = find(MADE / "words")
    key = next(key for key in saved if key.startswith("words/"))
    assert found.weight_name not in saved
    np.testing.assert_array_equal(found.head.weight, saved[key].read())


def test_the_signature_that_was_taken_of_several_is_said() -> None:
    assert any("'serving_default' of 2" in note for note in find(MADE / "session").notes)


def test_labels_in_the_folder_name_the_classes(tmp_path: Path) -> None:
    folder = copied("dense", tmp_path)
    (folder / "assets").mkdir()
    (folder / "assets" / "labels.txt").write_text("a\nb\nc\nd\ne\nf\n")
    assert find(folder).head.labels == tuple("abcdef")
    (folder / "classes.txt").write_text("u\nv\nw\nx\ny\nz\n")
    found = find(folder)
    assert found.head.labels is None
    assert any("2 lists of 6 labels, which differ" in note for note in found.notes)


def test_a_checkpoint_alone_is_read_by_name() -> None:
    index = MADE / "session" / "variables" / "variables.index"
    with pytest.raises(UncorkError, match="does not show how its variables are used"):
        find(index)
    found, whole = find(index, weight="logits/kernel"), find(MADE / "session")
    assert found.bias_name == "logits/bias"
    assert found.head.fingerprint == whole.head.fingerprint


# Graphs by hand


def constant(name: str, values: np.ndarray) -> Node:
    value = Value(values.dtype, values.shape, lambda: values)
    return Node(name, "Const", (), {"value": value, "dtype": 1})


W = np.arange(6, dtype=np.float32).reshape(2, 3)
X = Node("x", "Placeholder", (), {"dtype": 1, "shape": [-1, 2]})


def model(*nodes: Node, output: str = "y", functions: tuple[Function, ...] = ()) -> OnnxModel:
    table = {one.name: one for one in functions}
    signatures = {"serving_default": Signature({}, {"y": output})}
    flat = Flat(TensorFlowGraph(Path("m.pb"), (X, constant("w", W), *nodes), table, signatures))
    made = Translation(flat, [flat.reference(output)], {})
    return OnnxModel(Path("m.pb"), made.draft)


def test_nodes_may_come_in_any_order_and_functions_be_called_twice() -> None:
    twice = Function("f", ("a",), ("r:activations:0",), (
        Node("r", "Relu", ("a",), {"T": 1}),
    ))  # fmt: skip
    called = {"f": "f", "T": 1}
    found = model(
        Node("y", "Softmax", ("z",), {"T": 1}), Node("z", "MatMul", ("h2", "w"), {"T": 1}),
        Node("h2", "PartitionedCall", ("h1:0",), called),
        Node("h1", "PartitionedCall", ("x",), called), functions=(twice,),
    )  # fmt: skip
    choice = found.choose()
    np.testing.assert_array_equal(choice.weight, W.T)
    assert "Relu" in found.domain(choice).why


def test_a_function_that_calls_itself_ends() -> None:
    endless = Function("f", ("a",), ("r:output:0",), (
        Node("r", "PartitionedCall", ("a",), {"f": "f"}),
        Node("s", "PartitionedCall", ("a",), {"f": "f"}),
    ))  # fmt: skip
    with pytest.raises(UncorkError, match="more than 100000 nodes"):
        model(Node("y", "PartitionedCall", ("x",), {"f": "f"}), functions=(endless,))


def test_a_loop_is_cut_and_nothing_is_known_of_it() -> None:
    found = model(
        Node("m", "Merge", ("x", "n"), {"T": 1}), Node("n", "NextIteration", ("m",), {"T": 1}),
        Node("y", "MatMul", ("m", "w"), {"T": 1}),
    )  # fmt: skip
    choice = found.choose()
    assert "tf::Merge" in found.domain(choice).why


def test_a_variable_that_the_served_graph_assigns_is_no_constant() -> None:
    stored = Value(None, (1,), lambda: np.zeros(0), lambda: [b"key"])
    whole = Value(None, (1,), lambda: np.zeros(0), lambda: [b""])
    nodes = [
        X, Node("v", "VarHandleOp", (), {"dtype": 1, "shape": [2, 3]}),
        Node("names", "Const", (), {"value": stored}),
        Node("slices", "Const", (), {"value": whole}),
        Node("r", "RestoreV2", ("names", "names", "slices"), {}),
        Node("a", "AssignVariableOp", ("v", "r"), {}),
    ]  # fmt: skip
    assert Flat(TensorFlowGraph(Path("m"), tuple(nodes))).variables() == {"v": "key"}
    writes = Function("f", ("v", "x"), ("o:output:0",), (
        Node("w", "AssignVariableOp", ("v", "x"), {}), Node("o", "Identity", ("x",), {}),
    ))  # fmt: skip
    nodes.append(Node("y", "StatefulPartitionedCall", ("v", "x"), {"f": "f"}))
    graph = TensorFlowGraph(
        Path("m"), tuple(nodes), {"f": writes}, {"serving_default": Signature({}, {"y": "y:0"})}
    )
    assert Flat(graph).variables() == {}


def test_what_is_added_beside_the_head_is_said() -> None:
    """A wide-and-deep model adds the scores of other features, which are not the head's."""
    found = model(
        Node("z", "MatMul", ("x", "w"), {"T": 1}), Node("o", "SparseSegmentSum", ("x",), {"T": 1}),
        Node("y", "AddV2", ("z", "o"), {"T": 1}),
    )  # fmt: skip
    assert "may change the order of the classes: Add (y)" in found.choose().doubts[0]


def test_a_strided_slice_takes_what_tensorflow_takes() -> None:
    ints = {"begin": [0, -1], "end": [2, 0], "step": [1, 1]}
    nodes = [constant(name, np.asarray(values, np.int32)) for name, values in ints.items()]
    found = model(
        *nodes, Node("h", "Relu", ("x",), {"T": 1}),
        Node("z", "MatMul", ("h", "w"), {"T": 1}),
        Node("y", "StridedSlice", ("z", *ints), {"T": 1, "shrink_axis_mask": 2}),
    )  # fmt: skip
    part = next(node for node in found.graph.nodes if node.op_type == "Slice")
    starts, ends = (found.constants.value(name).tolist() for name in part.input[1:3])
    assert (starts, ends) == ([0, -1], [2, 2**31 - 1])


# Damage


def test_a_checkpoint_that_is_cut_short_or_gone_is_refused(tmp_path: Path) -> None:
    folder = copied("dense", tmp_path)
    data = folder / "variables" / "variables.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:40])
    with pytest.raises(UncorkError, match="truncated or damaged"):
        find(folder)
    data.unlink()
    with pytest.raises(UncorkError, match="is not there"):
        find(folder)
    (folder / "variables" / "variables.index").unlink()
    with pytest.raises(UncorkError, match="is not there"):
        find(folder)


def test_a_table_that_lies_about_its_blocks_is_refused(tmp_path: Path) -> None:
    folder = copied("dense", tmp_path)
    index = folder / "variables" / "variables.index"
    whole = index.read_bytes()
    footer = whole[:-48] + b"\xff" * 9 + b"\x01" * 31 + struct.pack("<Q", 0xDB4775248B80FB57)
    for data in (whole[:-1], whole[:60] + whole[-48:], footer):
        index.write_bytes(data)
        with pytest.raises(UncorkError, match="no table of a checkpoint, or is damaged"):
            find(folder)


def test_a_constant_of_more_elements_than_the_file_holds_is_refused(tmp_path: Path) -> None:
    """One number may stand for many, but not for more than memory has."""
    data = (MADE / "dense-frozen" / "frozen.pb").read_bytes()
    stored = np.load(MADE / "dense-frozen" / "computed.npz")
    assert stored["z"].shape[1] == 6
    at = data.index(b"\x12\x08\x12\x02\x08\x04\x12\x02\x08\x06")  # the shape 4 × 6
    (tmp_path / "m.pb").write_bytes(data[: at + 5] + b"\x7f" + data[at + 6 :])
    with pytest.raises(UncorkError, match="damaged"):
        find(tmp_path / "m.pb")
