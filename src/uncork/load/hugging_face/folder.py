"""Hugging Face folders: config.json beside the weights, in one file or in shards."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from uncork.errors import UncorkError
from uncork.load.codes import decoded
from uncork.load.contents import AmbiguousError, Contents, Tensor, Vocabulary, printable
from uncork.load.hugging_face.configured import configured
from uncork.load.safetensors_file import read_safetensors
from uncork.load.torch.file import read_torch
from uncork.load.vocabulary import find_vocabulary

_KIND = "hugging face folder"
_MOST_JSON = 64 << 20
_LISTED = 8
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.(safetensors|bin)")
# Weights as transformers saves them, the preferred first.
_SAVED = (
    "model.safetensors", "model.safetensors.index.json",
    "pytorch_model.bin", "pytorch_model.bin.index.json",
)  # fmt: skip
# Files that hold a model on their own, by the ends of their names.
_MODELS = (
    ".safetensors", ".gguf", ".onnx", ".npz", ".npy", ".keras", ".h5", ".tflite", ".skops", ".ftz",
    ".traineddata", ".pt", ".pth", ".ckpt", ".bin",
)  # fmt: skip
# Files of training and tokenizing that end like a model.
_NO_MODELS = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt",
              "rng_state.pth", "random_states_0.pkl")  # fmt: skip


def read_folder(path: Path) -> Contents:
    """The model in a folder: its weights, and what its configuration says of them."""
    config = _config(path)
    weights = _weights(path)
    if weights is None:
        return _other(path, config)
    if config is None:
        return replace(weights, path=path)
    return _with_config(path, _KIND, config, weights)


def read_safetensors_file(path: Path) -> Contents:
    """A .safetensors file, with what a config.json beside it says of its tensors."""
    return _beside_config(path, read_safetensors(path))


def read_torch_file(path: Path) -> Contents:
    """A torch checkpoint, with what a config.json beside it says of its tensors."""
    return _beside_config(path, read_torch(path))


def _beside_config(path: Path, contents: Contents) -> Contents:
    """The configuration goes with a file by its name: others may lie in the same folder."""
    if not (path.name in _SAVED or _SHARD.fullmatch(path.name)):
        return contents
    try:
        config = _config(path.parent)
    except UncorkError:
        config = None
    if not config or "model_type" not in config:
        return contents
    return _with_config(path, contents.format, config, contents)


def _with_config(path: Path, kind: str, config: dict[str, Any], weights: Contents) -> Contents:
    folder = path if path.is_dir() else path.parent
    vocabulary: Callable[[int], Vocabulary] = functools.partial(find_vocabulary, folder)
    labels = config.get("label_names")
    if isinstance(labels, list):  # timm's
        vocabulary = functools.partial(_label_names, tuple(map(str, labels)))
    return configured(path, kind, config, weights.tensors, vocabulary)


def _label_names(labels: tuple[str, ...], classes: int) -> Vocabulary:
    if len(labels) != classes:
        return Vocabulary(None, f"config.json has {len(labels)} label_names for {classes} classes")
    return Vocabulary(labels, "config.json label_names")


def _config(folder: Path) -> dict[str, Any] | None:
    file = folder / "config.json"
    if not file.is_file():
        return None
    found = _json(file)
    if not isinstance(found, dict):
        raise UncorkError(f"{file} is no configuration: expected a JSON table")
    return found


def _json(file: Path) -> Any:
    try:
        size = file.stat().st_size
        if size > _MOST_JSON:
            raise UncorkError(f"{file} has {size} bytes: too many for what it should be")
        return json.loads(file.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise UncorkError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, UncorkError):
            raise
        raise UncorkError(f"{file} is not valid JSON: {str(error)[:100]}") from error


def _weights(folder: Path) -> Contents | None:
    """The weights as transformers saves them; None where there are none of that kind."""
    for name in _SAVED:
        file = folder / name
        if file.is_file():
            if name.endswith(".json"):
                tensors: Mapping[str, Tensor] = Shards(folder, name, _index(file))
                return _plain(folder, tensors)
            return read_safetensors(file) if name.endswith(".safetensors") else read_torch(file)
    shards = _unindexed(folder)
    if shards:
        where = {
            name: shard.name for shard in shards for name in _open(shard).tensors
        }  # without an index, every shard has to be looked into
        return _plain(folder, Shards(folder, "the names of its shards", where))
    return None


def _plain(folder: Path, tensors: Mapping[str, Tensor]) -> Contents:
    from uncork.load.naming import choose_by_name, choose_columns

    tensors = decoded(folder, tensors)
    return Contents(
        folder, _KIND, tensors, functools.partial(choose_by_name, folder, tensors),
        functools.partial(choose_columns, folder, tensors),
    )  # fmt: skip


def _unindexed(folder: Path) -> list[Path]:
    """Shards that came without their index, if they are complete."""
    for suffix in ("safetensors", "bin"):
        shards = sorted(folder.glob(f"*-of-*.{suffix}"))
        matches = [match for shard in shards if (match := _SHARD.fullmatch(shard.name))]
        if matches and len(matches) == len(shards):
            whole = {(match[1], int(match[3])) for match in matches}
            if len(whole) == 1 and len(matches) == next(iter(whole))[1]:
                return shards
            if len(whole) == 1:
                stem, count = next(iter(whole))
                raise UncorkError(
                    f"{folder} has {len(matches)} of the {count} shards of {printable(stem)} and "
                    "no index: complete the download"
                )
    return []


def _index(file: Path) -> dict[str, str]:
    """Which shard holds which tensor. Shards lie in the folder itself, whatever the index says."""
    found = _json(file)
    table = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(table, dict) or not table:
        raise UncorkError(f"{file} is no index of shards: it has no weight_map")
    for name, shard in table.items():
        if not isinstance(shard, str) or not _is_plain(shard):
            raise UncorkError(
                f"{file} puts tensor {printable(name)} into {str(shard)[:80]!r}, which is no file "
                "of this folder: refused"
            )
    return table


def _is_plain(name: str) -> bool:
    """Whether it is the name of a file in the folder, and nothing that leads elsewhere."""
    return (
        name.isprintable()
        and name not in ("", ".", "..")
        and not any(mark in name for mark in "/\\:")
        and name.endswith((".safetensors", ".bin"))
    )


class Shards(Mapping[str, Tensor]):
    """Tensors in several files, each opened when one of its tensors is asked for.

    Listing them leaves out those of shards that are not there, so that a model of which only the
    needed shards were fetched can be shown; asking for one of them by name is an error.
    """

    def __init__(self, folder: Path, index: str, where: Mapping[str, str]) -> None:
        self._folder, self._index, self._where = folder, index, where
        self._opened: dict[str, Mapping[str, Tensor]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._where

    def __getitem__(self, name: str) -> Tensor:
        shard = self._where[name]  # KeyError where there is no such tensor
        found = self._shard(shard).get(name)
        if found is None:
            raise UncorkError(
                f"{self._folder / shard} has no tensor {printable(name)}, which {self._index} puts "
                "there: the index and the shards do not belong together"
            )
        return found

    def __iter__(self) -> Iterator[str]:
        present = {shard: (self._folder / shard).exists() for shard in set(self._where.values())}
        return (name for name, shard in self._where.items() if present[shard])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def opened(self) -> tuple[str, ...]:
        """The shards that have been looked into."""
        return tuple(sorted(self._opened))

    def _shard(self, shard: str) -> Mapping[str, Tensor]:
        if shard not in self._opened:
            file = self._folder / shard
            if not file.exists():
                raise UncorkError(
                    f"{self._folder} lacks {shard}, which {self._index} says holds a tensor that "
                    "is needed: complete the download"
                )
            self._opened[shard] = _open(file).tensors
        return self._opened[shard]


def _open(file: Path) -> Contents:
    return read_safetensors(file) if file.suffix == ".safetensors" else read_torch(file)


def _other(folder: Path, config: Mapping[str, Any] | None) -> Contents:
    """A folder without weights as transformers saves them: its only model file, if it is one."""
    from uncork.load.formats import recognise

    try:
        names = sorted(file.name for file in folder.iterdir() if file.is_file())
    except OSError as error:
        raise UncorkError(f"{folder} cannot be read: {error.strerror}") from error
    if "adapter_config.json" in names:
        raise UncorkError(
            f"{folder} holds an adapter, not a model: merge it into its base model "
            "(merge_and_unload in peft) and save that"
        )
    if "model_index.json" in names:
        raise UncorkError(f"{folder} is a pipeline of several models: name the folder of one")
    models = [
        name for name in names
        if name.lower().endswith(_MODELS) and name not in _NO_MODELS and not name.startswith(".")
    ]  # fmt: skip
    if not models:
        inner = _inner(folder)
        hint = f"; there is a model in {inner}" if inner else ""
        other = [n for n in names if n.endswith((".msgpack", ".ckpt.index", ".mar", ".nemo"))]
        found = f"only {printable(other[0])}, which is not read" if other else "no model"
        raise UncorkError(f"{folder} holds {found}{hint}: give the folder or file of a model")
    if len(models) > 1:
        rest = f" and {len(models) - _LISTED} more" if len(models) > _LISTED else ""
        raise AmbiguousError(
            f"{folder} holds {len(models)} models: "
            + ", ".join(printable(name) for name in models[:_LISTED])
            + f"{rest}: give the path of one"
        )
    file = folder / models[0]
    size = file.stat().st_size
    if size == 0:
        raise UncorkError(f"{file} is empty")
    with file.open("rb") as opened:
        kind = recognise(file, opened.read(32), size)
    contents = kind.read(file)
    if config and kind.name in ("safetensors", "torch"):
        return _with_config(folder, _KIND, dict(config), contents)
    return contents


def _inner(folder: Path) -> str:
    """A folder inside this one that holds a model, for the hint."""
    for inner in sorted(p for p in folder.iterdir() if p.is_dir())[:100]:
        if any((inner / name).is_file() for name in _SAVED):
            return printable(inner.name)
    return ""
