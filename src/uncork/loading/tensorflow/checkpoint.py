"""A TensorFlow checkpoint by itself: variables by name, without the graph that uses them."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.contents import AmbiguousError, Choice, Contents, Tensor, as_matrix, listing
from uncork.loading.tensorflow.bundle import END, Saved, read_bundle

_INDEX = ".index"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # behind the names of Keras's objects
_OPTIMISER = ("/Adam", "/Momentum", "/RMSProp", "/ExponentialMovingAverage", ".OPTIMIZER_SLOT",
              "optimizer/", "save_counter", "_CHECKPOINTABLE_OBJECT_GRAPH")  # fmt: skip
_KERNELS = ("kernel", "weights", "w")  # a layer's matrix, features × classes
_BIASES = ("bias", "biases", "b")


def looks_like_checkpoint(path: Path, start: bytes, size: int) -> bool:
    """Whether a file is the table of a checkpoint: by its name and its last bytes."""
    if not path.name.endswith(_INDEX) or size < len(END):
        return False
    with path.open("rb") as file:
        file.seek(-len(END), 2)
        return file.read() == END


def read_checkpoint(path: Path) -> Contents:
    """The variables of a checkpoint; which is the head is for a person to say."""
    saved = read_bundle(path.parent, path.name.removesuffix(_INDEX))
    tensors = {}
    for key, one in saved.items():
        name = key.removesuffix(_VALUE)
        if one.dtype is not None and not any(part in key for part in _OPTIMISER):
            tensors[name] = Tensor(name, _flat(one.shape), one.dtype.name, _reader(one))
    if not tensors:
        raise UncorkError(f"{path} holds no variables")

    def choose() -> Choice:
        raise AmbiguousError(
            f"{path} is a checkpoint, which does not show how its variables are used: name the "
            f"weight with --weight. There are {listing(tensors.values())}"
        )

    return Contents(
        path, "tensorflow checkpoint", tensors, choose, functools.partial(_around, path, tensors)
    )


def _flat(shape: tuple[int, ...]) -> tuple[int, ...]:
    """1×1 convolutions, which TensorFlow keeps as (1, 1, features, classes), as matrices."""
    return shape[2:] if len(shape) == 4 and shape[:2] == (1, 1) else shape


def _reader(saved: Saved) -> functools.partial[np.ndarray]:
    return functools.partial(lambda one: one.read().reshape(_flat(one.shape)), saved)


def _around(path: Path, tensors: dict[str, Tensor], name: str) -> Choice | None:
    """The layer whose kernel that is: TensorFlow's have their classes as columns."""
    layer, _, last = name.rpartition("/")
    if last not in _KERNELS:
        return None
    weight = as_matrix(path, tensors[name]).T
    for other in _BIASES:
        bias = tensors.get(f"{layer}/{other}" if layer else other)
        if bias is not None and bias.shape == weight.shape[:1]:
            return Choice(weight, bias.read(), name, bias.name, "the kernel of a layer by its name")
    return Choice(weight, None, name, None, "the kernel of a layer by its name")
