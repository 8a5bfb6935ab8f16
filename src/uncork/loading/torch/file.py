"""PyTorch checkpoints, zip and legacy, without running code and without torch."""

from __future__ import annotations

import contextlib
import functools
import io
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.bounded.archive import Section, Storage, place_of, read_member
from uncork.loading.codes.decoded import decoded
from uncork.loading.contents import AmbiguousError, Choice, Contents, Tensor, require_file
from uncork.loading.naming import choose_columns
from uncork.loading.torch.fairseq import fairseq_choice, fairseq_domain
from uncork.loading.torch.flair import flair_choice, flair_domain, flair_vocabulary, is_flair
from uncork.loading.torch.pickle_decoder import (
    MOST_BYTES,
    Call,
    Decoded,
    PickleError,
    Reference,
    Table,
    decode,
)
from uncork.loading.torch.tensors import (
    Checkpoint,
    storage_key,
    storage_type,
    tensor_of,
)
from uncork.loading.vectors.factors import with_factors
from uncork.loading.vocabulary import find_vocabulary

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
# What no checkpoint imports and every attack does. Nothing is run either way: this only decides
# whether a file deserves to be read at all.
_HOSTILE_MODULES = {
    "os", "posix", "nt", "sys", "subprocess", "shutil", "socket", "runpy", "importlib", "pty",
    "code", "ctypes", "webbrowser", "urllib", "http", "requests", "marshal", "types", "bdb", "pdb",
    "commands", "timeit", "cProfile", "profile", "asyncio", "multiprocessing", "threading", "imp",
}  # fmt: skip
_HOSTILE_BUILTINS = {
    "exec", "eval", "compile", "__import__", "open", "breakpoint", "input", "execfile", "file",
    "globals", "locals", "vars", "delattr", "setattr",
}  # fmt: skip
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights",
             "params", "student", "generator")  # fmt: skip
_NOT_WEIGHTS = ("optim", "last_optim", "lr_sched", "scheduler", "scaler", "extra_state", "rng",
                "callbacks", "loops")  # fmt: skip
_MOST_DEPTH = 64
_MOST_TENSORS = 200_000


def read_torch(path: Path) -> Contents:
    """The tensors of a checkpoint by name: state dicts, training checkpoints, whole modules.

    The pickle inside is decoded as data (`pickle_decoder`), so nothing of it is imported or run.
    """
    require_file(path)
    try:
        if zipfile.is_zipfile(path):
            checkpoint = _read_zip(path)
        else:
            checkpoint = _read_legacy(path)
    except PickleError as error:
        raise UncorkError(f"{path}: its pickle cannot be read: {error}") from error
    _refuse_code(checkpoint)
    stored = dict(_named(checkpoint))
    if not stored:
        raise UncorkError(
            f"{path} is a pickle that holds no tensors, and opening a pickle otherwise runs its "
            "code: save the model's state_dict() with torch.save, or as .safetensors"
        )
    tensors = decoded(path, stored)
    settings = _settings(checkpoint.decoded.value)
    contents = Contents(
        path,
        "torch",
        tensors,
        functools.partial(fairseq_choice, path, tensors),
        functools.partial(choose_columns, path, tensors),
        lambda classes: find_vocabulary(path.parent, classes),
        functools.partial(fairseq_domain, tensors, settings),
    )
    if is_flair(checkpoint.decoded):
        return _of_flair(contents, checkpoint.decoded)
    return with_factors(contents, checkpoint.decoded.names)


def _of_flair(contents: Contents, decoded: Decoded) -> Contents:
    """The same for a model of flair's, which says more of itself."""
    path, tensors = contents.path, contents.tensors

    def choose() -> Choice:
        tagger = flair_choice(path, decoded, tensors, None)
        if tagger is not None:
            return tagger
        found = contents.choose()
        return flair_choice(path, decoded, tensors, found) or found

    def around(name: str) -> Choice | None:
        with contextlib.suppress(AmbiguousError):
            own = choose()
            if own.weight_name == name:
                return own
        return contents.around(name)

    return replace(
        contents,
        choose=choose,
        around=around,
        vocabulary=functools.partial(flair_vocabulary, decoded),
        domain=functools.partial(flair_domain, tensors),
    )


