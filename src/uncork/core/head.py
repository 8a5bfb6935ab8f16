"""Head: the last linear map of a model, z = W x + b, exactly as it was stored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.reading import Reading
from uncork.domain import Box, Domain

# Types whose every value is exact in float64. Wider integers are checked value by value.
_EXACT = {
    np.dtype(t)
    for t in (
        np.float64, np.float32, np.float16, ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
        np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32, np.bool_,
    )
}  # fmt: skip
_WIDE = {np.dtype(np.int64), np.dtype(np.uint64)}
# Types of torch that its arrays have not: read bit for bit as integers, and named again.
_BITS: dict[str, tuple[str, Any]] = {
    "torch.bfloat16": ("uint16", ml_dtypes.bfloat16),
    "torch.float8_e4m3fn": ("uint8", ml_dtypes.float8_e4m3fn),
    "torch.float8_e5m2": ("uint8", ml_dtypes.float8_e5m2),
}
_BLOCK_BYTES = 64 << 20  # how much of the weight is looked at in one go


class Head:
    """z = W x + b with one row of W a class; labels name the classes, the domain bounds x.

    `weight` (classes, features) and `bias` (classes,) keep the type they are given in, and may be
    memory-mapped: nothing is copied. Every value must be finite and exact in float64, because a
    verdict is a statement about exactly these numbers. `reading` says which tensors of a source
    they are, None for a head built by hand.
    """

    weight: np.ndarray
    bias: np.ndarray | None
    labels: tuple[str, ...] | None
    domain: Domain
    source: str
    reading: Reading | None

    def __init__(
        self,
        weight: Any,
        bias: Any = None,
        labels: Sequence[str] | None = None,
        domain: Domain | None = None,
        *,
        source: str = "",
        reading: Reading | None = None,
    ) -> None:
        self.weight = _as_stored(weight, "weight")
        self.domain = Box(100) if domain is None else domain
        self.source = source
        self.reading = reading
        if self.weight.ndim != 2:
            raise UncorkError(
                f"weight has shape {self.weight.shape}: a head has two dimensions, "
                "classes × features"
            )
        if self.classes < 2:
            raise UncorkError(
                f"weight has shape {self.weight.shape}: a head needs at least two classes "
                "(are classes the columns? then transpose)"
            )
        if self.features < 1:
            raise UncorkError(f"weight has shape {self.weight.shape}: there are no features")
        _check_values(self.weight, "weight")
        self.bias = None
        if bias is not None:
            self.bias = _as_stored(bias, "bias")
            if self.bias.shape != (self.classes,):
                raise UncorkError(
                    f"bias has shape {self.bias.shape} but there are {self.classes} classes: "
                    f"expected ({self.classes},)"
                )
            _check_values(self.bias, "bias")
        if not isinstance(self.domain, Domain):
            raise UncorkError(
                f"domain must be a Domain such as Box or LayerNorm, not {self.domain!r}"
            )
        self.domain.check(self.features)
        if labels is None:
            self.labels = None
        else:
            self.labels = tuple(str(label) for label in labels)
            if len(self.labels) != self.classes:
                raise UncorkError(
                    f"there are {len(self.labels)} labels for {self.classes} classes: "
                    "give one label a class"
                )

    @property
    def classes(self) -> int:
        return int(self.weight.shape[0])

    @property
    def features(self) -> int:
        return int(self.weight.shape[1])

    @property
    def dtype(self) -> str:
        return str(self.weight.dtype)

    def __repr__(self) -> str:
        bias = "with" if self.bias is not None else "no"
        return f"Head({self.classes} × {self.features}, {self.dtype}, {bias} bias, {self.domain})"

    def label(self, class_id: int) -> str:
        """The class's label, or its number where there are no labels."""
        return str(class_id) if self.labels is None else self.labels[class_id]

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Rows start to stop of W in float64, exactly: (stop − start, d)."""
        return np.asarray(self.weight[start:stop], dtype=np.float64)

    def take(self, classes: np.ndarray) -> np.ndarray:
        """The named rows of W in float64, exactly: (n, d)."""
        return np.asarray(self.weight[classes], dtype=np.float64)

    @cached_property
    def offsets(self) -> np.ndarray:
        """The bias in float64, exactly; zeros where there is none: (C,)."""
        if self.bias is None:
            return np.zeros(self.classes)
        return np.asarray(self.bias, dtype=np.float64)

    @property
    def stored(self) -> np.ndarray | None:
        """The rows as they are stored."""
        return self.weight

    @cached_property
    def largest_weight(self) -> float:
        """The largest magnitude in W, exactly."""
        return max(_largest(block) for block in _row_blocks(self.weight))

    def blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        """Every row of W in float64, in order, `rows` at a time: (first row, block)."""
        for start in range(0, self.classes, rows):
            yield start, self.rows(start, min(start + rows, self.classes))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of types, shapes and bytes of weight and bias (little-endian, row by row).

        It says nothing of labels, domain or reading: two heads with one fingerprint are the same
        function.
        """
        digest = hashlib.sha256(b"uncork head 1\n")
        for name, array in (("weight", self.weight), ("bias", self.bias)):
            if array is None:
                continue
            digest.update(f"{name} {array.dtype.name} {array.shape}\n".encode())
            for block in _row_blocks(array):
                digest.update(np.ascontiguousarray(block).view(np.uint8).data)
        return "sha256:" + digest.hexdigest()

    def replace(self, **changes: Any) -> Head:
        """A copy with some of weight, bias, labels, domain, source, reading changed."""
        fields = {
            "weight": self.weight, "bias": self.bias, "labels": self.labels,
            "domain": self.domain, "source": self.source, "reading": self.reading,
        }  # fmt: skip
        unknown = set(changes) - set(fields)
        if unknown:
            raise TypeError(f"a head has no {', '.join(sorted(unknown))}")
        if "bias" in changes and self.reading is not None:
            fields["reading"] = self.reading.with_bias(changes["bias"] is not None)
        return Head(**{**fields, **changes})


