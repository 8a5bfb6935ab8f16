"""Paddle: the program as an ONNX graph, with the parameters beside it, and the head found there."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

from uncork.core.errors import UncorkError
from uncork.loading.contents import Choice, Contents
from uncork.loading.onnx.file import OnnxModel
from uncork.loading.paddle.labels import labels_beside
from uncork.loading.paddle.operators import Translation
from uncork.loading.paddle.parameters import Parameter, read_combined, read_separate
from uncork.loading.paddle.pir import is_pir, read_pir
from uncork.loading.paddle.program import Program, read_program

_ALONE = "__model__"  # a program whose parameters have a file each
_COMBINED = ("__params__", "params")


def looks_like_paddle(path: Path, start: bytes, size: int) -> bool:
    """Whether a file is a program by its first bytes or its name."""
    return is_pir(start) or path.name == _ALONE


def is_paddle_folder(names: set[str]) -> bool:
    """Whether a folder with these files is that of a Paddle model."""
    stems = {name.removesuffix(".pdiparams") for name in names if name.endswith(".pdiparams")}
    programs = {f"{stem}{end}" for stem in stems for end in (".pdmodel", ".json")}
    return _ALONE in names or bool(programs & names)


def read_paddle(path: Path) -> Contents:
    """The parameters of a program, and the head that its outputs come from."""
    program, parameters = _read(_program_of(path))
    model = OnnxModel(program.path, Translation(program, parameters).draft)
    return Contents(
        path,
        "paddle",
        model.constants.tensors(),
        lambda: _settled(model.choose()),
        lambda name: _settled(found) if (found := model.around(name)) is not None else None,
        functools.partial(labels_beside, program.path.parent),
        model.domain,
    )


def _settled(choice: Choice) -> Choice:
    """The program shows what is added to the logits, and that nothing is."""
    return replace(choice, bias_settled=True)


def _program_of(path: Path) -> Path:
    """The program's file: the one given, or the one beside the parameters or in the folder."""
    if path.is_dir():
        names = sorted(one.name for one in path.iterdir())
        found = [name for name in names if name.endswith(".pdmodel") or name == _ALONE]
        found += [
            name for name in names
            if name.endswith(".json") and f"{name[:-5]}.pdiparams" in names
            and f"{name[:-5]}.pdmodel" not in names
        ]  # fmt: skip
        if len(found) != 1:
            raise UncorkError(
                f"{path} holds {len(found)} programs of Paddle ({', '.join(found[:8])}): give one"
            )
        return path / found[0]
    if path.suffix != ".pdiparams":
        return path
    for suffix in (".pdmodel", ".json"):
        if path.with_suffix(suffix).is_file():
            return path.with_suffix(suffix)
    raise UncorkError(
        f"{path} holds Paddle's parameters without their names, and the program that has them "
        f"({path.stem}.pdmodel or {path.stem}.json) does not lie beside it: put it there"
    )


def _read(path: Path) -> tuple[Program, list[Parameter]]:
    with path.open("rb") as file:
        program = read_pir(path) if is_pir(file.read(64)) else read_program(path)
    beside = [path.with_suffix(".pdiparams")]
    if path.name == _ALONE:
        beside = [path.with_name(name) for name in _COMBINED]
    for found in beside:
        if found.is_file():
            return program, read_combined(found, program)
    if path.name == _ALONE:
        return program, read_separate(path.parent, program)
    raise UncorkError(
        f"{path} is a Paddle program, and its parameters ({beside[0].name}) do not lie beside it: "
        "put them there"
    )
