"""A small language model that loses words while it trains, and a watch that says which.

    pip install tensorboard
    python examples/nn_watch.py            # then: tensorboard --logdir runs

It guesses the next word of Python's own help texts from the word before it, through 20 features:
too few for 2,000 words. Counts, the lost words and the report go to TensorBoard's files.
"""

import re
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import nn

from uncork.nn.watch import TensorBoard, Watch


def main(folder: str | Path = "runs/words", steps: int = 600) -> Watch:
    torch.manual_seed(0)
    text = re.findall(r"\w+|[^\w\s]", " ".join(topics.values()))
    words = [word for word, _ in Counter(text).most_common(2000)]
    number = {word: k for k, word in enumerate(words)}
    ids = torch.tensor([number[word] for word in text if word in number])

    body = nn.Sequential(nn.Embedding(2000, 64), nn.Linear(64, 20), nn.LayerNorm(20))
    model = nn.Sequential(body, nn.Linear(20, 2000))
    optimiser = torch.optim.AdamW(model.parameters(), 1e-2)
    watch = Watch(model[-1], every=100, labels=words, trackers=[TensorBoard(folder)])
    for step in range(1, steps + 1):
        at = torch.randint(len(ids) - 1, (1024,))
        loss = nn.functional.cross_entropy(model(ids[at]), ids[at + 1])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        counts = watch.step()
        if counts is not None:
            print(
                f"step {step}: loss {loss:.2f}, {counts['unargmaxable']:.0f} words can never be "
                f"first, {counts['nearly_lost']:.0f} nearly so; watching took "
                f"{counts['share']:.1%} of the time"
            )
    watch.finish()
    print("lost:", ", ".join(str(row[1]) for row in watch.lost.rows[:12]))
    return watch


if __name__ == "__main__":
    main()
