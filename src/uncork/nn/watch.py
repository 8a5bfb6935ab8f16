"""Watching a head while it trains: how many classes can no longer be the argmax?

    watch = uncork.nn.Watch(model.lm_head, every=100)
    for batch in batches:                        # a loop of one's own
        ...
        counts = watch.step()                    # None, or {"unargmaxable": 3, …} every 100 steps

    watch.attach(trainer)                        # transformers: logged to whatever it logs to
    Trainer(callbacks=[watch.lightning()])       # Lightning

A class that wins at the input where it last won is still argmaxable: one product settles nearly all
of them. A win counts only if it exceeds what rounding could have made of it, and what is left goes
through the audit, with its proofs: so the counts are those of a full audit.
"""

from __future__ import annotations

import importlib
import time
from typing import Any

import numpy as np

from uncork.audit import audit
from uncork.audit.products import Device
from uncork.domain import Box, Domain
from uncork.errors import UncorkError
from uncork.head import Head
from uncork.nn._torch import torch

Tensor = torch.Tensor
_ROWS = 2048  # classes whose inputs are tried in one product


class Watch:
    """Counts the unargmaxable and the nearly lost classes of a linear layer as it changes.

    layer   a module with `weight` (classes, features) and perhaps `bias`, or a function without
            arguments that returns the two
    every   steps from one count to the next
    domain  the inputs that can arrive; ±100 unless given
    near    a class is nearly lost if it wins by less than this share of ‖x‖ times the mean length
            of a row, at the input it is known to win at
    """

    def __init__(
        self,
        layer: Any,
        *,
        every: int = 100,
        domain: Domain | None = None,
        near: float = 1e-3,
        name: str = "uncork",
    ) -> None:
        if every < 1:
            raise UncorkError(f"every {every}: expected one step or more from count to count")
        self.layer, self.every, self.near, self.name = layer, every, near, name
        self.domain = Box(100) if domain is None else domain
        self.steps = 0
        self.history: list[dict[str, float]] = []
        self._inputs: Tensor | None = None  # (C, d): where each class last won; NaN where nowhere

    def step(self) -> dict[str, float] | None:
        """Call once after each step of the optimiser: every so many steps a count, else None."""
        self.steps += 1
        return self.count() if self.steps % self.every == 0 else None

    @torch.no_grad()
    def count(self) -> dict[str, float]:
        """Count now: classes `unargmaxable`, `tied`, `undecided` and `nearly_lost`, how many were
        `audited` because no earlier input settles them, and the `seconds` it took."""
        began = time.perf_counter()
        weight, bias = self._parameters()
        margins = self._margins(weight, bias)
        left = np.flatnonzero(~(margins > 0))
        counts = {"unargmaxable": 0, "tied": 0, "undecided": 0}
        if len(left):
            head = Head(weight, bias, domain=self.domain)
            device = "cuda" if weight.is_cuda else "cpu"
            found = audit(head, classes=left, device=device)
            counts = {name: int(found.counts[name]) for name in counts}
            self._remember(found, head, weight, margins)
        close = int(((margins > 0) & (margins < self.near)).sum())
        result = {
            **{name: float(count) for name, count in counts.items()}, "nearly_lost": float(close),
            "audited": float(len(left)), "seconds": time.perf_counter() - began,
        }  # fmt: skip
        self.history.append({"step": float(self.steps), **result})
        return result

    def _parameters(self) -> tuple[Tensor, Tensor | None]:
        layer, weight, bias = self.layer, None, None
        if isinstance(layer, torch.nn.Module):
            weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
        else:
            weight, bias = layer()
        if not isinstance(weight, Tensor):
            raise UncorkError(f"{type(layer).__name__} has no weight to watch")
        if weight.ndim != 2:
            raise UncorkError(
                f"the weight to watch has shape {tuple(weight.shape)}: expected classes × features"
            )
        return weight.detach(), None if bias is None else bias.detach()

    def _margins(self, weight: Tensor, bias: Tensor | None) -> np.ndarray:
        """By how much each class wins where it last won, relative to ‖x‖ and the rows' mean length,
        less what rounding may have added; NaN where it is not known to win: (C,)."""
        classes, features = weight.shape
        if self._inputs is None or self._inputs.shape != (classes, features):
            self._inputs = weight.new_full((classes, features), float("nan"), dtype=torch.float32)
        rows = weight.to(torch.float32)
        offsets = rows.new_zeros(classes) if bias is None else bias.to(torch.float32)
        exact = weight.dtype != torch.float64 and (bias is None or bias.dtype != torch.float64)
        # Reduced-precision products, where they are allowed, keep ten bits at least.
        precise = torch.get_float32_matmul_precision() == "highest" or not weight.is_cuda
        unit = 2.0**-24 if precise else 2.0**-8
        factor = (features + 16) * unit * 1.02 + (0.0 if exact else 2.0**-22)
        lengths = torch.linalg.vector_norm(rows, dim=1)
        longest, mean, largest = lengths.max(), lengths.mean(), offsets.abs().max()
        margins = rows.new_empty(classes)
        with torch.autocast(weight.device.type, enabled=False):
            for start in range(0, classes, _ROWS):
                x = self._inputs[start : start + _ROWS]
                scores = torch.addmm(offsets, x, rows.T)
                here = torch.arange(len(x), device=x.device)
                own = scores[here, here + start].clone()
                scores[here, here + start] = -torch.inf
                reach = torch.linalg.vector_norm(x, dim=1)
                slop = 4 * factor * (reach * longest + largest)
                lead = own - scores.max(dim=1).values - slop
                margins[start : start + _ROWS] = lead / (reach * mean).clamp_min(1e-30)
        return margins.double().cpu().numpy()

    def _remember(self, found: Any, head: Head, weight: Tensor, margins: np.ndarray) -> None:
        """The audit's witnesses, as x in float32, to begin with next time."""
        proofs = found.proofs
        asked = np.arange(head.classes) if found.asked is None else found.asked
        won = found.argmaxable[proofs.has_input(found.argmaxable)]
        assert self._inputs is not None
        self._inputs[torch.from_numpy(np.setdiff1d(asked, won)).to(weight.device)] = float("nan")
        if not len(won):
            return
        view = self.domain.affine(head.features)
        u = np.asarray(proofs.stored_inputs(head, won, view.latent, Device()))
        x = view.image(u)
        at = torch.from_numpy(won).to(weight.device)
        narrow = x.astype(np.float32)
        if not view.steps:  # rounded out of the domain, it proves nothing
            narrow[~self.domain.contains(narrow.astype(np.float64))] = np.nan
        self._inputs[at] = torch.from_numpy(narrow).to(weight.device)
        lengths = np.linalg.norm(x, axis=1) * float(
            torch.linalg.vector_norm(weight.float(), dim=1).mean()
        )
        margins[won] = proofs.margins[won] / np.maximum(lengths, 1e-300)

    # Trainers

    def attach(self, trainer: Any) -> None:
        """Count during a transformers `Trainer`'s training; `trainer.log` takes the counts."""
        from transformers import TrainerCallback

        watch = self

        class Callback(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                counts = watch.step()
                if counts is not None and state.is_world_process_zero:
                    trainer.log(watch.named(counts))

        trainer.add_callback(Callback())

    def lightning(self) -> Any:
        """A callback for Lightning's `Trainer(callbacks=[…])`: counts go to `log_dict`."""
        base: Any = None
        for package in ("lightning.pytorch", "pytorch_lightning"):
            try:
                base = importlib.import_module(f"{package}.callbacks").Callback
                break
            except ImportError:
                continue
        if base is None:
            raise UncorkError("Watch.lightning needs Lightning: pip install lightning")
        watch = self

        class Counting(base):
            def on_train_batch_end(
                self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
            ) -> None:
                counts = watch.step()
                if counts is not None:
                    pl_module.log_dict(watch.named(counts), rank_zero_only=True)

        return Counting()

    def named(self, counts: dict[str, float]) -> dict[str, float]:
        """The counts under the names they are logged by: `uncork/unargmaxable` and so on."""
        return {f"{self.name}/{what}": value for what, value in counts.items()}
