"""OutputHead: what every head does. Hidden states in; probabilities, loss and choices out.

A head says what it needs of a row (`_row_tensors`), what all rows share (`_shared_tensors`), and
what scores follow from the two (`_scores`): softmax of the scores is the distribution. The rest is
here, and works on blocks of rows, so that (rows × classes) is made only where it is asked for.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from uncork.core.errors import UncorkError
from uncork.nn._rows import is_traced, under_autocast
from uncork.nn._torch import torch
from uncork.nn.heads.chunks import ChunkedLoss, block_rows, blocks
from uncork.nn.linear.in_blocks import loss_in_blocks, wide
from uncork.nn.linear.links import Link
from uncork.nn.linear.mixture import MixtureLoss, Tensors
from uncork.nn.losses.specification import Reduction, check_indices
from uncork.nn.transforms.sharded import is_sharded

Tensor = torch.Tensor


class TopK(NamedTuple):
    """The best classes of each row, best first."""

    values: Tensor  #: log-probabilities (..., k)
    indices: Tensor  #: int64 (..., k)


class OutputHead(torch.nn.Module, ABC):
    """From hidden states (..., features) to a distribution over classes.

    Args:
        features: size of a hidden state.
        classes: how many classes there are.
        bias: whether each class has an offset of its own.
        weight: (classes, embedding size), a Parameter to share: tied embeddings.
        device, dtype: of the parameters.

    Log-probabilities and losses are float32, or float64 for float64 parameters, whatever the
    hidden states are; nothing is added to a probability before its logarithm is taken.
    """

    #: what `HEADS`, `replace` and a saved model call it
    name: ClassVar[str] = ""
    #: whether the weight's rows may be of another size than the hidden states
    takes_embedding: ClassVar[bool] = False
    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        features: int,
        classes: int,
        *,
        bias: bool = True,
        weight: Tensor | None = None,
        embedding: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        embedding = features if embedding is None else embedding
        for what, size in (("features", features), ("classes", classes), ("embedding", embedding)):
            if not isinstance(size, int) or size < 1:
                raise UncorkError(f"{what} must be a positive whole number, got {size!r}")
        if embedding != features and not self.takes_embedding:
            raise UncorkError(
                f"the {self.name} head's rows are as long as its features, {features}, got "
                f"embedding={embedding}: mixtures alone take another"
            )
        self.features, self.classes, self.embedding = features, classes, embedding
        self._tied = weight is not None
        if weight is not None:
            device, dtype = weight.device, weight.dtype
        self._factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self._make(bias, weight)

    def _make(self, bias: bool, weight: Tensor | None) -> None:
        """The parameters every class has."""
        if weight is None:
            empty = torch.empty(self.classes, self.embedding, **self._factory)
            self.weight = torch.nn.Parameter(empty)
        else:
            self.tie(weight)
        if bias:
            self.bias = torch.nn.Parameter(torch.zeros(self.classes, **self._factory))
        else:
            self.register_parameter("bias", None)

    def tie(self, weight: Tensor) -> None:
        """Share a Parameter (classes, embedding size): the input embedding's, as a rule."""
        if tuple(weight.shape) != (self.classes, self.embedding):
            raise UncorkError(
                f"a tied weight must have shape {(self.classes, self.embedding)}, got "
                f"{tuple(weight.shape)}"
            )
        if not isinstance(weight, torch.nn.Parameter):
            raise UncorkError(
                "a tied weight must be a torch.nn.Parameter, such as embedding.weight"
            )
        self._share(weight)
        self._tied = True

    def _share(self, weight: torch.nn.Parameter) -> None:
        self.weight = weight

    def reset_parameters(self) -> None:
        """Rows as `torch.nn.Linear` draws them, unless they are tied; offsets zero."""
        if not self._tied:
            bound = 1 / math.sqrt(self.embedding)
            torch.nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    @torch.no_grad()
    def start_from(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Begin with another layer's weight and bias, as far as the sizes are the same."""
        if weight.shape == self.weight.shape:
            self.weight.copy_(weight)
        if self.bias is not None and bias is not None:
            self.bias.copy_(bias)

    @property
    def copies(self) -> int:
        """How many tensors of the size of its scores a block keeps for its derivative."""
        return 1

    def options(self) -> dict[str, Any]:
        """Arguments that make such a head again, but for sizes and tensors: kept in JSON."""
        made: dict[str, Any] = {"bias": self.bias is not None}
        if self.embedding != self.features:
            made["embedding"] = self.embedding
        return made

    # What a kind of head defines

    @abstractmethod
    def _row_tensors(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """What the scores need of each row of hidden states (N, features): tensors (N, …)."""

    def _shared_tensors(self) -> tuple[Tensor | None, ...]:
        """What all rows share, the weight and the bias first."""
        return self.weight, self.bias

    @abstractmethod
    def _scores(self, rows: Sequence[Tensor], shared: Sequence[Tensor | None]) -> Tensor:
        """Scores (R, classes) in float32 or better, whose softmax is the distribution; of its
        arguments and plain numbers alone."""

    def _log_probabilities(self, scores: Tensor) -> Tensor:
        return torch.log_softmax(scores, -1)

    def _ranked(self, hidden: Tensor) -> Tensor:
        """Scores of rows hidden (N, features) in the order of the probabilities, the cheapest."""
        return self(hidden)

    def _log_of_ranked(self, ranked: Tensor) -> Tensor:
        """Log-probabilities of what `_ranked` gives."""
        return self._log_probabilities(ranked)

    # What every head does

    def forward(self, hidden: Tensor) -> Tensor:
        """Scores (..., classes) to stand where logits do: their softmax is the distribution."""
        rows = self._rows(hidden)
        scores = self._scores(self._row_tensors(rows), self._cast(rows, self._shared_tensors()))
        return self._as_given(scores, hidden)

    def _as_given(self, scores: Tensor, hidden: Tensor) -> Tensor:
        """Scores of rows (N, classes) in the shape of the hidden states. Not as a view where none
        is needed: fully_shard hooks on to what `forward` returns, and loses a view written to."""
        if scores.shape[-1] != self.classes:  # transformers ties whatever it has resized
            raise UncorkError(
                f"the head is of {self.classes} classes and its weight has become one of "
                f"{scores.shape[-1]}: replace the head in the resized model"
            )
        if hidden.dim() == 2:
            return scores
        return scores.reshape(*hidden.shape[:-1], self.classes)

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        """log P(class | hidden), (..., classes): all of them, in float32 or better."""
        return self._log_probabilities(self(hidden).to(self._wide))

    def loss(
        self,
        hidden: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """−log P(target | hidden), reduced as :func:`torch.nn.functional.cross_entropy` does.

        Args:
            hidden: (..., features).
            target: class indices, the shape of `hidden` without features.
            weight: (classes) weights of the classes.
            ignore_index, reduction, label_smoothing: as there.
        """
        how = Reduction(weight, ignore_index, reduction, label_smoothing)
        self._check_gathered(hidden)
        rows = self._checked(hidden, target, how)
        made = self._loss(rows, target.reshape(-1).long(), how)
        return made.reshape(target.shape) if reduction == "none" else made

    def _check_gathered(self, hidden: Tensor) -> None:
        """Before parameters are used otherwise than by a call of the head."""
        if not is_sharded(hidden) and is_sharded(next(self.parameters())):
            raise UncorkError(
                f"{type(self).__name__}: its parameters are sharded; call "
                "torch.distributed.fsdp.register_fsdp_forward_method(head, 'loss') after "
                "fully_shard, and they are gathered for it; of a sparse head for 'argmax' and "
                "'top_k' too"
            )

    def _loss(self, hidden: Tensor, target: Tensor, how: Reduction) -> Tensor:
        """The loss of rows hidden (N, features) and target (N)."""
        rows = self._row_tensors(hidden)
        shared = self._cast(rows, self._shared_tensors())
        if self._softmax_link is not None and not how.label_smoothing:
            return self._linked_loss(self._softmax_link, rows, shared, target, how)
        loss = ChunkedLoss(self._losses, len(rows), self.classes, self.copies)
        return loss_in_blocks(loss, (*rows, *shared), target, how)

    @property
    def _softmax_link(self) -> Link | None:
        """What the logits pass through before softmax, of a head that is that of contexts, or a
        mixture of such: `_row_tensors` are contexts, and for a mixture logarithms of its weights;
        `_shared_tensors` the weight, the bias, and what the link has of its own."""
        return None

    def _linked_loss(
        self,
        link: Link,
        rows: Sequence[Tensor],
        shared: Sequence[Tensor | None],
        target: Tensor,
        how: Reduction,
    ) -> Tensor:
        contexts, *priors = rows
        weight, bias, *tables = shared
        assert weight is not None
        contexts = contexts if priors else contexts.unsqueeze(1)
        tensors = Tensors(
            contexts, priors[0] if priors else None, weight, bias, tables[0] if tables else None
        )

        def in_full(given: Tensors, target: Tensor, how: Reduction) -> Tensor:
            contexts = given.contexts if priors else given.contexts.squeeze(1)
            own = (contexts,) if given.log_prior is None else (contexts, given.log_prior)
            return self._losses(own, given[2 : 2 + len(shared)], target, how)

        return loss_in_blocks(MixtureLoss(link, in_full), tensors, target, how)

    def _losses(
        self,
        rows: Sequence[Tensor],
        shared: Sequence[Tensor | None],
        target: Tensor,
        how: Reduction,
    ) -> Tensor:
        """Losses (R) of a block of rows; of its arguments and plain numbers alone."""
        scores = self._scores(rows, shared)
        return torch.nn.functional.cross_entropy(
            scores, target, None if how.weight is None else how.weight.to(scores.dtype),
            ignore_index=how.ignore_index, reduction="none", label_smoothing=how.label_smoothing,
        )  # fmt: skip

    @torch.no_grad()
    def argmax(self, hidden: Tensor) -> Tensor:
        """The most probable class, (...)."""
        made = [scores.argmax(-1) for scores in self._blocks(hidden, self._ranked)]
        return self._joined(made, hidden, ())

    @torch.no_grad()
    def top_k(self, hidden: Tensor, k: int) -> TopK:
        """The k most probable classes with their log-probabilities, (..., k) each."""
        if not 1 <= k <= self.classes:
            raise UncorkError(f"k must be between 1 and {self.classes}, got {k!r}")
        values, classes = [], []
        for ranked in self._blocks(hidden, self._ranked):  # as `argmax` ranks them
            classes.append(ranked.topk(k, -1).indices)
            values.append(self._log_of_ranked(ranked).gather(-1, classes[-1]))
        return TopK(
            self._joined(values, hidden, (k,), self._wide), self._joined(classes, hidden, (k,))
        )

    @torch.no_grad()
    def sample(self, hidden: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One class of each row drawn from its distribution, (...)."""
        made = [
            torch.multinomial(self._log_probabilities(scores).exp(), 1, generator=generator)
            for scores in self._blocks(hidden)
        ]
        return self._joined(made, hidden, ())

    def audit(self, **options: Any) -> Any:
        """Which classes can some hidden state make the argmax? See :func:`heads.audit_head`."""
        from uncork.nn.heads.audit import audit_head

        return audit_head(self, **options)

    @property
    def _dtype(self) -> torch.dtype:
        return self.weight.dtype

    @property
    def _wide(self) -> torch.dtype:
        return wide(self._dtype)

    def _blocks(
        self, hidden: Tensor, scores: Callable[[Tensor], Tensor] | None = None
    ) -> Iterator[Tensor]:
        """Scores (R, classes) of one block of rows after the other, in float32 or better."""
        flat = self._rows(hidden)
        if is_traced():  # of any number of rows: no loop over them
            yield (scores or self)(flat).to(self._wide)
            return
        for rows in blocks(len(flat), block_rows(len(flat), self.classes, flat.device)):
            yield (scores or self)(flat[rows]).to(self._wide)

    def _joined(
        self,
        made: list[Tensor],
        hidden: Tensor,
        last: tuple[int, ...],
        dtype: torch.dtype = torch.int64,
    ) -> Tensor:
        shape = (*hidden.shape[:-1], *last)
        if not made:  # no rows
            return torch.empty(shape, dtype=dtype, device=hidden.device)
        return torch.cat(made).reshape(shape)

    def _cast(
        self, rows: Tensor | Sequence[Tensor], shared: Sequence[Tensor | None]
    ) -> tuple[Tensor | None, ...]:
        """The weight in the type of the rows it multiplies, as autocast would have it."""
        first = rows if isinstance(rows, Tensor) else rows[0]
        device = first.device.type
        weight, *others = shared
        if under_autocast(device) and first.dtype != torch.float64:
            assert weight is not None
            weight = weight.to(first.dtype)
        return weight, *others

    def _rows(self, hidden: Tensor) -> Tensor:
        """(N, features), in the type that products are computed in."""
        if hidden.dim() == 0 or hidden.shape[-1] != self.features:
            raise UncorkError(
                f"hidden states of shape {tuple(hidden.shape)} do not end in the head's "
                f"{self.features} features"
            )
        if not hidden.is_floating_point():
            raise UncorkError(f"hidden states must be floating point, got {hidden.dtype}")
        device = hidden.device.type
        if under_autocast(device) and hidden.dtype != torch.float64:
            hidden = hidden.to(torch.get_autocast_dtype(device))
        elif hidden.dtype != self._dtype:
            raise UncorkError(
                f"hidden states are {hidden.dtype} and the head {self._dtype}: give them one "
                "dtype, or compute under torch.autocast"
            )
        return hidden.reshape(-1, self.features)

    def _checked(self, hidden: Tensor, target: Tensor, how: Reduction) -> Tensor:
        rows = self._rows(hidden)
        check_indices("target", target)
        if target.shape != hidden.shape[:-1]:
            raise UncorkError(
                f"target must have shape {tuple(hidden.shape[:-1])} for hidden states "
                f"{tuple(hidden.shape)}, got {tuple(target.shape)}"
            )
        how.check(self.classes, hidden.device)
        return rows

    def extra_repr(self) -> str:
        given = {"features": self.features, "classes": self.classes, **self.options()}
        tied = ", tied" if self._tied else ""
        return ", ".join(f"{key}={value!r}" for key, value in given.items()) + tied


def linear_scores(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """rows (R, d) · weightᵀ + bias, (R, classes), in float32 or better."""
    made = torch.nn.functional.linear(rows, weight).to(wide(rows.dtype))
    return made if bias is None else made + bias.to(made.dtype)
