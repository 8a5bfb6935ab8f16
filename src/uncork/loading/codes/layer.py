"""The tensors around one weight, and the matrix that a scheme makes of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.contents import Tensor

_CHUNK = 1 << 22  # elements dequantised in one go
_ALIGNED = 256  # rows that begin a chunk: a multiple of every packing


@dataclass(frozen=True)
class Matrix:
    """A weight dequantised: `rows(start, stop)` gives float rows, start a multiple of 256."""

    shape: tuple[int, int]  # classes × features
    dtype: np.dtype
    how: str
    rows: Callable[[int, int], np.ndarray]

    def read(self) -> np.ndarray:
        """All of it, a few rows at a time so that what lies between stays small."""
        out = np.empty(self.shape, self.dtype)
        step = max(_CHUNK // max(1, self.shape[1]) // _ALIGNED, 1) * _ALIGNED
        for start in range(0, self.shape[0], step):
            stop = min(start + step, self.shape[0])
            with np.errstate(over="ignore"):  # an infinite weight is refused where all are
                out[start:stop] = self.rows(start, stop).astype(self.dtype)
        return out


@dataclass(frozen=True)
class Layer:
    """A weight by its name, and what lies beside it: `part("weight_scale")`, `part("scales")`.

    Names that begin with "weight" are the weight's own name with what follows, so that `W` has
    its `W_scale`; the others stand beside it in its module.
    """

    path: Path
    weight: str
    stored: Mapping[str, Tensor]
    config: Mapping[str, Any]

    @property
    def module(self) -> str:
        """The layer's own name: "lm_head" of lm_head.weight, "" of weight."""
        return self.weight.rpartition(".")[0]

    def name(self, part: str) -> str:
        """The full name of a part."""
        if part.startswith("weight"):
            return self.weight + part.removeprefix("weight")
        return f"{self.module}.{part}" if self.module else part

    def has(self, part: str) -> bool:
        return self.name(part) in self.stored

    def part(self, part: str) -> Tensor | None:
        return self.stored[self.name(part)] if self.has(part) else None

    def need(self, part: str) -> Tensor:
        """The part, or an error that says what is missing."""
        found = self.part(part)
        if found is None:
            self.fail(f"{printable(self.name(part))} is missing")
        return found

    def fail(self, problem: str) -> NoReturn:
        raise UncorkError(
            f"{self.path}: {printable(self.weight)} is stored as codes, and {problem}: damaged, or "
            "written in a way that uncork does not know; dequantise the model with its own "
            "library and save that"
        )

    def unsaid(self, problem: str) -> NoReturn:
        """Refuse codes that a configuration would explain."""
        raise UncorkError(
            f"{self.path}: {printable(self.weight)} is stored as codes, and nothing says "
            f"{problem}: give the folder with the model's config.json"
        )

    @property
    def quantisation(self) -> Mapping[str, Any]:
        """What the configuration says of how weights are stored: {} where it says nothing."""
        inner = self.config.get("text_config")
        for config in (self.config, inner if isinstance(inner, Mapping) else {}):
            for key in ("quantization_config", "quantization", "compression_config"):
                if isinstance(config.get(key), Mapping):
                    found: Mapping[str, Any] = config[key]
                    return found
        return {}

    @property
    def method(self) -> str:
        """The library that the configuration names, "" where it names none."""
        return str(self.quantisation.get("quant_method", "")).lower()

    def number(self, part: str) -> float:
        """A part that is one number."""
        tensor = self.need(part)
        if np.prod(tensor.shape) != 1:
            self.fail(f"{tensor} should be one number")
        value = float(np.asarray(tensor.read()).astype(np.float64).reshape(()))
        if not np.isfinite(value):
            self.fail(f"{tensor} is {value}")
        return value

    def finite(self, part: str) -> np.ndarray:
        """A part whose every value must be finite, in float32 (float64 stays what it is)."""
        tensor = self.need(part)
        if not is_float(tensor.dtype):
            self.fail(f"{tensor} is of type {tensor.dtype} where scales are expected")
        values = tensor.read()
        values = values if values.dtype == np.float64 else values.astype(np.float32)
        if not np.isfinite(values).all():
            self.fail(f"{tensor} holds values that are not finite")
        return values

    def type_of(self, part: str) -> np.dtype:
        """The float type that a part is stored in."""
        import ml_dtypes  # its types are known to NumPy by name only once it is imported

        name = self.need(part).dtype
        return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


Scheme = Callable[[Layer], "Matrix | None"]  # None: stored in another way


def is_float(dtype: str) -> bool:
    """Whether values of that type can be multiplied by: 16 bits or more."""
    return dtype in ("bfloat16", "float16", "float32", "float64")


def once(layer: Layer, make: Callable[[Layer], Any]) -> Callable[[], Any]:
    """What a scheme needs for every row, made when the first row is asked for."""
    return functools.cache(lambda: make(layer))
