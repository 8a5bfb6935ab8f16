"""Hugging Face folders: config.json beside the weights, in one file or in shards."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.codes.decoded import Decoded, decoded
from uncork.loading.contents import (
    AmbiguousError,
    Choice,
    Contents,
    FoundDomain,
    Tensor,
    UnknownDomain,
    Vocabulary,
)
from uncork.loading.hugging_face.adapter import (
    CONFIG,
    WEIGHTS,
    Adapted,
    Adapter,
    UnmergedError,
    adapter_of,
    configuration,
    refuse_unmerged,
    tied_embedding,
    without_ties,
)
from uncork.loading.hugging_face.configured import configured
from uncork.loading.not_read import folder_not_read
from uncork.loading.safetensors.file import read_safetensors
from uncork.loading.torch.file import read_torch
from uncork.loading.vocabulary import find_vocabulary

_KIND = "hugging face folder"
_MOST_JSON = 64 << 20
_LISTED = 8
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.(safetensors|bin)")
# Weights as transformers saves them, the preferred first.
_SAVED = (
    "model.safetensors", "model.safetensors.index.json",
    "pytorch_model.bin", "pytorch_model.bin.index.json",
)  # fmt: skip
# Files that hold a model on their own, by the ends of their names.
_MODELS = (
    ".safetensors", ".gguf", ".onnx", ".ort", ".npz", ".npy", ".keras", ".h5", ".tflite", ".skops",
    ".ftz", ".traineddata", ".mlmodel", ".pt2", ".pte", ".pt", ".pth", ".ckpt", ".bin",
)  # fmt: skip
_PIECES = (".bin", ".pt", ".pth")  # what also ends the names of parts and of other formats
# Files of training and tokenizing that end like a model.
_NO_MODELS = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt",
              "rng_state.pth", "random_states_0.pkl")  # fmt: skip


def read_folder(path: Path, base: Path | None = None) -> Contents:
    """The model in a folder: its weights, and what its configuration says of them.

    An adapter in the folder is merged into the model beside it, or into the one in `base`.
    """
    adapter = _adapter(path)
    if base is not None and adapter is None:
        raise UncorkError(
            f"{path} is not an adapter (it has no {CONFIG}), so it has nothing to merge into a base"
        )
    if adapter is not None:
        return _adapted(path, adapter, path if base is None else base)
    config = _config(path)
    weights = _weights(path)
    if weights is None:
        return _other(path, config)
    if config is None:
        return replace(weights, path=path)
    return _with_config(path, _KIND, config, weights)


def _adapter(folder: Path) -> Adapter | None:
    """The adapter that a folder holds, by itself or beside its base model."""
    if not (folder / CONFIG).is_file():
        return None
    settings = _json(folder / CONFIG)
    if not isinstance(settings, dict):
        raise UncorkError(f"{folder / CONFIG} is not a configuration: expected a JSON table")
    file = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if file is None:
        raise UncorkError(
            f"{folder} has {CONFIG} and no {WEIGHTS[0]}: complete the download, or take {CONFIG} "
            "away if the adapter is merged already"
        )
    return adapter_of(folder, settings, _open(file).tensors)


def _adapted(path: Path, adapter: Adapter, base: Path) -> Contents:
    """The base model's contents with the adapter merged, as from_pretrained would apply it."""
    if base != path and (base / CONFIG).is_file():
        raise UncorkError(f"{base} holds an adapter itself: the base of an adapter is a model")
    plain = _config(base) if base.is_dir() else None
    weights = None if plain is None else _weights(base)
    if plain is None or weights is None:
        wanted = f" for {adapter.base}" if adapter.base else ""
        where = f"{base} holds no base model" if base != path else f"{path} is an adapter{wanted}"
        known = _HUB_ID.fullmatch(adapter.base) and not Path(adapter.base).exists()
        raise UncorkError(
            f"{where}: name the folder of the base model, config.json and weights, with --base "
            f"FOLDER, or --base hf:{adapter.base if known else 'owner/name'}"
        )
    config = configuration(plain, adapter)
    stored = decoded(base, weights.tensors, config, of_a_model=True)
    tensors = Adapted(stored, adapter, tied_embedding(config, stored))
    if tensors.untied:
        config = without_ties(config)
    # A tokenizer saved with the adapter knows the tokens that were added for it.
    named = path if (path / "tokenizer.json").is_file() else base
    contents = replace(_with_config(base, _KIND, config, weights, tensors, named), path=path)

    def domain(choice: Choice) -> FoundDomain | UnknownDomain | None:
        try:
            return contents.domain(choice)
        except UnmergedError as error:
            return UnknownDomain(str(error))

    def noted(choice: Choice) -> Choice:
        notes = list(choice.notes)
        if not {choice.weight_name, choice.bias_name} & tensors.changed:
            notes.append(tensors.elsewhere)
        try:
            contents.domain(choice)
        except UnmergedError as error:
            notes.append(f"the domain is not known: {error}")
        return replace(choice, notes=tuple(notes))

    def around(name: str) -> Choice | None:
        choice = contents.around(name)
        return None if choice is None else noted(choice)

    return replace(contents, choose=lambda: noted(contents.choose()), around=around, domain=domain)


