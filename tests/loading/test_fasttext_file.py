"""fastText: the head computes what the real fasttext computes; a tree of classes is refused."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import fasttext
import numpy as np
import pytest

from models import LANGUAGE_IDENTIFIER
from uncork import UncorkError
from uncork.domain import Box
from uncork.loading import find, load

LABELS, WORDS, FEATURES = 300, 700, 10
# Fewer than ten threads leave part of the input matrix unset in fastText: it fills a tenth each.
OPTIONS = {"dim": FEATURES, "thread": 10, "verbose": 0}


def sentence(label: int, generator: random.Random) -> str:
    return " ".join(f"w{(2 * label + generator.randrange(12)) % WORDS}" for _ in range(6))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = random.Random(1)
    path = tmp_path_factory.mktemp("text") / "train.txt"
    lines = [f"__label__é{i % LABELS} {sentence(i % LABELS, generator)}" for i in range(3000)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def flat(text: Path) -> Any:
    return fasttext.train_supervised(str(text), epoch=30, lr=0.5, loss="softmax", **OPTIONS)


def saved(model: Any, path: Path) -> Path:
    model.save_model(str(path))
    return path


def agrees(model: Any, path: Path) -> None:
    """The head's probabilities on the model's own sentence vectors are the model's."""
    found = find(path, domain="auto")
    head = found.head
    assert head.labels is not None
    generator = random.Random(2)
    winners = set()
    for label in range(0, LABELS, 3):
        line = sentence(label, generator)
        x = model.get_sentence_vector(line).astype(np.float64)
        assert head.domain.contains(x, 1e-6)
        logits = head.rows(0, LABELS) @ x
        names, probabilities = model.predict(line, k=-1)
        own = np.exp(logits - logits.max())
        own /= own.sum()
        given = np.array([probabilities[names.index(name)] for name in head.labels])
        np.testing.assert_allclose(own, given, atol=2e-5)  # fastText adds 1e-5 to each
        assert head.labels[int(logits.argmax())] == names[0]
        winners.add(names[0])
    assert len(winners) > 20  # so that agreeing is no accident


def test_a_flat_softmax_model_of_the_real_tool(flat: Any, tmp_path: Path) -> None:
    path = saved(flat, tmp_path / "m.bin")
    head = load(path)
    np.testing.assert_array_equal(head.weight, flat.get_output_matrix())
    assert head.bias is None
    assert not head.weight.flags.owndata  # mapped
    assert head.labels == tuple(flat.labels)
    agrees(flat, path)


def test_the_domain_is_what_means_of_word_vectors_can_be(flat: Any, tmp_path: Path) -> None:
    domain = find(saved(flat, tmp_path / "m.bin"), domain="auto").head.domain
    matrix = flat.get_input_matrix()
    assert domain == Box(matrix.min(axis=0), matrix.max(axis=0))


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("width", [2, 3])  # 3 does not divide the features: the last part is short
def test_a_product_quantised_model(
    text: Path, flat: Any, tmp_path: Path, norms: bool, width: int
) -> None:
    model = fasttext.load_model(str(saved(flat, tmp_path / "m.bin")))
    model.quantize(qout=True, qnorm=norms, dsub=width)
    path = saved(model, tmp_path / "m.ftz")
    found = find(path)
    assert found.head.dtype == ("float64" if norms else "float32")
    assert any("product-quantised" in note for note in found.notes)
    assert not np.array_equal(found.head.weight, flat.get_output_matrix())
    agrees(model, path)


def test_a_pruned_dictionary_is_stepped_over(text: Path, flat: Any, tmp_path: Path) -> None:
    model = fasttext.load_model(str(saved(flat, tmp_path / "m.bin")))
    model.quantize(input=str(text), cutoff=300, qout=False, thread=10, retrain=True, epoch=1)
    path = saved(model, tmp_path / "m.ftz")
    assert load(path).labels == tuple(model.labels)


def test_hierarchical_softmax_is_refused(text: Path, tmp_path: Path) -> None:
    model = fasttext.train_supervised(str(text), epoch=1, loss="hs", **OPTIONS)
    with pytest.raises(UncorkError, match="nodes of a binary tree, not classes"):
        load(saved(model, tmp_path / "m.bin"))


def test_the_shipped_language_identifier_is_recognised_and_refused() -> None:
    with pytest.raises(UncorkError, match=r"hierarchical softmax \(-loss hs\): the 176 rows"):
        load(LANGUAGE_IDENTIFIER)


