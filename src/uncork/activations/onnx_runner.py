"""Running an ONNX model over data with onnxruntime, and taking what arrives at its head."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from uncork.activations.batch import Batch, firsts
from uncork.activations.data import ARRAYS, PICTURES, Arrays, digest_of, files_of, picture
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.loading import find
from uncork.loading.onnx.file import open_onnx
from uncork.loading.onnx.linear import HeadNode

_HEIGHT = 48  # of PP-OCR's recognisers, where the model itself leaves it open
_KINDS: dict[str, Any] = {
    "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64,
    "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_,
    "tensor(uint8)": np.uint8, "tensor(int8)": np.int8,
}  # fmt: skip
_UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-53}


class OnnxRunner:
    """An ONNX model with two more outputs: the head's input, and its logits."""

    def __init__(
        self, path: Path, data: Sequence[str | os.PathLike[str]], *,
        weight: str | None = None, batch_size: int = 16, threads: int | None = None,
    ) -> None:  # fmt: skip
        try:
            import onnxruntime
        except ImportError:
            raise UncorkError(
                "running ONNX models needs onnxruntime: pip install 'uncork[onnxruntime]'"
            ) from None
        self.name = str(path)
        self.head: Head = find(path, weight=weight).head
        opened = open_onnx(path)
        _, self.head_node = opened.head_node(weight)
        self.constants = opened.constants
        self.batch_size = batch_size
        model, wanted = _with_outputs(opened.model, self.head_node)
        self.wanted = wanted
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3
        if threads is not None:
            settings.intra_op_num_threads = threads
        settings.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(path.resolve().parent)
        )
        try:
            self.session = onnxruntime.InferenceSession(
                model, settings, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime has a dozen of its own, with no common base
            raise UncorkError(f"{path} cannot be run by onnxruntime: {_line(error)}") from None
        given = opened.model.graph.input
        stored = {tensor.name for tensor in opened.model.graph.initializer}
        self.inputs = [i for i in self.session.get_inputs() if i.name not in stored]
        if not self.inputs or not given:
            raise UncorkError(f"{path} has no inputs to give data to")
        files = files_of(data)
        self.pictures = [p for p in files if p.suffix.lower() in PICTURES]
        others = [p for p in files if p not in set(self.pictures)]
        self.arrays: Arrays | None = None
        if others and self.pictures:
            raise UncorkError("--data: give pictures or arrays, not both")
        if others:
            if others[0].suffix.lower() not in ARRAYS:
                raise UncorkError(
                    f"--data {others[0]}: an ONNX model takes .npz or .npy arrays, or pictures "
                    f"({', '.join(PICTURES[:3])}) for a text recogniser"
                )
            self.arrays = Arrays(others, [i.name for i in self.inputs])
        else:
            self.channels, self.height = self._picture_shape()
        self.total = len(self.pictures) if self.arrays is None else self.arrays.total
        self.unit = 2.0**-24
        self.identity = digest_of("onnx", weight, batch_size, files=[path, *files])

    def _picture_shape(self) -> tuple[int, int]:
        shape = self.inputs[0].shape
        if len(self.inputs) != 1 or len(shape) != 4 or shape[1] not in (1, 3):
            described = ", ".join(f"{i.name} {i.shape}" for i in self.inputs)
            raise UncorkError(
                f"{self.name} takes {described}: pictures go into one input of 1 or 3 channels; "
                "give arrays (.npz) instead"
            )
        height = shape[2] if isinstance(shape[2], int) and shape[2] > 0 else _HEIGHT
        return int(shape[1]), int(height)

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        if self.arrays is not None:
            for items, arrays in self.arrays.between(start, stop, self.batch_size):
                yield self._run(arrays, items)
            return
        for path in self.pictures[start:stop]:  # of different widths: one at a time
            yield self._run({self.inputs[0].name: picture(path, self.channels, self.height)}, 1)

    def _run(self, arrays: dict[str, np.ndarray], items: int) -> Batch:
        feed = {i.name: _as_wanted(arrays[i.name], i) for i in self.inputs}
        try:
            outputs = self.session.run(self.wanted, feed)
        except Exception as error:
            raise UncorkError(f"{self.name} fails on this data: {_line(error)}") from None
        named = {**feed, **dict(zip(self.wanted, outputs, strict=True))}
        if named[self.head_node.logits].dtype == np.float16:
            self.unit = _UNITS["float16"]
        inputs = self._inputs(named)
        logits = _rows(named[self.head_node.logits], self.head_node.class_axis, self.head.classes,
                       self.head_node.pooled)  # fmt: skip
        if len(inputs) != len(logits):
            raise UncorkError(
                f"{self.name}: {len(inputs)} inputs arrive at the head and {len(logits)} rows of "
                "logits leave it"
            )
        return Batch(inputs, *firsts(logits), items)

    def _inputs(self, named: dict[str, np.ndarray]) -> np.ndarray:
        """The head's x, from integers where the model has rounded it to those."""
        head_node = self.head_node
        x = np.asarray(named[head_node.input])
        if head_node.dynamic is not None:
            scale, zero = (np.asarray(named[name], dtype=np.float64) for name in head_node.dynamic)
            x = (x.astype(np.float64) - zero) * scale
        elif head_node.quantised is not None or head_node.in_steps is not None:
            names = head_node.quantised or head_node.in_steps
            assert names is not None
            scale = np.asarray(self.constants.value(names[0]), dtype=np.float64)
            zero = np.asarray(self.constants.value(names[1]) if names[1] else 0, dtype=np.float64)
            x = x.astype(np.float64) - zero
            x = x * scale if head_node.quantised is not None else x
        return _rows(x, head_node.axis, self.head.features, head_node.pooled)


def _with_outputs(model: Any, head_node: HeadNode) -> tuple[bytes, list[str]]:
    """The model with the head's input and logits as outputs."""
    import onnx

    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    there = {output.name for output in changed.graph.output}
    given = {i.name for i in changed.graph.input}  # a head on its own takes what it is given
    names = dict.fromkeys([head_node.input, head_node.logits, *(head_node.dynamic or ())])
    wanted = [name for name in names if name not in given]
    for name in wanted:
        if name not in there:
            changed.graph.output.append(onnx.ValueInfoProto(name=name))
    return changed.SerializeToString(), wanted


def _rows(values: np.ndarray, axis: int | None, size: int, pooled: bool) -> np.ndarray:
    """Values (…, size, …) as rows (n, size), averaged over positions where the model does that."""
    if axis is None or values.ndim < -axis or values.shape[axis] != size:
        raise UncorkError(
            f"the head's values have shape {list(values.shape)}, with {size} expected along axis "
            f"{axis}"
        )
    rows = np.moveaxis(values, axis, -1)
    if pooled and rows.ndim > 2:
        rows = rows.reshape(len(rows), -1, size).mean(axis=1, dtype=np.float64)
    return rows.reshape(-1, size)


def _as_wanted(array: np.ndarray, wanted: Any) -> np.ndarray:
    kind = _KINDS.get(wanted.type)
    return array if kind is None or array.dtype == kind else array.astype(kind)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
