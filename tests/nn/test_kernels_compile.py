"""Kernels compile for a GPU, where there is none to run them: the interpreter takes more than the
compiler does (an argument that is 1 is a constant to the compiler, without a tensor's methods)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")


@pytest.mark.filterwarnings("ignore")
def test_one_class_one_row_and_many_compile_for_a_gpu(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    script = Path(__file__).with_name("compile_kernels.py")
    made = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert made.returncode == 0, made.stderr[-2000:]
    names = set(made.stdout.split())
    assert names >= {
        "entmax_narrow_kernel", "entmax_wide_kernel", "entmax_backward_kernel",
        "alpha_relu_loss_kernel", "loss_backward_kernel", "narrow_loss_backward_kernel",
        "reduce_kernel", "prepare_kernel", "losses_kernel", "residual_kernel",
        "entmax_residual_kernel", "wide_residual_kernel", "refined_rows_kernel",
        "exact_residual_kernel", "normaliser_kernel", "linked_residual_kernel",
        "piecewise_residual_kernel", "mix_kernel", "mix_backward_kernel", "entmax_best_kernel",
        "alpha_relu_best_kernel", "log_alpha_relu_kernel", "pieces_table_kernel",
        "slopes_gradient_kernel", "counted_residual_kernel", "values_kernel",
    }  # fmt: skip
