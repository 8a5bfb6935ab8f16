"""Runs that the real trackers wrote, read back: with their own readers, where they have one."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

ODD = [
    "<script>alert(1)</script>", "a|b", "`code` **bold** [link](http://x)", "two\nlines\r",
    "\x1b[31mred", "\ud800", "", " ", "\u202e", "=1+1", 'quo"te,comma', b"bytes", None, 17, "ό",
]  # fmt: skip


def losing_head(classes: int = 60, features: int = 4) -> nn.Linear:
    """A head whose first classes, those with odd labels, are never first; all others can be."""
    layer = nn.Linear(features, classes)
    with torch.no_grad():
        layer.weight.copy_(nn.functional.normalize(torch.randn(classes, features)))
        layer.weight[: len(ODD)] *= 0.01
        layer.bias.zero_()
        layer.bias[: len(ODD)] = -0.5
    return layer


def labels(classes: int = 60) -> list[Any]:
    return [*ODD, *(f"class {t}" for t in range(len(ODD), classes))]


def kept(mlflow: Any, run_id: str, folder: Path) -> dict[str, str]:
    """The files of a run, by their paths."""
    mlflow.artifacts.download_artifacts(run_id=run_id, dst_path=str(folder))
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        path.relative_to(folder).as_posix(): path.read_bytes().decode("utf-8") for path in files
    }


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Of TensorBoard's event files: (step, value) by name."""
    found = _accumulated(folder)
    return {
        name: [(event.step, event.value) for event in found.Scalars(name)]
        for name in found.Tags()["scalars"]
    }


def texts(folder: Path) -> dict[str, list[tuple[int, str]]]:
    """Of TensorBoard's event files: (step, text) by name."""
    found = _accumulated(folder)
    return {
        name.removesuffix("/text_summary"): [
            (event.step, event.tensor_proto.string_val[0].decode()) for event in found.Tensors(name)
        ]
        for name in found.Tags()["tensors"]
    }


def _accumulated(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0})
    found.Reload()
    return found


def wandb_history(folder: Path) -> list[dict[str, Any]]:
    """The rows that an offline run of Weights & Biases recorded.

    Its file is a log as LevelDB writes them, of its own messages, and it has no reader in Python.
    """
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # its other process writes on after the run has ended
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    records = [Record.FromString(message) for message in _messages(file.read_bytes())]
    assert records[-1].WhichOneof("record_type") == "exit"
    return [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json)
         for item in record.history.item}
        for record in records if record.WhichOneof("record_type") == "history"
    ]  # fmt: skip


def _messages(data: bytes) -> Iterator[bytes]:
    block, header = 1 << 15, struct.Struct("<IHB")
    at, held = 7, b""
    while at + header.size <= len(data):
        room = block - at % block
        if room < header.size:
            at += room
            continue
        _, length, kind = header.unpack_from(data, at)
        at += header.size
        held += data[at : at + length]
        at += length
        if kind in (1, 4):  # all of it, or its last part
            yield held
            held = b""
