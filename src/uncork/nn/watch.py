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

import contextlib
import importlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from uncork.auditing import audit
from uncork.auditing.certify.products import Device
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.domain import Ball, Box, Domain, Unbounded
from uncork.nn._torch import torch
from uncork.nn.heads.audit import context_domain
from uncork.nn.heads.contexts import MixtureOfContexts
from uncork.nn.heads.mixtape import MixtapeHead
from uncork.nn.heads.mixture import Mixture

Tensor = torch.Tensor
_BYTES = {"cuda": 1 << 29, "cpu": 1 << 26}  # of the scores made in one product


class Watch:
    """Counts the unargmaxable and the nearly lost classes of a linear layer as it changes.

    layer   a module with `weight` (classes, features) and perhaps `bias`, or a function without
            arguments that returns the two
    every   steps from one count to the next
    domain  the inputs that can arrive; ±100 unless given. Of a mixture's hidden states, as in
            its `audit`: what is counted is what its contexts can put first, ±1 for tanh
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
        if every < 1 or every != int(every):
            raise UncorkError(f"every {every}: expected one step or more from count to count")
        if not callable(layer):  # a module is, too
            raise UncorkError(f"a layer or a function to watch, not {type(layer).__name__}")
        self.layer, self.every, self.near, self.name = layer, every, near, name
        self.domain = Box(100) if domain is None else domain
        if isinstance(layer, MixtapeHead):
            raise UncorkError(
                "a Mixtape head's classes with gates of their own are not a linear head, which is "
                "all that a watch counts: call its audit() now and then"
            )
        self.steps = 0
        self.history: list[dict[str, float]] = []
        self._inputs: Tensor | None = None  # (C, d): where each class last won; NaN where nowhere
        self._known = False  # whether any is known

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
        if len(left) and self._known:
            left = self._retried(weight, bias, margins, left)
        counts = {"unargmaxable": 0, "tied": 0, "undecided": 0}
        if len(left):
            head = Head(weight, bias, domain=self._arriving())
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

    def _arriving(self) -> Domain:
        """What the weight multiplies: the inputs, or a mixture's contexts of them."""
        if isinstance(self.layer, Mixture | MixtureOfContexts):
            return context_domain(self.layer, self.domain)
        return self.domain

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
            self._known = False
        if not self._known:
            return np.full(classes, np.nan)
        margins = torch.full((classes,), float("nan"), device=weight.device)
        everyone = torch.arange(classes, device=weight.device)
        if self._coarse(weight):
            margins = leads(weight, bias, self._inputs, everyone, torch.bfloat16)
            # What is this close, or not known to win, is looked at again with care.
            everyone = torch.nonzero(~(margins >= self.near))[:, 0]
        if len(everyone):
            margins[everyone] = leads(weight, bias, self._inputs[everyone], everyone, torch.float32)
        known = margins.double().cpu().numpy()
        if self._arriving() is not self.domain:  # a mixture's contexts move with its projection
            held = self._arriving().contains(self._inputs.double().cpu().numpy())
            known[~held] = np.nan
        return known

    def _coarse(self, weight: Tensor) -> bool:
        """Whether bfloat16 is tried first: where its products are many times as fast."""
        return weight.is_cuda

    def _retried(
        self, weight: Tensor, bias: Tensor | None, margins: np.ndarray, left: np.ndarray
    ) -> np.ndarray:
        """Those of the classes left that do not win at their whitened rows either."""
        base = self._arriving()
        if not isinstance(base, Box | Ball | Unbounded) or self._inputs is None:
            return left
        at = torch.from_numpy(left).to(weight.device)
        guess = _guesses(weight.float(), at, base)
        if guess is None:
            return left
        found = leads(weight, bias, guess, at, torch.float32)
        inside = base.contains(guess.double().cpu().numpy())
        won = (found.double().cpu().numpy() > 0) & inside
        taken = torch.from_numpy(np.flatnonzero(won)).to(weight.device)
        self._inputs[at[taken]] = guess[taken]
        margins[left[won]] = found[taken].double().cpu().numpy()
        return left[~won]

    def _remember(self, found: Any, head: Head, weight: Tensor, margins: np.ndarray) -> None:
        """The audit's witnesses, as x in float32, to begin with next time."""
        proofs = found.proofs
        asked = np.arange(head.classes) if found.asked is None else found.asked
        won = found.argmaxable[proofs.has_input(found.argmaxable)]
        assert self._inputs is not None
        self._inputs[torch.from_numpy(np.setdiff1d(asked, won)).to(weight.device)] = float("nan")
        if not len(won):
            return
        view = head.domain.affine(head.features)
        u = np.asarray(proofs.stored_inputs(head, won, view.latent, Device()))
        x = view.image(u)
        at = torch.from_numpy(won).to(weight.device)
        narrow = x.astype(np.float32)
        if not view.steps:  # rounded out of the domain, it proves nothing
            narrow[~head.domain.contains(narrow.astype(np.float64))] = np.nan
        self._inputs[at] = torch.from_numpy(narrow).to(weight.device)
        self._known = True
        lengths = np.linalg.norm(x, axis=1) * float(
            torch.linalg.vector_norm(weight.float(), dim=1).mean()
        )
        margins[won] = proofs.margins[won] / np.maximum(lengths, 1e-300)

    # Trainers

    def attach(self, trainer: Any) -> None:
        """Count during a transformers `Trainer`'s training; `trainer.log` takes the counts."""
        if not hasattr(trainer, "add_callback"):
            raise UncorkError(
                f"attach takes a Trainer of transformers, got {type(trainer).__name__}: the layer "
                "goes to Watch(layer); in a loop of your own call step() after each step, in "
                "Lightning give callbacks=[watch.lightning()]"
            )
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


