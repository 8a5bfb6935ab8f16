"""The archive of a .pt2 file: its program as plain values, its weights as views of the file.

Three layouts are known: one file a tensor (`data/weights/…` with a list of them, since torch 2.9),
one checkpoint for all (`data/weights/model.pt`, torch 2.8), and `serialized_exported_program.json`
with checkpoints beside it (up to torch 2.7). Fields are those of torch/_export/serde/schema.py.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.aten.program import About, Constant, Open, Operation, Program, Ref
from uncork.loading.bounded.archive import Storage, place_of
from uncork.loading.contents import Tensor
from uncork.loading.torch.file import tensors_within
from uncork.loading.torch.pickle_decoder import Decoded
from uncork.loading.torch.tensors import Checkpoint, strided

_MOST_JSON = 256 << 20
_MOST_VALUES = 1 << 20
_OLD, _FORMAT = "serialized_exported_program.json", "archive_format"
_TYPES: dict[int, Any] = {  # ScalarType of the schema
    1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.float16, 7: np.float32,
    8: np.float64, 12: np.bool_, 13: ml_dtypes.bfloat16, 28: np.uint16,
    29: ml_dtypes.float8_e4m3fn, 30: ml_dtypes.float8_e5m2, 34: np.uint32, 35: np.uint64,
}  # fmt: skip
_PARAMETERS = {"parameter": "parameter_name", "buffer": "buffer_name",
               "tensor_constant": "tensor_constant_name"}  # fmt: skip


def is_exported(names: set[str]) -> bool:
    """Whether an archive with these members is one that torch.export or AOTInductor wrote."""
    return _folder(names) is not None


def _folder(names: Iterable[str]) -> str | None:
    """The folder that torch puts around everything in an archive; None where it is not torch's."""
    for name in names:
        for known in (_FORMAT, _OLD):
            if name == known or (name.endswith(f"/{known}") and name.count("/") == 1):
                return name.removesuffix(known)
    return None


@dataclass
class Archive:
    """An opened archive: members by their name without the folder around all of them."""

    path: Path
    members: Mapping[str, zipfile.ZipInfo]
    file: IO[bytes]
    size: int
    storages: dict[str, Storage] = field(default_factory=dict)

    def place(self, name: str) -> Storage:
        found = place_of(self.file, self.members[name], self.size)
        if found.problem:
            raise UncorkError(f"{self.path}: {printable(name)} in it {found.problem}")
        return found

    def json(self, name: str) -> dict[str, Any]:
        """A member that is a JSON object."""
        place = self.place(name)  # as long as it is in the file, so no longer than that
        if place.size > _MOST_JSON:
            raise UncorkError(f"{self.path}: {printable(name)} has {place.size} bytes: too many")
        self.file.seek(place.offset)
        try:
            found = json.loads(self.file.read(place.size))
        except (ValueError, RecursionError) as error:
            text = " ".join(str(error).split())[:80]
            raise UncorkError(f"{self.path}: {printable(name)} is not JSON: {text}") from error
        if not isinstance(found, dict):
            raise UncorkError(f"{self.path}: {printable(name)} is not a JSON object: damaged")
        return found


