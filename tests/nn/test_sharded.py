"""Sharded over two processes: DTensors through the transforms, heads under fully_shard."""

import warnings

import pytest

torch = pytest.importorskip("torch")

import uncork.nn.functional as F  # noqa: E402
from uncork import UncorkError  # noqa: E402
from uncork.nn.heads import HEADS  # noqa: E402

from .process_groups import in_processes, needs_gloo  # noqa: E402
from .small_output_heads import SPARSE, made  # noqa: E402

TRANSFORMS = {
    "sparsemax": F.sparsemax,
    "entmax 1": lambda z, dim: F.entmax(z, 1.0, dim),
    "entmax 1.3": lambda z, dim: F.entmax(z, 1.3, dim),
    "entmax 1.5": lambda z, dim: F.entmax(z, 1.5, dim),
    "entmax 3": lambda z, dim: F.entmax(z, 3.0, dim),
    "entmax tensor": lambda z, dim: F.entmax(z, torch.tensor(1.3, dtype=z.dtype), dim),
    "log_entmax": lambda z, dim: F.log_entmax(z, 1.3, dim),
    "alpha_relu": lambda z, dim: F.alpha_relu(z, 1.5, 0.2, dim=dim),
    "log_alpha_relu": lambda z, dim: F.log_alpha_relu(z, 1.5, 0.2, dim),
    "normmax": lambda z, dim: F.normmax(z, 2.0, dim),
    "budget": lambda z, dim: F.budget(z, 2.0, dim),
}
STAY_SHARDED = ("sparsemax", "entmax 1", "entmax 1.3", "entmax 1.5", "entmax 3", "entmax tensor",
                "log_entmax", "alpha_relu")  # fmt: skip


def logits():
    z = 2 * torch.randn(5, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z[1, :5] = -torch.inf  # all that the first process has of it
    return z


def finite(values):
    """−inf, off the support, has no part in a gradient."""
    return torch.where(values > -torch.inf, values, torch.zeros_like(values))


def check_transform(name, mesh, placement, dim):
    from torch.distributed.tensor import DTensor, distribute_tensor

    transform, z = TRANSFORMS[name], logits()
    upstream = torch.arange(45.0, dtype=z.dtype).reshape(5, 9).cos()
    plain = z.clone().requires_grad_()
    expected = transform(plain, dim)
    (truth,) = torch.autograd.grad((finite(expected) * upstream).sum(), plain)
    sharded = distribute_tensor(z, mesh, [placement]).requires_grad_()
    found = transform(sharded, dim)
    assert isinstance(found, DTensor)
    if not placement.is_shard(dim % 2) or name in STAY_SHARDED:
        assert found.placements == (placement,)
    torch.testing.assert_close(found.full_tensor(), expected, atol=1e-9, rtol=1e-9)
    (gradient,) = torch.autograd.grad((finite(found.full_tensor()) * upstream).sum(), sharded)
    torch.testing.assert_close(gradient.full_tensor(), truth, atol=1e-8, rtol=1e-8)


def check_compiled(name, mesh, placement):
    """In a graph that breaks there."""
    from torch.distributed.tensor import distribute_tensor

    torch._dynamo.reset()
    transform, z = TRANSFORMS[name], logits()
    compiled = torch.compile(lambda z: transform(2 * z, -1) + 1, backend="eager")
    plain = z.clone().requires_grad_()
    expected = finite(transform(2 * plain, -1) + 1)
    sharded = distribute_tensor(z, mesh, [placement]).requires_grad_()
    found = finite(compiled(sharded).full_tensor())
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found.square().sum(), sharded)[0].full_tensor(),
        torch.autograd.grad(expected.square().sum(), plain)[0],
    )


def check_refusals(mesh):
    from torch.distributed.tensor import Shard, distribute_tensor

    z = distribute_tensor(logits(), mesh, [Shard(0)])
    weight, target = logits(), torch.zeros(5, dtype=torch.int64)
    for call, says in (
        (lambda: F.entmax(z, torch.full((5, 1), 1.5)), "one value for all rows"),
        (lambda: F.entmax(z, torch.tensor(1.5, requires_grad=True)), "receives a gradient"),
        (lambda: F.sparsemax(z, return_support=True), "return_support"),
        (lambda: F.alpha_relu(z, return_support=True), "return_support"),
        (lambda: F.entmax_loss(z, torch.zeros(5, dtype=torch.int64)), "vocab_parallel_loss"),
        (lambda: F.linear_entmax_loss(z, weight, target), "input is a DTensor"),
        (lambda: F.linear_cross_entropy(weight, z, target), "linear_weight is a DTensor"),
        (lambda: F.linear_log_prob(weight, z, target, alpha=1.5), "linear_weight is a DTensor"),
    ):
        with pytest.raises(UncorkError, match=says):
            call()


