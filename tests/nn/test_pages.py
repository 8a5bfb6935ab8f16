"""Large results on the CPU lie on huge pages, and are ordinary tensors otherwise."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from uncork.nn.transforms import pages


def flags_of(address: int) -> set[str]:
    """What the kernel was told about the memory at this address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        bounds = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if bounds:
            inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return set(line.split()[1:])
    return set()


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists(), reason="no huge pages here"
)
def test_a_large_result_lies_on_hugepages():
    large = pages.empty_like(torch.empty(pages.LARGE // 4 + 3))
    assert "hg" in flags_of(large.data_ptr() + large.nbytes // 2)


def test_nothing_is_asked_for_a_small_result(monkeypatch):
    monkeypatch.setattr(pages, "_madvise", lambda: pytest.fail("a small result"))
    pages.empty_like(torch.empty(1000))


def test_what_is_handed_out_is_contiguous_and_can_be_resized():
    source = torch.empty(pages.LARGE // 256, 80).t()
    result = pages.empty_like(source)
    assert result.is_contiguous()
    assert (result.shape, result.dtype) == (source.shape, source.dtype)
    result.fill_(3.0)
    assert float(result.sum()) == 3.0 * source.numel()
    assert result.resize_(2, 2).shape == (2, 2)


def test_without_the_call_memory_is_handed_out_all_the_same(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    pages._madvise.cache_clear()
    try:
        assert pages.empty_like(torch.empty(pages.LARGE // 4)).numel() == pages.LARGE // 4
    finally:
        pages._madvise.cache_clear()
