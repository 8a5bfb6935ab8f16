"""Heads to measure on: real ones from packages, and made ones with planted interior rows."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import uncork

REAL = {
    "PP-OCRv4": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx"),
    "PP-OCRv6 small": ("rapidocr", "models/PP-OCRv6_rec_small.onnx"),
    "ddddocr": ("ddddocr", "common.onnx"),
    "magika": ("magika", "models/standard_v3_3/model.onnx"),
}


GPT2 = "GPT-2's shape"
MADE = ("speech-like", GPT2)


def build(name: str) -> tuple[uncork.Head, np.ndarray | None]:
    """The head, and its planted unargmaxable classes where it was made with some."""
    if name == "speech-like":
        return speech_like_head(), None
    if name == GPT2:
        made = planted_head(50_257, 768, interior=100, duplicates=20)
        return made.head, made.interior
    return real_head(name), None


def real_head(name: str) -> uncork.Head:
    """A head out of a model file that a package carries; the package's code is not run."""
    return uncork.load(real_path(name))


def real_path(name: str) -> str:
    """Where a package keeps its model file."""
    package, path = REAL[name]
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise uncork.UncorkError(f"{name}: install the package {package} (make bench does)")
    return str(Path(next(iter(spec.submodule_search_locations))) / path)


@dataclass(frozen=True)
class Planted:
    """A made head, and what was planted in it."""

    head: uncork.Head
    interior: np.ndarray  # rows that no input can make the argmax
    duplicates: np.ndarray  # pairs of equal rows: (n, 2)


def planted_head(
    classes: int,
    features: int,
    *,
    interior: int,
    duplicates: int,
    zeros: int = 0,
    dtype: str = "float32",
    seed: int = 0,
    device: str = "cpu",
) -> Planted:
    """Random rows as trained embeddings look: a decaying spectrum, rotated, around a shared mean.

    Half of the planted interior rows lie near the mean, half are mixtures of 5 to 50 other rows
    pulled a quarter to half of the way to the mean, so that rounding leaves them inside.
    """
    weight, mean = _rows(classes, features, seed, device)
    rng = np.random.default_rng(seed)
    special = rng.permutation(classes)[: interior + duplicates + zeros]
    inside, copies, blank = np.split(special, [interior, interior + duplicates])
    ordinary = np.setdiff1d(np.arange(classes), special)
    spread = np.sqrt(((weight[ordinary[:2000]] - mean) ** 2).mean())
    for k, t in enumerate(inside):
        if k % 2:
            weight[t] = mean + 0.01 * spread * rng.standard_normal(features)
        else:
            members = rng.choice(ordinary, int(rng.integers(5, 51)), replace=False)
            share = rng.dirichlet(np.ones(len(members)))
            pull = rng.uniform(0.25, 0.5)
            weight[t] = (1 - pull) * (share @ weight[members].astype(np.float64)) + pull * mean
    originals = rng.choice(ordinary, duplicates, replace=False)
    weight[copies] = weight[originals]
    weight[blank] = 0
    stored = weight.astype(_dtype(dtype))
    head = uncork.Head(stored, domain=uncork.Unbounded(), source=f"planted {classes}x{features}")
    return Planted(head, np.sort(inside), np.sort(np.column_stack([copies, originals]), axis=1))


def trained_like_head(
    classes: int,
    features: int,
    *,
    untrained: int = 0,
    reserved: int = 0,
    dtype: str = "float32",
    norm: bool = False,
    even: bool = False,
    seed: int = 0,
    device: str = "cpu",
) -> Planted:
    """Rows as a trained language model's head has them, made with torch, on a GPU in seconds.

    64 to a cluster, a quarter of each row its cluster's; a decaying spectrum, rotated; lengths 1:3
    about a shared mean. `untrained` rows lie near the mean, `reserved` ones are all equal, near it
    too: both are lost. `norm`: what arrives is what leaves an RMSNorm with a gain; else unbounded.
    `even`: rows of length one and nothing else, so that every one is argmaxable.
    """
    import torch

    torch.manual_seed(seed)
    here = {"device": device, "dtype": torch.float32}
    spectrum = (1 + torch.arange(features, **here) / (features / 20)) ** -0.5
    turn = torch.linalg.qr(torch.randn(features, features, **here)).Q
    mean = 0.02 * torch.randn(features, **here)
    clusters = torch.randn(-(-classes // 64), features, **here)
    stored = torch.empty((classes, features), dtype=getattr(torch, dtype))
    step = max(1, (1 << 28) // features)
    for start in range(0, classes, step):
        count = min(step, classes - start)
        rows = torch.randn(count, features, **here)
        if not even:
            mine = torch.arange(start, start + count, device=device) % len(clusters)
            rows = 0.5 * clusters[mine] + 0.866 * rows
            rows = (rows * spectrum) @ turn
        rows /= rows.norm(dim=1, keepdim=True)
        if not even:
            rows = rows * (1 + 2 * torch.rand(count, 1, **here)) * 0.5 + mean
        stored[start : start + count] = rows.to(stored.dtype)
    rng = np.random.default_rng(seed)
    special = rng.permutation(classes)[: untrained + reserved]
    near = mean + 0.002 * features**-0.5 * torch.randn(untrained + 1, features, **here)
    near = near.to(stored.dtype).cpu()
    alike, alone = np.sort(special[:reserved]), np.sort(special[reserved:])
    stored[torch.from_numpy(alike)] = near[-1]
    stored[torch.from_numpy(alone)] = near[:-1]
    gain = 0.5 + rng.random(features)
    head = uncork.Head(
        _stored(stored),
        domain=uncork.RMSNorm(gain.astype(np.float32)) if norm else uncork.Unbounded(),
        source=f"trained-like {classes}x{features}, seed {seed}",
    )
    return Planted(head, np.sort(special), np.empty((0, 2), dtype=np.int64))


def _stored(tensor: Any) -> np.ndarray:
    """A torch tensor as NumPy's array of the same bits."""
    import ml_dtypes
    import torch

    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    array: np.ndarray = tensor.numpy()
    return array


def _rows(classes: int, features: int, seed: int, device: str) -> tuple[np.ndarray, np.ndarray]:
    spectrum = (1 + np.arange(features) / (features / 20)) ** -0.75
    if device == "cuda":
        import torch

        generator = torch.Generator(device="cuda").manual_seed(seed)
        turn = (
            torch.linalg.qr(torch.randn(features, features, generator=generator, device="cuda")).Q
            * torch.tensor(spectrum, device="cuda", dtype=torch.float32)[:, None]
        )
        mean = torch.randn(features, generator=generator, device="cuda") * 0.5
        rows = torch.randn(classes, features, generator=generator, device="cuda")
        return ((rows @ turn) + mean).cpu().numpy(), mean.cpu().numpy().astype(np.float64)
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((features, features)))[0] * spectrum[:, None]
    mean = rng.standard_normal(features) * 0.5
    rows = np.empty((classes, features), dtype=np.float32)
    for start in range(0, classes, 4096):
        part = rows[start : start + 4096]
        part[:] = rng.standard_normal(part.shape, dtype=np.float32) @ turn.astype(np.float32) + mean
    return rows, mean


def _dtype(name: str) -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)


def speech_like_head() -> uncork.Head:
    """32,768 × 288 without bias, the shape of a speech recogniser's head."""
    weight, _ = _rows(32768, 288, 1, "cpu")
    return uncork.Head(weight, domain=uncork.Unbounded(), source="speech-like 32768x288")