def check_second_derivatives(mesh):
    """They are refused, not left out."""
    from torch.distributed.tensor import Shard, distribute_tensor

    sharded = distribute_tensor(logits(), mesh, [Shard(1)]).requires_grad_()
    with pytest.raises(UncorkError, match="first derivatives only"):
        torch.autograd.grad(F.entmax(sharded, 1.5).sum(), sharded, create_graph=True)


def check_large_alpha(mesh, alpha):
    """Where one p is nearly 0, its slope is 1e15 times that of the others."""
    from torch.distributed.tensor import Shard, distribute_tensor

    z, upstream = torch.randn(2, 5000, 8, generator=torch.Generator().manual_seed(0)).unbind()
    sharded = distribute_tensor(z, mesh, [Shard(1)]).requires_grad_()
    p = F.entmax(sharded, alpha).full_tensor()
    (found,) = torch.autograd.grad(p, sharded, upstream)
    p, upstream = p.detach().double(), upstream.double()
    slope = torch.where(p > 0, p.where(p > 0, 1.0).pow(2 - alpha), 0.0)
    apart = upstream[:, :, None] - upstream[:, None, :]
    share = slope / slope.sum(-1, keepdim=True)
    expected = (slope[:, :, None] * share[:, None, :] * apart).sum(-1).float()
    torch.testing.assert_close(found.full_tensor(), expected, rtol=1e-3, atol=1e-3)


def check_fewer_classes_than_processes(mesh):
    from torch.distributed.tensor import Shard, distribute_tensor

    z = torch.tensor([[0.3], [2.0]])
    found = F.entmax(distribute_tensor(z, mesh, [Shard(1)]))
    torch.testing.assert_close(found.full_tensor(), torch.ones(2, 1))


def check_partial(mesh, rank):
    from torch.distributed.tensor import DTensor, Partial

    z = logits()[2:]
    part = z * (0.25 if rank == 0 else 0.75)
    found = F.entmax(DTensor.from_local(part, mesh, [Partial()])).full_tensor()
    torch.testing.assert_close(found, F.entmax(z))


def check_head(name, mesh, rank):
    """Each process has half of the batch; gradients are those of all of it."""
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    hidden = torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    target = torch.tensor([3, 0, 5, 6, 1, 2])
    half = slice(3 * rank, 3 * rank + 3)
    plain, head = made(name), fully_shard(made(name), mesh=mesh)
    with pytest.raises(UncorkError, match="register_fsdp_forward_method"):
        head.loss(hidden[half], target[half])
    register_fsdp_forward_method(head, "loss")
    if name in SPARSE:  # others choose by a call of the head
        with pytest.raises(UncorkError, match="of a sparse head for 'argmax'"):
            head.argmax(hidden[half])
        register_fsdp_forward_method(head, "argmax")
        register_fsdp_forward_method(head, "top_k")
    assert torch.equal(head.argmax(hidden[half]), plain.argmax(hidden[half]))
    assert torch.equal(head.top_k(hidden[half], 2).indices, plain.top_k(hidden[half], 2).indices)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of views, which lose what fully_shard hangs on to them
        scores = head(hidden[half])
    torch.testing.assert_close(scores, plain(hidden[half]))
    head.loss(hidden[half], target[half]).backward()
    plain.loss(hidden, target).backward()
    for one, other in zip(head.parameters(), plain.parameters(), strict=True):
        if other.grad is None:
            assert one.grad is None
        else:
            torch.testing.assert_close(one.grad.full_tensor(), other.grad)


def work(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard

    mesh = init_device_mesh("cpu", (2,))
    checks = {
        f"{name}, {placement}, dim={dim}": (check_transform, name, mesh, placement, dim)
        for name in TRANSFORMS
        for placement, dim in ((Shard(0), -1), (Shard(1), -1))
    }
    for placement, dim in ((Replicate(), 1), (Shard(0), 0), (Shard(1), 0)):
        checks[f"{placement}, {dim}"] = (check_transform, "entmax 1.3", mesh, placement, dim)
    for name in ("entmax 1.5", "log_entmax", "alpha_relu", "normmax"):
        checks[f"compiled {name}"] = (check_compiled, name, mesh, Shard(1))
    checks["refusals"] = (check_refusals, mesh)
    checks["second derivatives"] = (check_second_derivatives, mesh)
    checks |= {f"alpha {alpha}": (check_large_alpha, mesh, alpha) for alpha in (3.0, 10.0, 20.0)}
    checks["few classes"] = (check_fewer_classes_than_processes, mesh)
    checks["partial"] = (check_partial, mesh, rank)
    checks |= {f"head {name}": (check_head, name, mesh, rank) for name in HEADS}
    for name, (check, *arguments) in checks.items():
        try:
            check(*arguments)
        except Exception as error:
            raise AssertionError(name) from error


@pytest.mark.slow
@needs_gloo
def test_two_processes_agree_with_one(tmp_path):
    in_processes(work, tmp_path)