def read_program(path: Path) -> Program:
    """The program of an archive; no weight is read yet."""
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            folder = _folder(archive.namelist()) or ""
            members = {one.filename.removeprefix(folder): one for one in archive.infolist()}
            return _program(Archive(path, members, file, path.stat().st_size))
    except UncorkError:
        raise
    except (zipfile.BadZipFile, OSError, NotImplementedError) as error:
        raise UncorkError(f"{path} is a damaged or truncated archive: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        text = " ".join(str(error).split())[:80]
        raise UncorkError(
            f"{path} is damaged, or of a version of torch.export that is not known: "
            f"{printable(type(error).__name__)} {printable(text)}"
        ) from error


def _program(archive: Archive) -> Program:
    if _OLD in archive.members:
        saved = archive.json(_OLD)
        tensors = _checkpoints(archive, "serialized_state_dict.pt", "serialized_constants.pt")
        return _graph(archive, saved, tensors)
    models = sorted(
        name.removeprefix("models/").removesuffix(".json")
        for name in archive.members
        if name.startswith("models/") and name.endswith(".json")
    )
    if not models:
        compiled = any(name.startswith("data/aotinductor/") for name in archive.members)
        what = "code compiled by AOTInductor and no" if compiled else "no"
        raise UncorkError(
            f"{archive.path} holds {what} exported program: save the program itself with "
            "torch.export.save, or give the model's weights"
        )
    if len(models) > 1:
        names = ", ".join(printable(name)[:40] for name in models[:8])
        raise UncorkError(
            f"{archive.path} holds {len(models)} programs ({names}): save one by itself with "
            "torch.export.save"
        )
    (model,) = models
    saved = archive.json(f"models/{model}.json")
    tensors = {**_kept(archive, model, "weights"), **_kept(archive, model, "constants")}
    return _graph(archive, saved, tensors)


# Weights


def _checkpoints(archive: Archive, *names: str) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name in names:
        if name in archive.members and archive.members[name].file_size:
            found |= tensors_within(archive.path, archive.place(name))
    return found


def _kept(archive: Archive, model: str, kind: str) -> dict[str, Tensor]:
    """Weights or constants of a model by their names, from either of the newer layouts."""
    listed = f"data/{kind}/{model}_{kind}_config.json"
    if listed not in archive.members:
        return _checkpoints(archive, f"data/{kind}/{model}.pt")
    order: str = "<"
    if "byteorder" in archive.members and archive.members["byteorder"].file_size < 16:
        place = archive.place("byteorder")
        archive.file.seek(place.offset)
        order = ">" if archive.file.read(place.size) == b"big" else "<"
    storages: dict[str, Storage] = {}
    checkpoint = Checkpoint(archive.path, Decoded(None, ()), storages, order)  # type: ignore[arg-type]
    found: dict[str, Tensor] = {}
    for name, about in _object(archive.json(listed).get("config")).items():
        member = f"data/{kind}/{about['path_name']}"
        meta = about.get("tensor_meta")
        if meta is None or member not in archive.members:
            continue  # an object that is not a tensor, or one that the archive left out
        dtype, shape = _dtype(meta["dtype"]), _numbers(meta["sizes"])
        stride, offset = _numbers(meta["strides"]), _numbers([meta["storage_offset"]])
        if about.get("use_pickle"):
            inside = tensors_within(archive.path, archive.place(member))
            if len(inside) == 1:
                found[name] = next(iter(inside.values()))
            continue
        if dtype is None or shape is None or stride is None or offset is None:
            continue
        if len(shape) != len(stride) or meta.get("layout", 7) != 7:
            raise ValueError(f"{printable(name)[:40]} is not laid out by strides")
        if member not in storages:
            storages[member] = place_of(archive.file, archive.members[member], archive.size)
        found[name] = strided(checkpoint, name, member, dtype, offset[0], shape, stride)
    return found


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("an object is missing")
    return value


def _dtype(number: Any) -> np.dtype | None:
    found = _TYPES.get(number) if isinstance(number, int) else None
    return None if found is None else np.dtype(found)


def _numbers(sides: Any) -> tuple[int, ...] | None:
    """Sides that are all known."""
    found = _sides(sides)
    if any(not isinstance(side, int) for side in found):
        return None
    return tuple(int(side) for side in found)


def _sides(sides: Any) -> tuple[int | str, ...]:
    """A shape: numbers, and open sides by their expressions."""
    if not isinstance(sides, list) or len(sides) > 64:
        raise ValueError("a shape is not a list")
    found: list[int | str] = []
    for side in sides:
        number = side.get("as_int")
        if number is None:
            found.append(str(_object(side["as_expr"]).get("expr_str", "?"))[:80])
        elif type(number) is int and 0 <= number < 2**62:
            found.append(number)
        else:
            raise ValueError(f"a side of {str(number)[:20]}")
    return tuple(found)


# The graph


def _graph(archive: Archive, saved: dict[str, Any], tensors: Mapping[str, Tensor]) -> Program:
    module = _object(saved["graph_module"])
    graph, signature = _object(module["graph"]), _object(module["signature"])
    values = {
        name: About(_dtype(meta["dtype"]), _sides(meta["sizes"]))
        for name, meta in _object(graph["tensor_values"]).items()
    }
    program = Program(archive.path, [], [], {}, values, [])
    for spec in signature["input_specs"]:
        _input(program, spec, tensors)
    for name in _changed(signature):  # other numbers from the second call on
        if program.constants.pop(name, None) is not None:
            program.inputs.append(name)
    for spec in signature["output_specs"]:
        given = spec.get("user_output")
        if given is not None and "as_tensor" in given["arg"]:
            program.outputs.append(_text(given["arg"]["as_tensor"]["name"]))
    if len(graph["nodes"]) > _MOST_VALUES:
        raise ValueError("more operators than any program has")
    for node in graph["nodes"]:
        program.operations.append(_operation(node))
    return program


def _changed(signature: Mapping[str, Any]) -> set[str]:
    """The values of parameters and buffers that a program without writes hands back changed."""
    changed: set[str] = set()
    named = {about.get(field): about["arg"]["name"]
             for spec in signature["input_specs"] for kind, about in spec.items()
             if (field := _PARAMETERS.get(kind)) is not None}  # fmt: skip
    for spec in signature["output_specs"]:
        for kind, about in spec.items():
            if kind.endswith("_mutation") and isinstance(about, dict):
                changed.update(named[one] for one in about.values()
                               if isinstance(one, str) and one in named)  # fmt: skip
    return changed


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a name is not a text")
    return value


def _input(program: Program, spec: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    kind = next(iter(spec))
    about = spec[kind]
    if kind == "user_input":
        if "as_tensor" in about["arg"]:
            program.inputs.append(_text(about["arg"]["as_tensor"]["name"]))
        return
    if kind not in _PARAMETERS:
        return
    value, name = _text(about["arg"]["name"]), _text(about[_PARAMETERS[kind]])
    tensor = tensors.get(name)
    if tensor is None or tensor.dtype == "?":
        program.inputs.append(value)  # nothing is known of it
        return
    said = program.values.get(value)
    if said is not None and said.sides is not None and said.sides != tensor.shape:
        raise ValueError(f"{printable(name)[:40]} has another shape in the graph than in the file")
    dtype = np.dtype(getattr(ml_dtypes, tensor.dtype, None) or tensor.dtype)
    program.constants[value] = Constant(name, tensor.shape, dtype, tensor.read)


def _operation(node: Mapping[str, Any]) -> Operation:
    target = _text(node["target"]).removeprefix("torch.ops.")
    kind, _, overload = target.rpartition(".")
    named = {_text(one["name"]): _argument(one["arg"]) for one in node["inputs"]}
    results = tuple(name for one in node["outputs"] for name in _results(one))
    return Operation(kind or target, overload, named, (), results)


def _results(output: Mapping[str, Any]) -> Iterator[str | None]:
    if "as_tensor" in output:
        yield _text(output["as_tensor"]["name"])
    elif "as_tensors" in output:
        for one in output["as_tensors"]:
            yield _text(one["name"])
    else:
        yield None


def _argument(given: Mapping[str, Any]) -> Any:
    """An argument as a number, a text, a reference, a list of these, or None."""
    kind = next(iter(given))
    value = given[kind]
    if kind == "as_tensor":
        return Ref(_text(value["name"]))
    if kind == "as_tensors":
        return [Ref(_text(one["name"])) for one in value]
    if kind in ("as_int", "as_float", "as_bool", "as_string", "as_ints", "as_floats", "as_bools"):
        return value
    if kind in ("as_sym_int", "as_sym_float", "as_sym_bool"):
        return _symbol(value)
    if kind in ("as_sym_ints", "as_sym_floats", "as_sym_bools"):
        return [_symbol(one) for one in value]
    if kind == "as_optional_tensor":
        return _argument(value)
    if kind == "as_optional_tensors":
        return [_argument(one) for one in value]
    return None if kind == "as_none" else Open(kind)


def _symbol(value: Mapping[str, Any]) -> Any:
    kind = next(iter(value))
    return Open(_text(value[kind])) if kind == "as_name" else value[kind]
