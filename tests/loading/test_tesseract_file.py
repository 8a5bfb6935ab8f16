"""Tesseract: rows and labels are those the real engine reads by, shown by exchanging two rows."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tesserocr
from PIL import Image, ImageDraw, ImageFont

from models import TESSERACT_ENGLISH
from uncork import UncorkError
from uncork.domain import Box
from uncork.loading import find, load
from uncork.loading.bounded.cursor import Cursor
from uncork.loading.tesseract.network import Matrix, Network, read_network

LSTM, UNICHARSET, RECODER = 17, 21, 22


def rendered(text: str) -> Image.Image:
    image = Image.new("L", (60 + 28 * len(text), 90), 255)
    ImageDraw.Draw(image).text((30, 20), text, 0, ImageFont.load_default(44))
    return image


def read_aloud(path: Path, text: str) -> str:
    """What the real engine reads in a picture of the text, with that model, without dictionary."""
    with tesserocr.PyTessBaseAPI(
        path=str(path.parent), lang=path.stem, psm=tesserocr.PSM.SINGLE_LINE,
        variables={"load_system_dawg": "0", "load_freq_dawg": "0", "load_punc_dawg": "0",
                   "load_number_dawg": "0"},
    ) as engine:  # fmt: skip
        engine.SetImage(rendered(text))
        return str(engine.GetUTF8Text()).strip()


def softmax(data: bytes) -> Matrix:
    """The softmax layer of a model as it is stored."""
    offsets = np.frombuffer(data, "<i8", int.from_bytes(data[:4], "little"), 4)
    network = read_network(Cursor(Path("m"), data, int(offsets[LSTM])))
    while network.parts:
        network = network.parts[-1]
    assert network.weights is not None
    return network.weights


def test_the_shipped_english_model() -> None:
    found = find(TESSERACT_ENGLISH, domain="auto")
    assert found.head.weight.shape == (111, 192)  # Lfx192 is the last LSTM of its specification
    assert found.head.domain == Box(-1, 1)
    assert "an LSTM" in found.domain_from
    labels = found.head.labels
    assert labels is not None
    assert labels[-1] == "<blank>"
    assert found.vocabulary.special == (110,)
    assert set("abcxyzABCXYZ0123456789 ") <= set(labels)
    assert len(set(labels)) == 111


def test_the_values_are_the_int8_rows_times_their_scales() -> None:
    head = load(TESSERACT_ENGLISH)
    stored = softmax(TESSERACT_ENGLISH.read_bytes())
    assert stored.values.dtype == np.int8
    assert stored.values.shape == (111, 193)
    assert stored.scales is not None
    np.testing.assert_array_equal(
        head.weight, stored.values[:, :-1].astype(float) * stored.scales[:, None]
    )
    np.testing.assert_array_equal(head.bias, stored.values[:, -1] * stored.scales)
    # Each row was scaled so that its largest value is 127.
    assert (np.abs(stored.values.astype(int)).max(axis=1) == 127).all()


def test_exchanging_two_rows_exchanges_two_letters_in_what_the_engine_reads(
    tmp_path: Path,
) -> None:
    text = "banana bonnet"
    path = tmp_path / "eng.traineddata"
    data = TESSERACT_ENGLISH.read_bytes()
    path.write_bytes(data)
    assert read_aloud(path, text) == text
    labels = load(path).labels
    assert labels is not None
    n, o = labels.index("n"), labels.index("o")
    stored = softmax(data)
    for array in (stored.values, stored.scales):
        assert array is not None
        before = array.tobytes()
        assert data.count(before) == 1
        turned = array.copy()
        turned[[n, o]] = turned[[o, n]]
        data = data.replace(before, turned.tobytes())
    path.write_bytes(data)
    exchanged = text.translate(str.maketrans("no", "on"))
    assert read_aloud(path, text) == exchanged
    np.testing.assert_array_equal(load(path).weight[n], load(TESSERACT_ENGLISH).weight[o])


def string(text: str) -> bytes:
    return struct.pack("<I", len(text.encode())) + text.encode()


def layer(kind: str, inputs: int, outputs: int, rest: bytes, training: int = 0) -> bytes:
    return (
        struct.pack("<b", 0) + string(kind)
        + struct.pack("<bbiiii", training, 0, 0, inputs, outputs, 0) + string("layer") + rest
    )  # fmt: skip


def matrix(values: np.ndarray, scales: np.ndarray | None = None, mode: int = 128) -> bytes:
    size = struct.pack("<II", *values.shape)
    if scales is None:
        return bytes([mode]) + size + bytes(values.itemsize) + values.tobytes()
    words = struct.pack("<I", len(scales)) + scales.tobytes()
    return bytes([mode | 1]) + size + bytes(1) + values.tobytes() + words


SOFTMAX = np.arange(15.0).reshape(5, 3)  # five codes, two features and the bias


def recogniser(
    softmax: bytes = matrix(SOFTMAX), before: bytes | None = None, count: int = 3
) -> bytes:
    if before is None:
        gates = b"".join(matrix(np.ones((2, 6))) for _ in range(4))
        before = layer("LSTM", 3, 2, struct.pack("<i", 5) + gates)
    parts = layer("Input", 3, 3, bytes(20)) + before + layer("Softmax", 2, 5, softmax)
    series = layer("Series", 3, 5, struct.pack("<I", count) + parts)
    return series + string("[1,3Lfx2O1c5]") + struct.pack("<iiiifff", 0, 0, 0, 4, 0.0, 0.0, 0.0)


NAMES = "4\nNULL 0\na 3\nfi 3\n一 1\n"
CODES = ((0,), (1,), (2, 1), (2, 3), (4,))


def recoder(codes: tuple[tuple[int, ...], ...] = CODES) -> bytes:
    entries = (struct.pack(f"<bi{len(c)}i", 1, len(c), *c) for c in codes)
    return struct.pack("<I", len(codes)) + b"".join(entries)


def traineddata(
    path: Path, network: bytes | None = None, names: str = NAMES, codes: bytes | None = None
) -> Path:
    parts = {
        LSTM: recogniser() if network is None else network,
        UNICHARSET: names.encode(),
        RECODER: recoder() if codes is None else codes,
    }
    table, data = [-1] * 24, b""
    for number, part in parts.items():
        if part:
            table[number] = 4 + 8 * 24 + len(data)
            data += part
    path.write_bytes(struct.pack("<i24q", 24, *table) + data)
    return path


def test_float_models_are_kept_as_they_are(tmp_path: Path) -> None:
    found = find(traineddata(tmp_path / "m.traineddata"), domain="auto")
    np.testing.assert_array_equal(found.head.weight, SOFTMAX[:, :2])
    np.testing.assert_array_equal(found.head.bias, SOFTMAX[:, 2])
    assert found.head.domain == Box(-1, 1)


def test_codes_are_labelled_by_the_characters_they_are_part_of(tmp_path: Path) -> None:
    vocabulary = find(traineddata(tmp_path / "m.traineddata")).vocabulary
    assert vocabulary.labels == (" ", "a", "<part of fi 一>", "<part of 一>", "<blank>")
    assert vocabulary.special == (4,)


def test_the_oldest_float_format(tmp_path: Path) -> None:
    old = recogniser(matrix(SOFTMAX.astype(np.float32), mode=0))
    head = load(traineddata(tmp_path / "m.traineddata", old))
    assert head.dtype == "float32"
    np.testing.assert_array_equal(head.weight, SOFTMAX[:, :2])


@pytest.mark.parametrize(
    ("kind", "domain"),
    [
        ("Tanh", Box(-1, 1)), ("Logistic", Box(0, 1)), ("Relu", Box(0, np.inf)), ("Linear", None),
        ("Maxpool", None),
    ],
)  # fmt: skip
def test_what_precedes_the_softmax(tmp_path: Path, kind: str, domain: Box | None) -> None:
    rest = bytes(8) if kind == "Maxpool" else matrix(np.ones((2, 4)))
    path = traineddata(tmp_path / "m.traineddata", recogniser(before=layer(kind, 3, 2, rest)))
    shown = find(path).shown_domain
    assert (None if shown is None else shown.domain) == domain


def test_both_directions_of_an_lstm(tmp_path: Path) -> None:
    gates = b"".join(matrix(np.ones((1, 5))) for _ in range(4))
    one = layer("LSTM", 3, 1, struct.pack("<i", 4) + gates)
    other = layer("RTLReversed", 3, 1, struct.pack("<I", 1) + one)
    both = layer("ParBidiLSTM", 3, 2, struct.pack("<I", 2) + one + other)
    found = find(traineddata(tmp_path / "m.traineddata", recogniser(before=both)), domain="auto")
    assert found.head.domain == Box(-1, 1)


def nest(depth: int) -> bytes:
    inner = layer("Softmax", 2, 5, matrix(SOFTMAX))
    for _ in range(depth):
        inner = layer("Series", 2, 5, struct.pack("<I", 1) + inner)
    return inner


HOSTILE: dict[str, dict[str, Any]] = {
    "no LSTM": {"network": b""},
    "layers": {"network": recogniser(count=2**31)},
    "nesting": {"network": nest(500)},
    "unknown layer": {"network": layer("TensorFlow", 1, 1, b"")},
    "no softmax": {"network": layer("Input", 1, 1, bytes(20)) + recogniser()[-43:]},
    "matrix": {"network": recogniser(b"\x80" + struct.pack("<II", 2**31, 2**31) + bytes(99))},
    "scales": {"network": recogniser(matrix(np.ones((5, 3), np.int8), np.ones(2)))},
    "no bias column": {"network": recogniser(matrix(np.ones((5, 1))))},
    "bytes after the network": {"network": recogniser() + b"x"},
    "characters": {"names": "99999999\na 1\n"},
    "no count": {"names": "a 1\n"},
    "recoder": {"codes": struct.pack("<I", 2**32 - 1) + bytes(99)},
    "length of a code": {"codes": struct.pack("<Ibi", 1, 1, 2**30) + bytes(99)},
}


@pytest.mark.parametrize("damage", HOSTILE)
def test_hostile_files_end_in_one_line(tmp_path: Path, damage: str) -> None:
    path = traineddata(tmp_path / "m.traineddata", **HOSTILE[damage])
    with pytest.raises(UncorkError) as raised:
        load(path)
    assert "\n" not in str(raised.value)
    assert "cannot be read as" not in str(raised.value)


def test_codes_that_are_no_rows_are_no_labels(tmp_path: Path) -> None:
    found = find(traineddata(tmp_path / "m.traineddata", codes=recoder((*CODES, (99,)))))
    assert found.head.labels is None
    assert any("other codes" in note for note in found.notes)


def test_truncation_anywhere_ends_in_one_line(tmp_path: Path) -> None:
    path = traineddata(tmp_path / "m.traineddata")
    data = path.read_bytes()
    for cut in range(1, len(data) - 1, 13):
        path.write_bytes(data[:cut])
        with pytest.raises(UncorkError):
            load(path)


def test_a_network_is_read_to_its_last_byte() -> None:
    data = TESSERACT_ENGLISH.read_bytes()
    offsets = np.frombuffer(data, "<i8", int.from_bytes(data[:4], "little"), 4)
    cursor = Cursor(Path("m"), data, int(offsets[LSTM]))
    network = read_network(cursor)
    assert isinstance(network, Network)
    length = cursor.number("I", "the specification")
    assert cursor.take(length, "it").decode() == (
        "[1,36,0,1Ct3,3,16Mp3,3Lfys48Lfx96Lrx96Lfx192O1c1]"
    )
    assert cursor.at + 28 == min(int(o) for o in offsets if o > offsets[LSTM])