def _refuse_code(checkpoint: Checkpoint) -> None:
    for name in checkpoint.decoded.names:
        module, _, function = name.rpartition(".")
        builtin = module in ("builtins", "__builtin__") and function in _HOSTILE_BUILTINS
        if builtin or module.split(".")[0] in _HOSTILE_MODULES:
            raise UncorkError(
                f"{checkpoint.path} is a pickle that calls {printable(name)}: opening it the usual "
                "way runs its code. Nothing was run here; do not trust this file"
            )


# Where the bytes are.


def _read_zip(path: Path) -> Checkpoint:
    with path.open("rb") as file:
        return _read_archive(path, file, Storage(0, path.stat().st_size))


def _read_archive(path: Path, whole: IO[bytes], place: Storage) -> Checkpoint:
    """The checkpoint in an archive that takes up this part of a file."""
    file = io.BufferedReader(Section(whole, place))
    with zipfile.ZipFile(file) as archive:
        members = {member.filename: member for member in archive.infolist()}
        pickles = [name for name in members if name == "data.pkl" or name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise UncorkError(
                f"{path} holds {len(pickles)} pickles called data.pkl: a checkpoint has one"
            )
        prefix = pickles[0].removesuffix("data.pkl")
        pickled = members[pickles[0]]
        if pickled.file_size > MOST_BYTES:
            raise UncorkError(f"{path}: its pickle has {pickled.file_size} bytes: too many")
        decoded = decode(io.BytesIO(read_member(archive, pickled)))
        order = b"little"
        if prefix + "byteorder" in members and members[prefix + "byteorder"].file_size < 16:
            order = read_member(archive, prefix + "byteorder")
        storages = {}
        for name, member in members.items():
            if name.startswith(f"{prefix}data/"):
                found = place_of(file, member, place.size, place.offset)
                storages[name.removeprefix(f"{prefix}data/")] = found
    return Checkpoint(path, decoded, storages, ">" if order == b"big" else "<")


def tensors_within(path: Path, place: Storage) -> dict[str, Tensor]:
    """The tensors of a checkpoint that lies inside another file, by name; its pickle is not run."""
    try:
        with path.open("rb") as file:
            checkpoint = _read_archive(path, file, place)
    except PickleError as error:
        raise UncorkError(f"{path}: a pickle in it cannot be read: {error}") from error
    except UncorkError:
        raise
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise UncorkError(f"{path}: an archive in it is damaged: {error}") from error
    _refuse_code(checkpoint)
    return dict(_named(checkpoint))


def _read_legacy(path: Path) -> Checkpoint:
    size = path.stat().st_size
    with path.open("rb") as file:
        start = io.BytesIO(file.read(min(size, MOST_BYTES)))
        if (first := decode(start)).value != LEGACY_MAGIC:
            return Checkpoint(path, first, {}, "<")  # refused for what it is, or empty
        decode(start)  # the protocol's version
        system = decode(start).value
        decoded = decode(start)
        keys = decode(start).value
        little = system.get("little_endian") if isinstance(system, Table) else True
        items = _item_sizes(decoded.value)
        storages: dict[str, Storage] = {}
        at = start.tell()
        for key in keys if isinstance(keys, list) else []:
            file.seek(at)
            count = file.read(8)
            if len(count) < 8:
                storages[str(key)] = Storage(0, 0, "lies past the end of the file: truncated")
                continue
            length = struct.unpack("<q" if little else ">q", count)[0] * items.get(str(key), 1)
            if length < 0 or at + 8 + length > size:
                storages[str(key)] = Storage(0, 0, "lies outside the file: truncated or damaged")
                continue
            storages[str(key)] = Storage(at + 8, length)
            at += 8 + length
    return Checkpoint(path, decoded, storages, "<" if little else ">")


def _item_sizes(value: Any) -> dict[str, int]:
    """Bytes an element, by storage: a legacy file says it only where the storage is used."""
    found: dict[str, int] = {}
    for one in _everything(value):
        if isinstance(one, Reference) and storage_key(one) is not None:
            dtype = storage_type(one)
            found.setdefault(str(storage_key(one)), 1 if dtype is None else dtype.itemsize)
    return found


def _everything(value: Any) -> Iterator[Any]:
    """Every record inside a decoded pickle, each once."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, list | tuple):
            waiting += one
        elif isinstance(one, Table):
            waiting += [part for _, part in one.pairs]
        elif isinstance(one, Call):
            waiting += [one.arguments, one.state, one.items, one.entries]


# From nesting to names.


def _named(checkpoint: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    """Every tensor with its name in the model: without the wrapper that training put around."""
    top = checkpoint.decoded.value
    wrapped = _wrapper(checkpoint, top)
    seen: set[int] = set()
    names: set[str] = set()
    for start in [top] if wrapped is None else [wrapped, top]:
        seen.add(id(start))
        walk = [("", _children(start))]
        while walk:
            prefix, children = walk[-1]
            name, inner = next(children, (None, None))
            if name is None:
                walk.pop()
                continue
            full = f"{prefix}.{name}" if prefix else name
            tensor = tensor_of(checkpoint, full, inner)
            if tensor is not None and full not in names:
                names.add(full)
                if len(names) > _MOST_TENSORS:
                    raise UncorkError(f"{checkpoint.path} holds more than {_MOST_TENSORS} tensors")
                yield full, tensor
            elif tensor is None and id(inner) not in seen and len(walk) < _MOST_DEPTH:
                seen.add(id(inner))
                walk.append((full, _children(inner)))


def _wrapper(checkpoint: Checkpoint, top: Any) -> Any:
    """The state dict inside a training checkpoint; None where the top is one itself."""
    inner = top
    for _ in range(_MOST_DEPTH):  # {"model": {"state_dict": …}} is written too
        pairs = dict(_children(inner))
        if any(tensor_of(checkpoint, name, value) for name, value in pairs.items()):
            break
        wrapped = [pairs[name] for name in _WRAPPERS if isinstance(pairs.get(name), Table | Call)]
        filled = [one for one in wrapped if next(_children(one), None) is not None]
        if not filled:
            break
        inner = filled[0]
    return None if inner is top else inner


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    """What a table, a list or a module holds, by name; optimisers are not part of a model."""
    if isinstance(value, Table):
        for name, inner in value.pairs:
            if isinstance(name, bytes):
                name = name.decode("utf-8", "replace")
            if isinstance(name, str) and not name.startswith(_NOT_WEIGHTS):
                yield name, inner
    elif isinstance(value, list | tuple):
        yield from ((str(at), inner) for at, inner in enumerate(value))
    elif isinstance(value, Call):
        yield from _children(value.items)
        if isinstance(value.state, Table):
            inside = ("_parameters", "_buffers", "_modules")
            module = [value.state.get(name) for name in inside]
            if any(isinstance(part, Table) for part in module):  # a whole torch.nn.Module
                for part in module:
                    yield from _children(part)
            else:
                yield from _children(value.state)


def _settings(top: Any) -> dict[str, Any]:
    """Plain options that a training checkpoint carries (fairseq's args or cfg), by name."""
    found: dict[str, Any] = {}
    for key in ("args", "cfg", "hyper_parameters", "config"):
        if isinstance(top, Table):
            for one in _everything(top.get(key)):
                if isinstance(one, Table):
                    for name, value in one.pairs:
                        if isinstance(name, str) and isinstance(value, bool | int | str):
                            found.setdefault(name, value)
    return found
