"""activations: run a model over data and record what arrives at its head (Appendix F).

runner = open_runner("model.onnx", ["lines.npz"])
statistics = record(runner)
statistics.lower, statistics.upper, statistics.first
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from uncork.activations.batch import Batch, Runner
from uncork.activations.recording import State, Stopped, record
from uncork.activations.statistics import Statistics
from uncork.core.errors import UncorkError

__all__ = ["Batch", "Runner", "State", "Statistics", "Stopped", "open_runner", "record"]


def open_runner(
    model: str | os.PathLike[str],
    data: Sequence[str | os.PathLike[str]],
    *,
    weight: str | None = None,
    batch_size: int = 16,
    **settings: int,
) -> Runner:
    """A model ready to run over data: a transformers folder over text, or ONNX over arrays or
    pictures. Other formats hold weights only and cannot be run. Settings are `max_length` and
    `max_new_tokens`, of text."""
    for name, number in {"batch_size": batch_size, **settings}.items():
        if number < 1:  # whatever the model, though only some heed every setting
            raise UncorkError(f"--{name.replace('_', '-')} {number}: expected one or more")
    path = Path(model)
    if path.is_dir():
        from uncork.activations.transformers_runner import TransformersRunner

        return TransformersRunner(path, data, weight=weight, batch_size=batch_size, **settings)
    if not path.exists():
        raise UncorkError(
            f"{model} does not exist: a model to run is an .onnx file or a transformers folder on "
            "this machine"
        )
    with path.open("rb") as file:
        start = file.read(4)
    if path.suffix.lower() == ".onnx" or start[:1] == b"\x08":
        from uncork.activations.onnx_runner import OnnxRunner

        return OnnxRunner(path, data, weight=weight, batch_size=batch_size)
    raise UncorkError(
        f"{model} holds weights only: a model to run is an .onnx file or a transformers folder"
    )
