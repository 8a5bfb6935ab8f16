"""A few hundred random graphs: nothing arrives that a domain does not hold (more: `make fuzz`)."""

from __future__ import annotations

import os

from fuzz_domains.hold import Count, hold

from uncork.load.onnx import ranges  # noqa: F401
from uncork.load.onnx.rules.table import RULES

GRAPHS = 250
SEED = int(os.environ.get("UNCORK_TEST_SEED", "0"))  # as all tests draw other numbers


def test_nothing_arrives_at_the_head_of_a_random_graph_that_its_domain_does_not_hold() -> None:
    count = Count()
    for k in range(GRAPHS):
        hold(SEED * GRAPHS + k, count)
    assert not count.violations, count.text()
    assert count.run > GRAPHS * 0.8
    assert count.known > GRAPHS * 0.3


def test_the_grammar_has_every_op_with_a_rule() -> None:
    count = Count()
    for k in range(3 * GRAPHS):
        count.made(k)
    rare = {"DynamicQuantizeLSTM", "SkipSimplifiedLayerNormalization", "CastLike", "Swish"}
    missing = {op.split("::")[-1] for op in RULES} - set(count.ops)
    assert missing <= rare | {"RMSNormalization", "Gelu", "FastGelu", "QuickGelu", "BiasGelu"}
