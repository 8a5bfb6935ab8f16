"""Compiles kernels for a GPU that need not be there, and prints the name of each: run by
test_kernels_compile.py in a process of its own, since Triton's interpreter is on in the tests'.

A launch becomes a compilation with the types and constants Triton would have made of its arguments:
an integer that is 1 is a constant, one that 16 divides is known to be so. The first launch of a
kernel is compiled down to the machine's code, which takes long; later ones, with other types and
constants, to Triton's own, where what a kernel may not do with them is noticed.
"""

import torch
import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction

import uncork.nn as unn
import uncork.nn.functional as F
from uncork.nn import kernels
from uncork.nn.kernels import entmax
from uncork.nn.kernels.links import counts
from uncork.nn.linear import cuda

POINTERS = {
    torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int64: "*i64", torch.int32: "*i32",
    torch.int16: "*i16", torch.uint8: "*u8",
}  # fmt: skip
OPTIONS = ("num_warps", "maxnreg")
TARGET = GPUTarget("cuda", 90, 32)
done, compiled = set(), set()


def lower(source, options):
    """The kernel in Triton's own code, and no further."""
    backend = make_backend(TARGET)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    options = backend.parse_options(options)
    functions = backend.get_codegen_implementation(options)
    source.make_ir(TARGET, options, functions, backend.get_module_map(), context)


def compile_instead(kernel, *given, grid, warmup, **named):
    values = dict(zip(kernel.arg_names, given, strict=False)) | named
    unknown = set(values) - {*kernel.arg_names, *OPTIONS}
    assert not unknown, f"{kernel.fn.__name__} takes no {unknown}"
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
        done.add(key)
        if kernel.fn.__name__ in compiled:
            lower(source, options)
        else:
            made = triton.compile(source, target=TARGET, options=options)
            if kernel is counts.counted_residual_kernel:
                # Triton asks for more than 48 KiB only if what it knows of takes more.
                assert made.metadata.shared + 4 * counts.VALUES <= 48 << 10
            compiled.add(kernel.fn.__name__)
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
with torch.no_grad():
    z = torch.randn(2, 40)
    F.log_entmax(z)
    F.log_entmax_topk(z, 1)
    F.log_alpha_relu(z)
    F.log_alpha_relu_topk(z, 1, 1.25, 0.2)
for dtype in (torch.float32, torch.bfloat16):
    for classes in (1, 5003):  # as many are counted, by PLIF
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
