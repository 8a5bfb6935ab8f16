"""Small output heads and batches, shared by the tests of heads."""

import torch

from uncork.nn.heads import HEADS

SPARSE = ("entmax", "sparsemax", "alpha-relu", "normmax")
LIKELIHOOD = [name for name in HEADS if name not in SPARSE]
MIXTURES = ("mos", "moc", "mos-sigsoftmax")
OPTIONS = {
    "mos": {"components": 3},
    "moc": {"components": 3},
    "mos-sigsoftmax": {"components": 3},
    "plif": {"pieces": 7, "bound": 2.0},
    "mixtape": {"gate_features": 2, "frequent": 3},
    "alpha-relu": {"tau": -0.3},
}


def made(name, features=4, classes=7, dtype=torch.float64, **options):
    torch.manual_seed(0)
    head = HEADS[name](features, classes, dtype=dtype, **(OPTIONS.get(name, {}) | options))
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.5)
    return head


def batch(rows=5, features=4, classes=7, dtype=torch.float64):
    torch.manual_seed(1)
    hidden = torch.randn(rows, features, dtype=dtype, requires_grad=True)
    return hidden, torch.randint(0, classes, (rows,))