def _as_stored(values: Any, name: str) -> np.ndarray:
    """The array behind what was given, without changing a value."""
    if hasattr(values, "detach"):  # a torch tensor, without importing torch
        values = _from_torch(values.detach(), name)
    array = np.asarray(values)
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and not np.little_endian):
        array = array.astype(array.dtype.newbyteorder("<"))
    if array.dtype not in _EXACT | _WIDE:
        raise UncorkError(
            f"{name} holds {array.dtype} values, which float64 cannot hold exactly: "
            "expected floats of at most 64 bits or integers"
        )
    return array


def _from_torch(values: Any, name: str) -> np.ndarray:
    import torch

    bits, kind = _BITS.get(str(values.dtype), ("", None))
    try:
        values = values.cpu()
        if kind is None:
            return np.asarray(values.numpy())
        return np.asarray(values.view(getattr(torch, bits)).numpy().view(kind))
    except (TypeError, RuntimeError, NotImplementedError) as error:
        raise UncorkError(f"{name} is a tensor that cannot be read: {error}") from error


def _row_blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    row_bytes = max(1, array.nbytes // max(1, array.shape[0]))
    step = max(1, _BLOCK_BYTES // row_bytes)
    for start in range(0, array.shape[0], step):
        yield array[start : start + step]


def _largest(block: np.ndarray) -> float:
    """The largest magnitude in a block, without a copy of it in a wider type."""
    if block.dtype.kind == "V" or block.dtype == np.float16:  # narrow floats: NumPy widens them
        bits = np.ascontiguousarray(block).view(f"u{block.dtype.itemsize}")
        # Magnitudes are ordered as their bits are, once the sign is taken away.
        largest = (bits & (2 ** (8 * block.dtype.itemsize - 1) - 1)).max()
        return float(np.array([largest], dtype=bits.dtype).view(block.dtype)[0])
    return max(abs(float(block.max())), abs(float(block.min())))


def _check_values(array: np.ndarray, name: str) -> None:
    if array.dtype.kind in "iub":
        if array.dtype in _WIDE:
            for block in _row_blocks(array):
                if (block > 2**53).any() or (block < -(2**53)).any():
                    raise UncorkError(f"{name} holds integers beyond 2**53: not exact in float64")
        return
    first = 0
    for block in _row_blocks(array):
        finite = np.isfinite(block)
        if not finite.all():
            where = np.argwhere(~finite)[0]
            value = block[tuple(where)]
            place = ", ".join(
                str(int(i) + (first if axis == 0 else 0)) for axis, i in enumerate(where)
            )
            raise UncorkError(f"{name}[{place}] is {float(value)}: every value must be finite")
        first += len(block)