def test_one_vs_all_is_noted(text: Path, tmp_path: Path) -> None:
    model = fasttext.train_supervised(str(text), epoch=1, loss="ova", **OPTIONS)
    found = find(saved(model, tmp_path / "m.bin"))
    assert any("one-vs-all" in note and "±8" in note for note in found.notes)
    assert found.head.classes == LABELS


def test_word_vectors_have_words_for_classes(text: Path, tmp_path: Path) -> None:
    model = fasttext.train_unsupervised(
        str(text), "skipgram", epoch=1, loss="ns", minCount=1, bucket=100, **OPTIONS
    )
    found = find(saved(model, tmp_path / "m.bin"))
    np.testing.assert_array_equal(found.head.weight, model.get_output_matrix())
    assert found.head.labels == tuple(model.words)
    assert any("word-vector model" in note for note in found.notes)


def small(
    *,
    version: int = 12,
    loss: int = 3,
    dimension: int = 2,
    dictionary: bytes | None = None,
    inputs: bytes = bytes([0]) + struct.pack("<qq2f", 1, 2, 1.0, 2.0),
    outputs: bytes = bytes([0]) + struct.pack("<qq4f", 2, 2, 1.0, 2.0, 3.0, 4.0),
) -> bytes:
    """A model by hand: one word, two labels, two features."""
    if dictionary is None:
        names = (("w", 0), ("a", 1), ("b", 1))
        entries = b"".join(n.encode() + b"\0" + struct.pack("<qb", 1, kind) for n, kind in names)
        dictionary = struct.pack("<iiiqq", 3, 1, 2, 9, -1) + entries
    arguments = struct.pack("<12id", dimension, 5, 5, 1, 5, 1, loss, 3, 0, 0, 0, 100, 1e-4)
    return struct.pack("<ii", 793712314, version) + arguments + dictionary + inputs + outputs


def quantised(rows: int = 2, columns: int = 2, size: int = 2, cut: Any = (2, 1, 2, 2)) -> bytes:
    head = bytes([1, 0]) + struct.pack("<qqi", rows, columns, size) + bytes(max(0, min(size, 99)))
    return head + struct.pack("<4i", *cut) + bytes(4 * 256 * 2)


def test_the_smallest_model(tmp_path: Path) -> None:
    path = tmp_path / "m.bin"
    path.write_bytes(small())
    head = load(path)
    assert head.labels == ("a", "b")
    np.testing.assert_array_equal(head.weight, [[1, 2], [3, 4]])


HOSTILE = {
    "version": small(version=13),
    "loss": small(loss=9),
    "dimension": small(dimension=3),
    "dictionary size": small(dictionary=struct.pack("<iiiqq", 2**31 - 1, 2**31 - 3, 2, 9, -1)),
    "dictionary counts": small(dictionary=struct.pack("<iiiqq", 3, 5, 5, 9, -1)),
    "pruned words": small(dictionary=struct.pack("<iiiqq", 0, 0, 0, 9, 2**60)),
    "input rows": small(inputs=bytes([0]) + struct.pack("<qq", 2**60, 2)),
    "negative rows": small(inputs=bytes([0]) + struct.pack("<qq", -1, -2)),
    "output rows": small(outputs=bytes([0]) + struct.pack("<qq", 2**40, 2)),
    "bytes after the end": small() + b"x",
    "codes": small(inputs=quantised(size=2**31 - 1)),
    "negative codes": small(inputs=quantised(size=-5)),
    "codes that do not fill the rows": small(inputs=quantised(rows=2**40)),
    "quantiser's features": small(inputs=quantised(cut=(2**30, 1, 2**30, 2**30))),
    "quantiser's parts": small(inputs=quantised(cut=(2, 2, 2, 2))),
    "quantiser's width": small(inputs=quantised(cut=(2, 1, 0, 2))),
}


@pytest.mark.parametrize("damage", HOSTILE)
def test_hostile_files_end_in_one_line(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "m.bin"
    path.write_bytes(HOSTILE[damage])
    with pytest.raises(UncorkError) as raised:
        load(path)
    assert "\n" not in str(raised.value)
    assert "cannot be read as" not in str(raised.value)


def test_truncation_anywhere_ends_in_one_line(tmp_path: Path) -> None:
    data = small()
    path = tmp_path / "m.bin"
    for cut in range(4, len(data)):
        path.write_bytes(data[:cut])
        with pytest.raises(UncorkError):
            load(path)