def read_safetensors_file(path: Path) -> Contents:
    """A .safetensors file, with what a config.json beside it says of its tensors."""
    return _beside_adapter(path, _beside_config(path, read_safetensors(path)))


def read_torch_file(path: Path) -> Contents:
    """A torch checkpoint, with what a config.json beside it says of its tensors."""
    return _beside_adapter(path, _beside_config(path, read_torch(path)))


def _beside_adapter(path: Path, contents: Contents) -> Contents:
    """A file of a model with an adapter is the model without it; the adapter's own is none."""
    if path.name in WEIGHTS:
        raise UncorkError(
            f"{path} holds an adapter, not a model: give its folder, with --base for the model it "
            "was trained on"
        )
    refuse_unmerged(path, contents.tensors)
    if not (path.name in _SAVED and (path.parent / CONFIG).is_file()):
        return contents
    doubt = f"{CONFIG} beside it is left out: give the folder to have the adapter merged"

    def doubted(choice: Choice) -> Choice:
        return replace(choice, doubts=(*choice.doubts, doubt))

    def around(name: str) -> Choice | None:
        choice = contents.around(name)
        return None if choice is None else doubted(choice)

    return replace(contents, choose=lambda: doubted(contents.choose()), around=around)


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


def _with_config(
    path: Path,
    kind: str,
    config: dict[str, Any],
    weights: Contents,
    tensors: Mapping[str, Tensor] | None = None,
    named: Path | None = None,
) -> Contents:
    """`tensors`, dequantised, in place of the weights' own; classes named by files in `named`."""
    refuse_unmerged(path, weights.tensors)
    folder = named or (path if path.is_dir() else path.parent)
    vocabulary: Callable[[int], Vocabulary] = functools.partial(find_vocabulary, folder)
    labels = config.get("label_names")
    if isinstance(labels, list):  # timm's
        vocabulary = functools.partial(_label_names, tuple(map(str, labels)))
    if tensors is None:
        tensors = decoded(path, weights.tensors, config, of_a_model=True)
    return configured(path, kind, config, tensors, vocabulary)


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
        raise UncorkError(f"{file} is not a configuration: expected a JSON table")
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
            name: shard.name for shard in shards for name in _stored(shard)
        }  # without an index, every shard has to be looked into
        return _plain(folder, Shards(folder, "the names of its shards", where))
    return None


def _plain(folder: Path, tensors: Mapping[str, Tensor]) -> Contents:
    from uncork.loading.naming import choose_by_name, choose_columns

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
        raise UncorkError(f"{file} is not an index of shards: it has no weight_map")
    for name, shard in table.items():
        if not isinstance(shard, str) or not _is_plain(shard):
            raise UncorkError(
                f"{file} puts tensor {printable(name)} into {str(shard)[:80]!r}, which is not a "
                "file of this folder: refused"
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
            self._opened[shard] = _stored(file)
        return self._opened[shard]


def _open(file: Path) -> Contents:
    return read_safetensors(file) if file.suffix == ".safetensors" else read_torch(file)


def _stored(file: Path) -> Mapping[str, Tensor]:
    """The tensors of a shard as they are stored: the scales of codes may lie in another one."""
    tensors = _open(file).tensors
    return tensors.stored if isinstance(tensors, Decoded) else tensors


def _other(folder: Path, config: Mapping[str, Any] | None) -> Contents:
    """A folder without weights as transformers saves them: its only model file, if it is one."""
    from uncork.loading.formats import recognise

    try:
        names = sorted(file.name for file in folder.iterdir() if file.is_file())
    except OSError as error:
        raise UncorkError(f"{folder} cannot be read: {error.strerror}") from error
    if "model_index.json" in names:
        raise UncorkError(f"{folder} is a pipeline of several models: name the folder of one")
    models = [
        name for name in names
        if name.lower().endswith(_MODELS) and name not in _NO_MODELS
        and not name.startswith((".", "lex."))  # hidden; a shortlist of Marian's
    ]  # fmt: skip
    what = folder_not_read(folder, names)
    if what is not None and all(name.endswith(_PIECES) for name in models):
        raise UncorkError(f"{folder} is {what}")
    if not models:
        inner = _inner(folder)
        hint = f"; there is a model in {inner}" if inner else ""
        raise UncorkError(f"{folder} holds no model{hint}: give the folder or file of a model")
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
