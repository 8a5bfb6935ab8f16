"""The one place that decides whether a weight is stored as codes, for any mapping of named tensors.

What lies beside a tensor decides, then its type; never the file's format or the model's type. A
weight in codes appears under its layer's own name (`lm_head.weight`, also for `lm_head.qweight`) as
the matrix that the model multiplies by, so that whoever chooses, turns, compares or saves a head
sees that and nothing else. The codes and scales stay listed, as parts that cannot be chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.codes.awq import read_awq
from uncork.loading.codes.bitsandbytes import read_four_bit, read_int8
from uncork.loading.codes.fp4 import read_mxfp4, read_nvfp4, read_packed_fp4
from uncork.loading.codes.gptq import read_gptq
from uncork.loading.codes.layer import Layer, Scheme, is_float
from uncork.loading.codes.mlx import read_affine
from uncork.loading.codes.pack_quantized import read_packed
from uncork.loading.codes.refused import HOLDERS, MARKS, OTHER_PARTS, WEAK_MARKS, holders, refusal
from uncork.loading.codes.scaled import read_scaled
from uncork.loading.contents import Tensor

SCHEMES: tuple[Scheme, ...] = (
    read_int8, read_four_bit, read_affine, read_gptq, read_awq, read_nvfp4, read_packed_fp4,
    read_mxfp4, read_packed, read_scaled,
)  # fmt: skip
_PARTS = (*HOLDERS, *MARKS, *WEAK_MARKS, *OTHER_PARTS)
# Types that libraries keep codes in; a matrix of them without scales may still mean itself.
_CODE_TYPES = ("int8", "uint8", "int32", "uint32")


def decoded(
    path: Path,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any] | None = None,
    *,
    of_a_model: bool = False,
) -> Decoded:
    """The tensors with every weight that is stored as codes as the matrix it stands for.

    `of_a_model` says that the tensors are a neural network's own: then a matrix of integers without
    a scale is refused, where a plain file's gets a doubt; of float8 where there is a configuration.
    """
    if isinstance(tensors, Decoded):
        tensors = tensors.stored
    return Decoded(path, tensors, config or {}, of_a_model)


class Decoded(Mapping[str, Tensor]):
    """The tensors of `stored`, decided upon one by one as they are asked for."""

    def __init__(
        self, path: Path, stored: Mapping[str, Tensor], config: Mapping[str, Any], of_a_model: bool
    ) -> None:
        self.path, self.stored, self.config, self.of_a_model = path, stored, config, of_a_model
        self._known: dict[str, Tensor] = {}

    def __contains__(self, name: object) -> bool:
        return name in self.stored or (isinstance(name, str) and self._held(name))

    def __iter__(self) -> Iterator[str]:
        made: set[str] = set()
        for name in self.stored:
            weight = self._owner(name, tuple(HOLDERS))
            new = weight is not None and weight not in self.stored and weight not in made
            if weight is not None and new and self._held(weight):
                made.add(weight)
                yield weight
            yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._known:
            if name not in self:
                raise KeyError(name)
            self._known[name] = self._decide(name)
        return self._known[name]

    def _layer(self, weight: str) -> Layer:
        return Layer(self.path, weight, self.stored, self.config)

    def _held(self, weight: str) -> bool:
        """Whether a weight of that name is there under a name of its codes."""
        if weight != "weight" and not weight.endswith(".weight"):
            return False
        return bool(holders(self._layer(weight)))

    def _owner(self, name: str, parts: tuple[str, ...]) -> str | None:
        """The weight that a tensor of that name would be a part of."""
        for part in parts:
            if name == part or name.endswith(f".{part}"):
                return name.removesuffix(part) + "weight"
        return None

    def _decide(self, name: str) -> Tensor:
        weight = self._owner(name, _PARTS)
        if weight is not None and weight in self and self[weight].folded:
            return replace(self.stored[name], part_of=weight)
        layer = self._layer(name)
        tensor = self.stored.get(name)
        if tensor is not None and len(tensor.shape) < 2:
            return tensor
        plain = tensor is None or is_float(tensor.dtype)
        parts = holders(layer) if tensor is None else []
        if tensor is None or not plain or layer.name("weight").endswith("weight"):
            parts += [part for part in MARKS if part not in parts and layer.has(part)]
        if not plain:
            parts += [part for part in WEAK_MARKS if layer.has(part)]
        parts = [part for part in parts if layer.name(part) != name]
        if not parts:
            assert tensor is not None
            return tensor if plain else self._bare(layer, tensor)
        try:
            for scheme in SCHEMES:
                made = scheme(layer)
                if made is not None:
                    how = (printable(made.how),)
                    return Tensor(name, made.shape, made.dtype.name, _Once(made.read), folded=how)
            problem = refusal(layer, parts)
        except UncorkError as error:
            problem = str(error)
        shape = (0, 0) if tensor is None else tensor.shape
        dtype = "codes" if tensor is None else tensor.dtype
        return Tensor(name, shape, dtype, _Refused(problem), folded=("stored as codes",))

    def _bare(self, layer: Layer, tensor: Tensor) -> Tensor:
        """A tensor of a type for codes, with nothing beside it that says what they mean."""
        float8 = tensor.dtype.startswith("float8")
        if self.of_a_model and (self.config or not float8):
            by = f" (quant_method {printable(layer.method)})" if layer.method else ""
            return replace(
                tensor,
                read=_Refused(
                    f"{self.path}: {tensor} is of type {tensor.dtype}: quantised{by}, and no scale "
                    "lies beside it; dequantise the model with its own library and save that"
                ),
            )
        if not (float8 or tensor.dtype in _CODE_TYPES):
            return tensor
        doubt = (
            f"{printable(tensor.name)} is of type {tensor.dtype} and has no scale beside it: it "
            "was taken as the weight itself; if these are codes, dequantise them first"
        )
        return replace(tensor, doubts=(doubt,))


class _Once:
    """Reads on the first call and keeps what was read: dequantising takes longer than a look."""

    def __init__(self, read: Any) -> None:
        self._read, self._found = read, None

    def __call__(self) -> Any:
        if self._found is None:
            self._found = self._read()
        return self._found


class _Refused:
    """Reading what cannot be read says why."""

    def __init__(self, problem: str) -> None:
        self._problem = problem

    def __call__(self) -> NoReturn:
        raise UncorkError(self._problem)
