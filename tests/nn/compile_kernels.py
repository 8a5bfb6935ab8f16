"""Compiles kernels for a GPU that need not be there, and prints the name of each: run by
test_kernels_compile.py in a process of its own, since Triton's interpreter is on in the tests'.

A launch becomes a compilation with the types and constants Triton would have made of its arguments:
an integer that is 1 is a constant, one that 16 divides is known to be so.
"""

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

import uncork.nn as unn
import uncork.nn.functional as F
from uncork.nn import kernels
from uncork.nn.kernels import entmax
from uncork.nn.linear import cuda

POINTERS = {
    torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int64: "*i64", torch.int32: "*i32",
    torch.int16: "*i16", torch.uint8: "*u8",
}  # fmt: skip
OPTIONS = ("num_warps", "maxnreg")
done = set()


def compile_instead(kernel, *given, grid, warmup, **named):
    values = dict(zip(kernel.arg_names, given, strict=False)) | named
    signature, constants, known = {}, {}, {}
    for place, name in enumerate(kernel.arg_names):
        value = values[name]
        if isinstance(value, torch.Tensor):
            signature[name] = POINTERS[value.dtype]
            known[(place,)] = [["tt.divisibility", 16]]
        elif kernel.params[place].is_constexpr or (type(value) is int and value == 1):
            signature[name], constants[(place,)] = "constexpr", value
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = "i32"
            if value % 16 == 0:
                known[(place,)] = [["tt.divisibility", 16]]
    options = {name: values[name] for name in OPTIONS if name in values}
    source = ASTSource(kernel, signature, constants, known)
    key = (kernel.fn.__name__, str(sorted(signature.items())), str(constants), str(known))
    if key not in done:
        triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        done.add(key)
        print(kernel.fn.__name__)


JITFunction.run = compile_instead
kernels._forced = True
entmax.WIDEST = cuda.WIDEST = 1024


def losses(rows, classes):
    z = torch.randn(rows, classes, requires_grad=True)
    target = torch.zeros(rows, dtype=torch.int64)
    F.entmax_loss(z, target).backward()
    F.alpha_relu_loss(z, target, tau=0.3).backward()
    F.entmax(z, 1.5).sum().backward()


losses(1, 1)
losses(2, 5003)
for dtype in (torch.float32, torch.bfloat16):
    for classes in (1, 5003):
        x = torch.randn(3, 8, dtype=dtype, requires_grad=True)
        weight = torch.randn(classes, 8, dtype=dtype, requires_grad=True)
        target = torch.zeros(3, dtype=torch.int64)
        more = {}
        if dtype == torch.bfloat16:
            more = {"linear_bias": torch.zeros(classes, dtype=dtype), "softcap": 4.0}
        for loss in (F.linear_entmax_loss, F.linear_cross_entropy, F.linear_alpha_relu_loss):
            loss(x, weight, target, **more).backward()
        for name in ("mos", "sigsoftmax", "plif", "mixtape"):
            head = unn.heads.HEADS[name](8, classes, dtype=dtype)
            head.loss(x, target).backward()
