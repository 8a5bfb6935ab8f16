"""Heads stored as codes on the command line: audited dequantised, or exit status 2."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from running import Run
from safetensors.torch import save_file

from uncork.loading import find


@pytest.fixture
def float8(tmp_path: Path) -> Path:
    """Short rows inside the hull of long ones, which the codes alone do not show."""
    generator = torch.Generator().manual_seed(5)
    rows = torch.randn(200, 16, generator=generator)
    rows = rows / rows.norm(dim=1, keepdim=True)
    rows = rows * torch.cat([torch.full((146, 1), 0.01), torch.ones(54, 1)])
    scale = rows.abs().amax(1, keepdim=True) / 448
    tensors = {
        "lm_head.weight": (rows / scale).to(torch.float8_e4m3fn),
        "lm_head.weight_scale": scale,
    }
    save_file(tensors, tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors"


def test_the_dequantised_head_is_audited(run: Run, float8: Path) -> None:
    ran = run("audit", float8, "--json", "-")
    assert (ran.status, len(ran.json()["unargmaxable"])) == (0, 146)
    shown = run("show", float8, "--json", "-").json()
    assert (
        "dequantised: float8_e4m3fn codes times lm_head.weight_scale, one a row" in shown["notes"]
    )
    by_name = {tensor["name"]: tensor for tensor in shown["tensors"]}
    assert by_name["lm_head.weight"]["dtype"] == "float32"
    assert by_name["lm_head.weight_scale"]["shape"] == [200, 1]


def test_a_repair_by_bias_keeps_the_codes(run: Run, float8: Path, tmp_path: Path) -> None:
    out = tmp_path / "new.safetensors"
    ran = run("repair", float8, "-o", out, "--quiet")
    assert ran.status == 0, ran.err
    before, after = find(float8), find(out)
    np.testing.assert_array_equal(after.head.weight, before.head.weight)
    assert after.bias_name == "lm_head.bias"
    assert after.contents.tensors["lm_head.weight_scale"].part_of == "lm_head.weight"


def test_a_repair_of_rows_is_refused_before_any_work(
    run: Run, float8: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new.safetensors"
    ran = run("repair", float8, "-o", out, "--how", "row")
    assert "stores lm_head.weight as codes, which cannot hold a new weight" in ran.error
    assert not out.exists()
    alone = tmp_path / "alone.npz"
    assert (
        run("repair", float8, "-o", alone, "--how", "row", "--classes", "0", "--quiet").status == 0
    )
    assert find(alone).head.classes == 200


def test_codes_of_no_known_kind_end_with_one_line(run: Run, tmp_path: Path) -> None:
    tensors = {"lm_head.W_q": torch.ones(9, 8, dtype=torch.uint8), "lm_head.scale": torch.ones(9)}
    save_file(tensors, tmp_path / "m.safetensors")
    out = tmp_path / "a.json"
    ran = run("audit", tmp_path / "m.safetensors", "--json", out)
    assert "is stored as codes (with lm_head.W_q) by HQQ" in ran.error
    assert "dequantise the model with its own library and save that" in ran.error
    assert not out.exists()
