"""A few hundred random graphs: nothing arrives that a domain does not hold (more: `make fuzz`)."""

from __future__ import annotations

import os

import pytest
from fuzz_domains.children import held
from fuzz_domains.hold import Count, hold

from uncork.loading.onnx.arriving import ranges  # noqa: F401
from uncork.loading.onnx.rules.table import RULES

GRAPHS = 250
SEED = int(os.environ.get("UNCORK_TEST_SEED", "0"))  # as all tests draw other numbers
# Limits of Clip in float16; classes that Sigmoid swaps within its rounding; rows of linear maps.
ONCE_OUTSIDE = (1006097, 1168235, 1187603, 1053314, 1134424, 1146993, 1152296, 1176990, 1256857,
                1286911, 1288537)  # fmt: skip


def test_nothing_arrives_at_the_head_of_a_random_graph_that_its_domain_does_not_hold() -> None:
    count = Count()
    for k in range(GRAPHS):
        hold(SEED * GRAPHS + k, count)
    assert not count.violations, count.text()
    assert count.run > GRAPHS * 0.8
    assert count.known > GRAPHS * 0.3


def test_graphs_that_once_showed_something_outside_hold_now() -> None:
    pytest.importorskip("onnxruntime", "1.24")  # earlier ones refuse to run one of them
    count = Count()
    for seed in ONCE_OUTSIDE:
        hold(seed, count)
    assert not count.violations, count.text()
    assert count.run == len(ONCE_OUTSIDE)


def test_the_grammar_has_every_op_with_a_rule() -> None:
    count = Count()
    for k in range(3 * GRAPHS):
        count.made(k)
    rare = {"DynamicQuantizeLSTM", "SkipSimplifiedLayerNormalization", "CastLike", "Swish"}
    missing = {op.split("::")[-1] for op in RULES} - set(count.ops)
    assert missing <= rare | {"RMSNormalization", "Gelu", "FastGelu", "QuickGelu", "BiasGelu"}


def _dies_on_three(seed: int, count: Count) -> None:
    count.graphs += 1
    if seed == 3:
        os.abort()


def test_a_graph_on_which_the_run_time_dies_is_counted_and_the_run_goes_on() -> None:
    total = Count()
    for count in held(range(2, 6), _dies_on_three):
        total.add(count)
    assert (total.graphs, total.crashed) == (4, [3])
    assert "1 crashed the run-time [3]" in total.text()
