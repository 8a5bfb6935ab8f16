"""Writes the ML Programs that tests read: `python make_coreml.py`, coremltools 9.0 and torch.

Packages converted from torch modules, beside the head's weight and bias as coremltools itself gives
them, decompressed where it packed them, and the inputs that torch gave to the last layer (x). Core
ML runs on Apple's systems only, so that its own scores are not here.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import coremltools as ct
import coremltools.optimize.coreml as compress
import numpy as np
import torch
from torch import nn

HERE = Path(__file__).parent / "coreml"
CLASSES, FEATURES = 12, 8


class Images(nn.Module):
    """A convolution with batch normalisation, a mean over positions, the head, a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, FEATURES, 3, padding=1), nn.BatchNorm2d(FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES)
        nn.init.uniform_(self.norm.weight, 0.5, 2.0)

    def forward(self, x: Any) -> Any:
        hidden = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return torch.softmax(self.head(hidden), -1)


class Text(nn.Module):
    """Tokens through a layer with GELU and a LayerNorm; the first of them goes into the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(20, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.norm, self.head = nn.LayerNorm(FEATURES), nn.Linear(FEATURES, CLASSES, bias=False)
        nn.init.uniform_(self.norm.weight, 0.5, 2.0)
        nn.init.uniform_(self.norm.bias, -0.5, 0.5)

    def forward(self, ids: Any) -> Any:
        hidden = nn.functional.gelu(self.mix(self.embed(ids)))
        return self.head(self.norm(hidden + hidden.mean(1, keepdim=True))[:, 0])


class Gated(nn.Module):
    """An RMSNorm as language models write it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gain = nn.Linear(6, FEATURES), nn.Parameter(torch.rand(FEATURES) + 0.5)
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Any) -> Any:
        hidden = self.first(x)
        scale = torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.head(self.gain * (hidden * scale))


def convert(model: nn.Module, given: Any, **settings: Any) -> Any:
    kind = np.int32 if given.dtype == torch.int32 else np.float32
    return ct.convert(
        torch.jit.trace(model, given),
        inputs=[ct.TensorType(name="x", shape=tuple(given.shape), dtype=kind)],
        convert_to="mlprogram", skip_model_load=True,
        minimum_deployment_target=ct.target.iOS16, **settings,
    )  # fmt: skip


def write(name: str, package: Any, model: nn.Module, given: Any, compressed: bool = False) -> None:
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    package.save(str(folder / "m.mlpackage"))
    seen: list[Any] = []
    handle = model.head.register_forward_hook(lambda m, args, out: seen.append(args[0]))
    with torch.no_grad():
        model(given)
    handle.remove()
    weight = model.head.weight.detach().numpy()
    if compressed:
        found = compress.get_weights_metadata(
            compress.decompress_weights(package), weight_threshold=1
        )
        (weight,) = (one.val for one in found.values() if one.val.shape == (CLASSES, FEATURES))
    bias = model.head.bias
    more = {} if bias is None else {"bias": bias.detach().numpy()}
    np.savez(folder / "expected.npz", weight=weight, x=seen[0].numpy(), **more)


def main() -> None:
    torch.manual_seed(0)
    uuid.uuid4 = lambda: uuid.UUID(int=0)  # type: ignore[assignment]
    images, text, gated = Images().eval(), Text().eval(), Gated().eval()
    picture, ids = torch.randn(2, 3, 8, 8), torch.randint(0, 20, (2, 5), dtype=torch.int32)
    numbers = 3 * torch.randn(4, 6)
    labels = ct.ClassifierConfig([f"label {n}" for n in range(CLASSES)])
    single, half = ct.precision.FLOAT32, ct.precision.FLOAT16
    write("classifier", convert(images, picture[:1], classifier_config=labels,
                                compute_precision=half), images, picture[:1])  # fmt: skip
    write("text", convert(text, ids, compute_precision=single), text, ids)
    write("gated", convert(gated, numbers, compute_precision=single), gated, numbers)
    plain = convert(images, picture, compute_precision=single)
    eight = compress.OpLinearQuantizerConfig(mode="linear", dtype="int8", weight_threshold=1)
    write("int8", compress.linear_quantize_weights(plain, compress.OptimizationConfig(eight)),
          images, picture, compressed=True)  # fmt: skip
    for bits in (2, 6):
        few = compress.OpPalettizerConfig(mode="uniform", nbits=bits, weight_threshold=1)
        package = compress.palettize_weights(plain, compress.OptimizationConfig(few))
        write(f"table-{bits}", package, images, picture, compressed=True)


if __name__ == "__main__":
    main()
