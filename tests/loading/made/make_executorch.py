"""Writes the ExecuTorch programs that tests read: `python make_executorch.py`, executorch 1.5.1.

Each beside the head's weight and bias, the inputs that torch gave to the last layer (x), and the
scores that ExecuTorch's own runtime computes with the file (z).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from executorch.exir import ExecutorchBackendConfig, to_edge, to_edge_transform_and_lower
from executorch.runtime import Runtime
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

HERE = Path(__file__).parent / "executorch"
CLASSES, FEATURES = 12, 8


class Images(nn.Module):
    """A convolution with batch normalisation, pooling, and the head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, FEATURES, 3, padding=1), nn.BatchNorm2d(FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES)
        nn.init.uniform_(self.norm.weight, 0.5, 2.0)

    def forward(self, x: Any) -> Any:
        hidden = nn.functional.relu6(self.norm(self.conv(x))).mean((2, 3))
        return self.head(hidden)


class Text(nn.Module):
    """Tokens through a layer with GELU and a LayerNorm; the first of them goes into the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(20, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.norm, self.head = nn.LayerNorm(FEATURES), nn.Linear(FEATURES, CLASSES, bias=False)
        nn.init.uniform_(self.norm.weight, 0.5, 2.0)

    def forward(self, ids: Any) -> Any:
        hidden = nn.functional.gelu(self.mix(self.embed(ids)))
        return torch.log_softmax(self.head(self.norm(hidden)[:, 0]), -1)


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, FEATURES), nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Any) -> Any:
        return torch.softmax(self.head(torch.relu(self.first(x))), -1)


def write(name: str, made: Any, model: nn.Module, given: Any, weight: Any = None) -> None:
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "m.pte").write_bytes(made.buffer)
    seen: list[Any] = []
    handle = model.head.register_forward_hook(lambda m, args, out: seen.append(args[0]))
    with torch.no_grad():
        model(given)
    handle.remove()
    method = Runtime.get().load_program(folder / "m.pte").load_method("forward")
    scores = method.execute([given])[0].numpy()
    kept = {"weight": model.head.weight.detach().numpy() if weight is None else weight}
    if model.head.bias is not None:
        kept["bias"] = model.head.bias.detach().numpy()
    np.savez(folder / "expected.npz", x=seen[0].numpy(), z=scores, **kept)


def quantised(model: nn.Module, given: Any) -> tuple[Any, np.ndarray]:
    """8-bit weights with a scale for each channel, and what they stand for."""
    quantizer = XNNPACKQuantizer().set_global(
        get_symmetric_quantization_config(is_per_channel=True, is_dynamic=True)
    )
    prepared = prepare_pt2e(torch.export.export(model, (given,)).module(), quantizer)
    prepared(given)
    converted = convert_pt2e(prepared)
    weight = model.head.weight.detach().double()
    state = dict(converted.named_buffers())
    (codes,) = (
        one for one in state.values() if one.dtype == torch.int8 and one.shape == weight.shape
    )
    scales = [one for one in state.values() if one.shape == (CLASSES,) and one.is_floating_point()]
    (scale,) = (
        one for one in scales if torch.allclose(codes * one[:, None].double(), weight, atol=0.01)
    )
    program = torch.export.export(converted, (given,))
    return program, (codes.double() * scale[:, None].double()).numpy()


def main() -> None:
    torch.manual_seed(0)
    images, text, dense = Images().eval(), Text().eval(), Dense().eval()
    picture, ids = torch.randn(2, 3, 8, 8), torch.randint(0, 20, (2, 5))
    numbers = 3 * torch.randn(4, 6)

    def exported(model: nn.Module, given: Any) -> Any:
        return torch.export.export(model, (given,))

    def lowered(program: Any) -> Any:
        found = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
        return found.to_executorch()

    write("images", to_edge(exported(images, picture)).to_executorch(), images, picture)
    inline = ExecutorchBackendConfig()
    write("text", to_edge(exported(text, ids)).to_executorch(inline), text, ids)
    write("xnnpack-text", lowered(exported(text, ids)), text, ids)
    write("xnnpack-dense", lowered(exported(dense, numbers)), dense, numbers)
    program, weight = quantised(dense, numbers)
    write("xnnpack-int8", lowered(program), dense, numbers, weight)


if __name__ == "__main__":
    main()
