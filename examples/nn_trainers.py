"""Losses that language models are trained with after pretraining, none of which makes the logits.

    python examples/nn_trainers.py

Each function below is one method, from hidden states and the head's weight: a policy gradient with
clipped ratios (PPO, GRPO), also with a sparse policy; preference losses (DPO, ORPO); distillation
from a teacher's hidden states, its logits or its largest few; and cross entropy as trainers log it.
`main` takes a few steps with each on toy data and prints what it lowers.
"""

from collections.abc import Callable
from functools import partial

import torch

import uncork.nn.functional as F

Tensor = torch.Tensor
ROWS, LENGTH, FEATURES, CLASSES = 8, 5, 16, 60


def grpo(hidden: Tensor, weight: Tensor, tokens: Tensor, reward: Tensor, old: Tensor) -> Tensor:
    """Clipped ratios times an advantage that is relative to the group, less an entropy bonus."""
    advantage = ((reward - reward.mean()) / (reward.std() + 1e-6)).unsqueeze(-1)
    now, entropy = F.linear_log_prob(hidden, weight, tokens, return_entropy=True)
    ratio = (now - old).exp()
    clipped = ratio.clamp(0.8, 1.2)
    gain = torch.minimum(ratio * advantage, clipped * advantage)
    return -(gain + 0.001 * entropy).mean()


def sparse_policy(
    hidden: Tensor, weight: Tensor, tokens: Tensor, reward: Tensor, old: Tensor
) -> Tensor:
    """The same with a 1.5-entmax policy: the ratio of a token that leaves its support is 0."""
    ratio = (F.linear_log_prob(hidden, weight, tokens, alpha=1.5) - old).exp()
    return -((reward - reward.mean()).unsqueeze(-1) * ratio).mean()


def dpo(hidden: Tensor, weight: Tensor, tokens: Tensor, reference: Tensor) -> Tensor:
    """The first half of the rows is preferred to the second; `reference` is the old model's sum."""
    log_prob = F.linear_log_prob(hidden, weight, tokens).sum(-1)
    chosen, rejected = (log_prob - reference).chunk(2)
    return -torch.nn.functional.logsigmoid(0.1 * (chosen - rejected)).mean()


def orpo(hidden: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    """Likelihood of the chosen, and odds against the rejected: no reference model."""
    chosen, rejected = F.linear_log_prob(hidden, weight, tokens).mean(-1).chunk(2)
    odds = chosen - rejected - torch.log1p(-chosen.exp()) + torch.log1p(-rejected.exp())
    return -(chosen + 0.1 * torch.nn.functional.logsigmoid(odds)).mean()


def distil(hidden: Tensor, weight: Tensor, tokens: Tensor, teacher: Tensor, head: Tensor) -> Tensor:
    """Half from the labels, half from a teacher with a head of its own: no logits of either."""
    soft = F.linear_distillation_loss(
        hidden, weight, teacher, teacher_weight=head, divergence="jsd", temperature=2.0
    )
    return 0.5 * F.linear_cross_entropy(hidden, weight, tokens) + 0.5 * 2.0**2 * soft


def distil_top_k(hidden: Tensor, weight: Tensor, logits: Tensor, classes: Tensor) -> Tensor:
    """From what was stored of a teacher: its k largest logits and their classes."""
    return F.linear_distillation_loss(hidden, weight, logits, teacher_classes=classes)


def pretrain(hidden: Tensor, weight: Tensor, tokens: Tensor, prompt: Tensor) -> Tensor:
    """Cross entropy with a z-loss, prompts left out, and what a trainer logs at no extra cost."""
    made = F.linear_cross_entropy(
        hidden, weight, tokens, z_loss=1e-4, token_weight=1 - prompt, return_predictions=True
    )
    assert made.accuracy is not None  # to log, with made.predicted
    return made.loss


def main() -> dict[str, tuple[float, float]]:
    torch.manual_seed(0)
    tokens = torch.randint(CLASSES, (ROWS, LENGTH))
    start = torch.randn(ROWS, LENGTH, FEATURES)
    head = torch.randn(CLASSES, FEATURES) / FEATURES**0.5
    teacher, teacher_head = torch.randn(ROWS, LENGTH, 32), torch.randn(CLASSES, 32) / 32**0.5
    largest = (teacher @ teacher_head.T).topk(4)
    reward = torch.rand(ROWS)
    old = F.linear_log_prob(start, head, tokens)
    likely = (start @ head.T).argmax(-1)  # on the support of a sparse policy
    sparse = F.linear_log_prob(start, head, likely, alpha=1.5)
    prompt = torch.zeros(ROWS, LENGTH)
    prompt[:, :2] = 1
    methods: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "GRPO": partial(grpo, tokens=tokens, reward=reward, old=old),
        "sparse policy": partial(sparse_policy, tokens=likely, reward=reward, old=sparse),
        "DPO": partial(dpo, tokens=tokens, reference=old.sum(-1)),
        "ORPO": partial(orpo, tokens=tokens),
        "distillation": partial(distil, tokens=tokens, teacher=teacher, head=teacher_head),
        "top-k teacher": partial(distil_top_k, logits=largest.values, classes=largest.indices),
        "pretraining": partial(pretrain, tokens=tokens, prompt=prompt),
    }
    results = {}
    for name, loss in methods.items():
        hidden, weight = (leaf.clone().requires_grad_() for leaf in (start, head))
        optimiser = torch.optim.Adam([hidden, weight], 0.01)
        losses = []
        for _ in range(8):
            optimiser.zero_grad()
            made = loss(hidden, weight)
            made.backward()
            optimiser.step()
            losses.append(float(made.detach()))
        results[name] = (losses[0], losses[-1])
        print(f"{name:<14} {losses[0]:8.4f} → {losses[-1]:8.4f}")
    return results


if __name__ == "__main__":
    main()