def leads(weight: Tensor, bias: Tensor | None, x: Tensor, own: Tensor, dtype: Any) -> Tensor:
    """Proven: class own[k] is ahead by so much of ‖x‖ times the rows' mean length at x[k]: (n,).

    Zero or less, or NaN, proves nothing. At x/‖x‖ every logit as computed is off by no more than
    κ(‖w‖ + |b|/‖x‖), with κ from what the type rounds its factors by; that rides along as one more
    feature, so that one product gives an upper bound on every rival.
    """
    classes, features = weight.shape
    rows = weight.float()
    offsets = rows.new_zeros(classes) if bias is None else bias.float()
    narrow = dtype == torch.bfloat16
    # Two factors rounded to eight bits, sums in float32 or (split in few parts) rounded likewise.
    kappa = 2.0**-5 if narrow else 2.0**-21
    kappa += 1.1 * (features + 32) * 2.0**-23
    lengths = torch.linalg.vector_norm(rows, dim=1)
    reach = torch.linalg.vector_norm(x, dim=1)
    unit = torch.cat([x, torch.ones_like(x[:, :1]), x.new_zeros(len(x), 7)], dim=1)
    unit = unit / reach[:, None]
    unit[:, features + 1] = 1.0
    # Rounded up by far more than the product's own rounding of it.
    error = kappa * 1.05 * lengths
    spread = kappa * 1.05 * offsets.abs()
    beside = torch.stack([offsets + spread, error], dim=1)
    table = torch.cat([rows, beside, rows.new_zeros(classes, 6)], dim=1).to(dtype)
    ahead = torch.empty(len(x), device=x.device)
    with torch.autocast(weight.device.type, enabled=False), _exact_products():
        step = max(1, _BYTES.get(x.device.type, 1 << 26) // (table.element_size() * classes))
        for start in range(0, len(x), step):
            part = unit[start : start + step]
            here, ids = torch.arange(len(part), device=x.device), own[start : start + step]
            scores = part.to(dtype) @ table.T
            scores[here, ids] = -torch.inf
            mine = (part[:, :features] * rows[ids]).sum(dim=1) + offsets[ids] * part[:, features]
            mine = mine - kappa * (lengths[ids] + (offsets[ids] * part[:, features]).abs())
            ahead[start : start + step] = mine - scores.amax(dim=1).float()
    return ahead / lengths.mean().clamp_min(1e-30)


@contextlib.contextmanager
def _exact_products() -> Iterator[None]:
    """float32 products of float32's own precision, whatever the training allows itself."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _guesses(rows: Tensor, at: Tensor, domain: Domain) -> Tensor | None:
    """Σ⁻¹(w_t − μ), as far out as the domain goes: (n, d) in float32."""
    mean = rows.mean(dim=0)
    away = rows - mean
    covariance = away.T @ away / len(rows)
    ridge = 1e-5 * covariance.diagonal().mean().clamp_min(1e-30)
    covariance.diagonal().add_(ridge)
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if bool(failed):
        return None
    guess = torch.cholesky_solve((rows[at] - mean).T, factor).T
    if isinstance(domain, Box):
        low, high = (
            torch.from_numpy(np.array(side, dtype=np.float32)).to(rows.device)
            for side in domain.bounds(rows.shape[1])
        )
        room = torch.where(guess > 0, high / guess, low / guess)
        room = torch.where(guess == 0, torch.inf, room).amin(dim=1).clamp(0.0, 1e4)
        return guess * room[:, None] * (1 - 1e-6)
    size = torch.linalg.vector_norm(guess, dim=1, keepdim=True).clamp_min(1e-30)
    reach = domain.radius if isinstance(domain, Ball) else 100.0
    return guess / size * (reach * (1 - 1e-6))
