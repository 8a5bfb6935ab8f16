"""Beam search over many sentences at once.

A hypothesis' score is the sum of its words' log scores, divided by length**penalty; with penalty 0
(the default, as in OpenNMT) scores of hypotheses and of the empty translation are comparable as
they are. Words of probability zero score −inf and are never taken; nor are padding and BOS.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from translation.data import BOS, EOS, PAD
from translation.model import Translator
from translation.outputs import Best

Tensor = torch.Tensor


class Found(NamedTuple):
    tokens: Tensor  # (N, T) without BOS, EOS at the end, then padding
    scores: Tensor  # (N)
    steps: int  # words until the last sentence was done


class Translated(NamedTuple):
    tokens: np.ndarray  # (N, T) int16
    scores: np.ndarray  # (N)
    steps: int  # of all batches


def length_limits(source: Tensor, longest: int) -> Tensor:
    """(N): no translation of Tatoeba's or Multi30k's is longer. By sentence, whatever its batch."""
    return (2 * (source != PAD).sum(1) + 10).clamp(max=longest)


@torch.no_grad()
def greedy(model: Translator, source: Tensor, limits: Tensor) -> Tensor:
    """The most probable next word, always: (N, T). No output needs its scores for that."""
    state, longest = model.begin(source), int(limits.max())
    tokens = source.new_full((len(source),), BOS)
    ended = torch.zeros_like(tokens, dtype=torch.bool)
    found = source.new_full((len(source), longest), PAD)
    for position in range(longest):
        tokens = _words_only(model.step(tokens, state)).argmax(-1).masked_fill(ended, PAD)
        found[:, position] = tokens
        ended = ended | (tokens == EOS) | (position + 1 >= limits)
        if position % 4 == 3 and bool(ended.all()):  # asking the device has its price
            break
    return found


@torch.no_grad()
def beam_search(
    model: Translator,
    best: Best,
    source: Tensor,
    beam: int,
    limits: Tensor,  # (N): words after which a hypothesis is cut off
    penalty: float = 0.0,
) -> Found:
    """The best finished hypothesis of each sentence.

    A step looks at the 2·beam best continuations of a sentence, which are among as many of each of
    its hypotheses. Those that end and are among the
    first `beam` are finished; the best `beam` of the others go on. A sentence is done when `beam`
    hypotheses are finished, or when nothing alive can overtake the best of them. So beam 1 is
    greedy search, and a beam as wide as the space finds the best of all hypotheses.
    """
    sentences, device, longest = len(source), source.device, int(limits.max())
    state = model.begin(source, beam)
    tokens = source.new_full((sentences, beam, 1), BOS)
    # Only the first copy counts at the start: all are the same.
    alive = torch.full((sentences, beam), -torch.inf, device=device)
    alive[:, 0] = 0
    best_score = torch.full((sentences,), -torch.inf, device=device)
    best_tokens = source.new_full((sentences, longest), PAD)
    finished = torch.zeros(sentences, dtype=torch.long, device=device)
    done = torch.zeros(sentences, dtype=torch.bool, device=device)
    offsets = torch.arange(sentences, device=device)[:, None] * beam
    rank = torch.arange(2 * beam, device=device)

    for length in range(1, longest + 1):
        logits = model.step(tokens[:, :, -1].flatten(), state).float()
        # Padding and BOS may be among them, and are no words.
        most = min(2 * beam + EOS, logits.shape[1])
        scores, words = best(logits, most)  # (N beam, most)
        scores = scores.masked_fill(words < EOS, -torch.inf).view(sentences, beam, most)
        scores = (alive[:, :, None] + scores).flatten(1)
        top, index = scores.topk(min(2 * beam, scores.shape[1]), sorted=True)
        word, parent = words.view(sentences, -1).gather(1, index), index // most
        grown = torch.cat((tokens.gather(1, parent[:, :, None].expand(-1, -1, length)),
                           word[:, :, None]), 2)  # (N, 2 beam, length + 1)  # fmt: skip
        ending = (word == EOS) | (length >= limits)[:, None]

        ends = ending & (rank[: top.shape[1]] < beam) & (top > -torch.inf)
        ends = ends & ~done[:, None]
        candidates = (top / length**penalty).masked_fill(~ends, -torch.inf)
        score, which = candidates.max(1)
        better = score > best_score
        best_score = torch.where(better, score, best_score)
        chosen = grown.gather(1, which[:, None, None].expand(-1, 1, length + 1))[:, 0, 1:]
        best_tokens[:, :length] = torch.where(better[:, None], chosen, best_tokens[:, :length])
        finished = finished + ends.sum(1)

        alive, keep = top.masked_fill(ending, -torch.inf).topk(min(beam, top.shape[1]))
        tokens = grown.gather(1, keep[:, :, None].expand(-1, -1, length + 1))
        parents = parent.gather(1, keep)
        if alive.shape[1] < beam:  # fewer words than the beam is wide
            missing = beam - alive.shape[1]
            alive = torch.nn.functional.pad(alive, (0, missing), value=-torch.inf)
            tokens = torch.nn.functional.pad(tokens, (0, 0, 0, missing))
            parents = torch.nn.functional.pad(parents, (0, missing))
        state.select((offsets + parents).flatten())
        # Log scores are at most 0, so a longer hypothesis is worth at most this.
        reachable = alive[:, 0] / limits**penalty
        done = done | (finished >= beam) | (best_score >= reachable)
        if length % 4 == 0 and bool(done.all()):
            break
    return Found(best_tokens, best_score, length)


@torch.no_grad()
def translate(
    model: Translator,
    best: Best,
    source: np.ndarray,
    beam: int,
    *,
    rows: int = 1024,
    penalty: float = 0.0,
) -> Translated:
    """All sentences, shortest first, `rows` at a time."""
    device = model.head.weight.device
    lengths = (source != PAD).sum(1)
    order = np.argsort(lengths, kind="stable")
    longest = model.config.longest
    tokens = np.full((len(source), longest), PAD, np.int16)
    scores = np.zeros(len(source), np.float32)
    steps = 0
    for start in range(0, len(order), rows):
        part = order[start : start + rows]
        batch = torch.from_numpy(source[part, : lengths[part].max()].astype(np.int64)).to(device)
        limits = length_limits(batch, longest)
        found = beam_search(model, best, batch, beam, limits, penalty)
        tokens[part, : found.tokens.shape[1]] = found.tokens.cpu().numpy()
        scores[part] = found.scores.cpu().numpy()
        steps += found.steps
    return Translated(tokens[:, : max(int((tokens != PAD).sum(1).max()), 1)], scores, steps)


def _words_only(scores: Tensor) -> Tensor:
    """In place: padding and BOS are no words."""
    scores[:, :EOS] = -torch.inf
    return scores
