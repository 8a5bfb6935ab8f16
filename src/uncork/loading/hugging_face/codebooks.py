"""One tensor that holds the heads of several codebooks, shown as one tensor a codebook.

`codebooks_head.weight` of three dimensions becomes `codebooks_head.weight[0]`, `…[1]` and so on,
each classes × features, beside the tensor itself.
"""

from __future__ import annotations

import functools
from collections import ChainMap
from collections.abc import Mapping
from typing import Any

import numpy as np

from uncork.loading.contents import Tensor

# Model type → the tensor, and the setting that says how many heads stand in its rows. None: it has
# three dimensions, codebooks × features × classes.
_STACKED: dict[str, tuple[str, str | None]] = {
    "csm_depth_decoder_model": ("codebooks_head.weight", None),
    "dia": ("logits_dense.weight", "num_channels"),
    "higgs_audio_v2": ("audio_lm_head.weight", "num_codebooks"),
}
_MOST = 1024  # more codebooks than any model has


def with_codebooks(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """The tensors, and those of single codebooks where the model type stacks them."""
    name, setting = _STACKED.get(str(config.get("model_type", "")), ("", None))
    whole = tensors.get(name)
    if whole is None:
        return tensors
    if setting is None:
        count = whole.shape[0] if len(whole.shape) == 3 else 0
        shape = whole.shape[:0:-1]  # classes × features
    else:
        count = _setting(config, setting) if len(whole.shape) == 2 else 0
        shape = (whole.shape[0] // count, whole.shape[1]) if count else ()
        if count and whole.shape[0] % count:
            count = 0
    if not 0 < count <= _MOST:
        return tensors
    books = {
        f"{name}[{k}]": Tensor(
            f"{name}[{k}]",
            shape,
            whole.dtype,
            functools.partial(_book, whole, k, shape[0]),
            whole.folded,
            whole.doubts,
            slice_of=name,
        )
        for k in range(count)
    }
    # Not one dictionary: that would open every shard.
    return ChainMap(books, tensors)  # type: ignore[arg-type]  # nothing writes to it


def _setting(config: Mapping[str, Any], key: str) -> int:
    """A number of codebooks, from the configuration or one nested in it."""
    for part in (config, *(v for v in config.values() if isinstance(v, Mapping))):
        found = part.get(key)
        if isinstance(found, int) and not isinstance(found, bool) and 0 < found <= _MOST:
            return found
    return 0


def _book(whole: Tensor, k: int, classes: int) -> np.ndarray:
    values = whole.read()
    if values.ndim == 3:
        found: np.ndarray = values[k].T
        return found
    return values[k * classes : (k + 1) * classes]
