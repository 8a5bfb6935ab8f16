"""Models on the Hugging Face hub: which files the head needs, and of weights only the parts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.hugging_face.hub_address import Address, parse_address
from uncork.loading.hugging_face.hub_client import Hub, Listing

# Beside the weights: what says how they are used, and what the classes are called.
_SETTINGS = ("config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
             "tokenizer.json")  # fmt: skip
_VOCABULARIES = ("*vocab*.json", "vocab*.txt", "*.spm", "*.model", "dict*.txt", "*vocab*.yml",
                 "tekken.json", "*.tiktoken", "bpe.codes")  # fmt: skip
_MOST_DESCRIPTION = 64 << 20
# Weights in other formats, the ones that say most first.
_OTHERS = (".gguf", ".onnx", ".keras", ".tflite", ".skops", ".npz", ".h5", ".ftz", ".traineddata",
           ".pt", ".pth", ".ckpt", ".bin")  # fmt: skip
# Weights as transformers saves them, the preferred first.
_SAVED = ("model.safetensors.index.json", "model.safetensors", "pytorch_model.bin.index.json",
          "pytorch_model.bin")  # fmt: skip
_LISTED = 12
_BLOCK = re.compile(r"\.(\d+)\.")


def fetch(source: str) -> Path:
    """A folder (or a file, if the repository has just that) ready for its reader.

    The folder lies in the hub's own cache. Its safetensors files are not downloaded: reading a
    tensor of theirs fetches its bytes, so that of a model only the head, its bias and what precedes
    it cross the network. What is already in the hub's cache is used as it is.
    """
    address = parse_address(source)
    hub = Hub(address)
    with hub.explained():
        listing = hub.listing()
    if listing is None:  # nothing but a complete copy in the hub's own cache
        with hub.explained():
            return hub.snapshot()
    with hub.explained():
        folder = hub.folder(listing)
        if address.file is not None:
            return hub.single(listing, folder, address.file)
        if "adapter_config.json" in listing.files:
            _adapter(hub, listing, folder)
            if not any(name in listing.files for name in _SAVED):
                return folder  # its reader says which base model it wants
        weights = _weights(address, listing.files)
        for name in _descriptions(listing.files):
            hub.small(listing, folder, name)
        if weights == "model.safetensors":
            hub.parts(listing, folder, weights)
        elif weights == "model.safetensors.index.json":
            index = hub.small(listing, folder, weights)
            for shard in _shards(index, address, listing):
                hub.parts(listing, folder, shard)
        elif weights == "pytorch_model.bin.index.json":
            index = hub.small(listing, folder, weights)
            for shard in _needed_shards(index, address, listing):
                hub.whole(listing, folder, shard)
        elif weights == "pytorch_model.bin":
            hub.whole(listing, folder, weights)
        else:
            return hub.single(listing, folder, weights)
        return folder


def _adapter(hub: Hub, listing: Listing, folder: Path) -> None:
    """An adapter's settings, its weights (small), and the tokenizer saved with it."""
    for name in ("adapter_config.json", "tokenizer.json", "tokenizer_config.json"):
        if name in listing.files:
            hub.small(listing, folder, name)
    for name in ("adapter_model.safetensors", "adapter_model.bin"):
        if name in listing.files:
            get = hub.parts if name.endswith(".safetensors") else hub.whole
            get(listing, folder, name)
            return


def _descriptions(files: Mapping[str, tuple[int, str]]) -> list[str]:
    """The configuration, and the vocabulary in its best form: a tokenizer.json makes the others
    superfluous."""
    small = [name for name, (size, _) in files.items() if size <= _MOST_DESCRIPTION]
    found = [name for name in small if name in _SETTINGS]
    if "tokenizer.json" not in found:
        found += [
            name
            for name in small
            if "/" not in name and any(fnmatch(name, one) for one in _VOCABULARIES)
        ]
    return found


def _weights(address: Address, files: Mapping[str, tuple[int, str]]) -> str:
    """The file that holds the weights or their index; an error that lists them to choose from."""
    here = [name for name in files if "/" not in name]
    for preferred in _SAVED:
        if preferred in files:
            return preferred
    for found in (
        [name for name in here if name.endswith(".safetensors")],
        *([name for name in files if name.lower().endswith(suffix)] for suffix in _OTHERS),
    ):
        if len(found) == 1:
            return found[0]
        if found:
            shown = ", ".join(printable(name) for name in sorted(found)[:_LISTED])
            rest = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
            raise UncorkError(
                f"{address} holds {len(found)} models: {shown}{rest}: name one, as in "
                f"{address}/{printable(sorted(found)[0])}"
            )
    raise UncorkError(f"{address} holds no weights that uncork reads (it has {len(files)} files)")


def _shards(index: Path, address: Address, listing: Listing) -> list[str]:
    """The shards that an index names, checked against the repository's own listing."""
    names = sorted(set(_weight_map(index, address).values()))
    missing = [name for name in names if name not in listing.files]
    if missing or not names:
        raise UncorkError(
            f"{address}: {index.name} names {printable(missing[0]) if missing else 'no shards'}, "
            "and the repository has no such file"
        )
    return names


def _needed_shards(index: Path, address: Address, listing: Listing) -> list[str]:
    """Those shards of pickled weights that can hold the head or what precedes it.

    Heads, embeddings and final norms stand outside the numbered blocks; some models end in the
    last block's own norm.
    """
    every = _shards(index, address, listing)
    where = _weight_map(index, address)
    numbers = [int(n) for name in where for n in _BLOCK.findall(name)]
    last = max(numbers, default=0)
    needed = {
        shard
        for name, shard in where.items()
        if not (blocks := _BLOCK.findall(name))
        or (int(blocks[0]) == last and ("norm" in name.lower() or ".ln" in name))
    }
    return sorted(needed) or every


def _weight_map(index: Path, address: Address) -> dict[str, str]:
    try:
        table = json.loads(index.read_bytes())["weight_map"]
        if not all(isinstance(value, str) for value in table.values()):
            raise TypeError("a shard's name is not text")
        return dict(table)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UncorkError(f"{address}: {index.name} is not a readable index: {error}") from error
