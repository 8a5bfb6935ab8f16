"""What passes of the gradient through the head of a language model saved with one of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.nn._torch import torch
from uncork.nn.heads.swap import load_pretrained
from uncork.nn.passing import Passing
from uncork.nn.watch.gradient import passing_of

_LONGEST = 512  # tokens of a text


def passing_over(
    path: str | Path, texts: Iterable[str], count: int, advance: Callable[[int], object]
) -> tuple[np.ndarray, np.ndarray | None, Passing, np.ndarray]:
    """The head's weight and bias, what passes at the first `count` tokens that have a next one, and
    these next ones (n,). The model runs on the GPU where there is one, a text at a time."""
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    transformers.utils.logging.disable_progress_bar()
    model = load_pretrained(path).to(device).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    layer = model.get_output_embeddings()
    seen: list[Any] = []
    layer.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    parts: list[Passing] = []
    targets: list[np.ndarray] = []
    left = count
    for text in texts:
        ids = tokenizer(text, truncation=True, max_length=_LONGEST, return_tensors="pt").input_ids
        ids = ids[:, : left + 1].to(device)
        if ids.shape[1] < 2:
            continue
        with torch.inference_mode():
            model(ids)
            hidden = seen.pop().reshape(-1, layer.features)[:-1]
            parts.append(passing_of(layer, hidden, ids[0, 1:]))
        targets.append(ids[0, 1:].cpu().numpy())
        advance(len(targets[-1]))
        left -= len(targets[-1])
        if not left:
            break
    if not parts:
        raise UncorkError("--data holds no text of two tokens or more")
    found = (torch.cat([getattr(part, each.name) for part in parts]) for each in fields(Passing))
    weight, bias = (
        None if each is None else each.detach().float().cpu().numpy()
        for each in (layer.weight, layer.bias)
    )
    assert weight is not None
    return weight, bias, Passing(*found), np.concatenate(targets)
