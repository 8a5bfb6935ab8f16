"""What torch's own functions do without thinking: compile, vmap, autocast, checkpoint, DDP, ..."""

import copy
import shutil

import pytest

torch = pytest.importorskip("torch")

import uncork.nn as unn  # noqa: E402
import uncork.nn.functional as F  # noqa: E402
from uncork import UncorkError  # noqa: E402

from .process_groups import in_processes, needs_gloo  # noqa: E402

TARGET = torch.tensor([3, 0, -100, 5, 1, 2])
FUNCTIONS = {
    "sparsemax": lambda z: F.sparsemax(z).square().sum(),
    "entmax 1": lambda z: F.entmax(z, 1.0).square().sum(),
    "entmax 1.3": lambda z: F.entmax(z, 1.3).square().sum(),
    "entmax 1.5": lambda z: F.entmax(z, 1.5).square().sum(),
    "entmax tensor": lambda z: F.entmax(z, 1.2 + torch.sigmoid(z[:, :1])).square().sum(),
    "alpha_relu": lambda z: F.alpha_relu(z, 1.5, 0.2).square().sum(),
    "alpha_relu tensors": lambda z: F.alpha_relu(z, 1.2 + z[:, :1] ** 2, z[:, 1:2]).sum(),
    "normmax": lambda z: F.normmax(z, 2.0).square().sum(),
    "budget": lambda z: F.budget(z, 2.0).square().sum(),
    "softmax_loss": lambda z: F.softmax_loss(z, TARGET),
    "sparsemax_loss": lambda z: F.sparsemax_loss(z, TARGET, label_smoothing=0.1),
    "entmax_loss": lambda z: F.entmax_loss(z, TARGET),
    "entmax_loss alpha": lambda z: F.entmax_loss(z, TARGET, alpha=1.3 + z[:, 0].sigmoid()),
    "entmax_loss soft": lambda z: F.entmax_loss(z, torch.full_like(z, 1 / 9)),
    "alpha_relu_loss": lambda z: F.alpha_relu_loss(z, TARGET, tau=0.2, weight=torch.ones(9)),
    "normmax_loss": lambda z: F.normmax_loss(z, TARGET),
}
every_function = pytest.mark.parametrize("name", FUNCTIONS)
# torch's own tracing uses what torch deprecates for others.
compiling = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def z():
    return torch.randn(6, 9, generator=torch.Generator().manual_seed(0)).requires_grad_()


def value_and_gradient(function, z):
    value = function(z)
    (gradient,) = torch.autograd.grad(value, z)
    return value.detach(), gradient


def compiled(function, backend):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend=backend)


@every_function
@compiling
def test_compiles_as_one_graph(name, z):
    function = FUNCTIONS[name]
    expected = value_and_gradient(function, z)
    torch.testing.assert_close(value_and_gradient(compiled(function, "aot_eager"), z), expected)


@every_function
@compiling
def test_compiles_as_one_graph_without_gradients(name, z):
    function = FUNCTIONS[name]
    with torch.no_grad():
        torch.testing.assert_close(compiled(function, "aot_eager")(z), function(z))


@every_function
@compiling
def test_forward_mode_inside_what_is_compiled_is_not_traced(name, z):
    z = z.detach()

    def along(z):
        return torch.func.jvp(FUNCTIONS[name], (z,), (z.cos(),))[1]

    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(along, backend="aot_eager")(z), along(z))


@every_function
@compiling
def test_is_exported_for_any_number_of_rows(name, z):
    class Module(torch.nn.Module):
        def forward(self, z, target):
            if "loss" not in name or "soft" in name.split():
                return FUNCTIONS[name](z)
            given = {"alpha": 1.3 + z[:, 0].sigmoid()} if "alpha" in name.split() else {}
            return getattr(F, name.split()[0])(z, target, **given)

    rows = {0: torch.export.Dim("rows")}
    program = torch.export.export(Module(), (z, TARGET), dynamic_shapes=(rows, rows))
    more = torch.cat([z, 2 * z]), torch.cat([TARGET, TARGET])
    torch.testing.assert_close(program.module()(*more), Module()(*more))


@compiling
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_the_default_compiler_agrees(z, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    # Compiled here: processes started for it would first import torch, each of them.
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)

    def function(z):
        return F.entmax_loss(z, TARGET)

    expected = value_and_gradient(function, z)
    torch.testing.assert_close(value_and_gradient(compiled(function, "inductor"), z), expected)


@compiling
def test_peer_does_not_compile(z):
    peer = pytest.importorskip("entmax")
    for transform in (peer.sparsemax, peer.entmax15, peer.entmax_bisect):
        with pytest.raises(torch._dynamo.exc.Unsupported):
            compiled(transform, "aot_eager")(z)


PER_ROW = {
    "sparsemax": F.sparsemax,
    "entmax": F.entmax,
    "entmax 1.3": lambda row: F.entmax(row, 1.3),
    "alpha_relu": lambda row: F.alpha_relu(row, 1.5, 0.2),
    "normmax": F.normmax,
    "budget": F.budget,
    "entmax_loss": lambda row: F.entmax_loss(row, torch.tensor(2)),
    "alpha_relu_loss": lambda row: F.alpha_relu_loss(row, torch.tensor(2)),
}


@pytest.mark.parametrize("name", PER_ROW)
def test_vmap_and_per_sample_gradients_equal_a_loop(name, z):
    function = PER_ROW[name]
    rows = z.detach()
    torch.testing.assert_close(
        torch.vmap(function)(rows), torch.stack([function(row) for row in rows])
    )

    def scalar(row):
        return function(row).square().sum()

    torch.testing.assert_close(
        torch.vmap(torch.func.grad(scalar))(rows),
        torch.stack([torch.func.grad(scalar)(row) for row in rows]),
    )


def test_vmap_over_alpha_alone(z):
    row, alphas = z.detach()[0], torch.tensor([1.2, 1.5, 2.0])
    torch.testing.assert_close(
        torch.vmap(lambda a: F.entmax(row, a))(alphas),
        torch.stack([F.entmax(row, float(a)) for a in alphas]),
    )


@every_function
@compiling
def test_derivatives_of_any_order_and_mode_agree(name, z):
    from torch.func import jacfwd, jacrev

    function, z = FUNCTIONS[name], z.detach().double()
    expected = jacrev(jacrev(function))(z)
    for outer, inner in ((jacfwd, jacfwd), (jacfwd, jacrev), (jacrev, jacfwd)):
        torch.testing.assert_close(outer(inner(function))(z), expected)
    dual = torch.autograd.functional.jacobian(function, z, vectorize=True, strategy="forward-mode")
    torch.testing.assert_close(dual, jacrev(function)(z))


@compiling
@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax", "alpha_relu", "normmax"])
def test_a_soft_target_and_class_weights_have_forward_mode_as_reverse(name, z):
    from torch.func import jacfwd, jacrev

    z = z.detach().double()
    target, weight = torch.softmax(z.flip(0), -1), 1 + z[0].square()

    def loss(z, target, weight):
        return getattr(F, f"{name}_loss")(z, target, weight, label_smoothing=0.1, reduction="none")

    for place in range(3):
        torch.testing.assert_close(
            jacfwd(loss, place)(z, target, weight), jacrev(loss, place)(z, target, weight)
        )
    torch.testing.assert_close(
        jacfwd(jacrev(loss), 1)(z, target, weight), jacrev(jacrev(loss), 1)(z, target, weight)
    )


@compiling
@pytest.mark.parametrize("name", ["log_entmax", "log_sparsemax", "log_alpha_relu"])
def test_logarithms_have_forward_mode_without_torch_func_too(name, z):
    def finite(z):
        values = getattr(F, name)(z)
        return torch.where(values > -torch.inf, values, torch.zeros_like(values))

    z = z.detach().double()
    with torch.autograd.forward_ad.dual_level():
        dual = finite(torch.autograd.forward_ad.make_dual(z, z.cos()))
        found = torch.autograd.forward_ad.unpack_dual(dual).tangent
    torch.testing.assert_close(found, torch.func.jvp(finite, (z,), (z.cos(),))[1])


@compiling
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", [*PER_ROW, "log_entmax"])
def test_what_jit_traces_is_the_function_and_not_its_values(name, z):
    function = PER_ROW.get(name, F.log_entmax)
    if "loss" in name:
        function = lambda z: getattr(F, name)(z, TARGET)  # noqa: E731
    rows = z.detach()
    traced = torch.jit.trace(function, rows)
    torch.testing.assert_close(traced(2 * rows.flip(1)), function(2 * rows.flip(1)))


def test_peer_does_not_vmap(z):
    peer = pytest.importorskip("entmax")
    for transform in (peer.sparsemax, peer.entmax15, peer.entmax_bisect):
        with pytest.raises(RuntimeError, match="functorch"):
            torch.vmap(transform)(z)


@every_function
def test_autocast_gives_float32(name, z):
    with torch.autocast("cpu", torch.bfloat16):
        half = z @ torch.eye(9)
        assert half.dtype == torch.bfloat16
        value = FUNCTIONS[name](half)
        assert F.entmax(half).dtype == torch.float32
    assert value.dtype == torch.float32
    value.backward()
    assert z.grad.isfinite().all()


def test_peer_stays_in_bfloat16_under_autocast(z):
    peer = pytest.importorskip("entmax")
    with torch.autocast("cpu", torch.bfloat16):
        assert peer.entmax15(z @ torch.eye(9)).dtype == torch.bfloat16


@every_function
def test_gradient_checkpointing_changes_nothing(name, z):
    from torch.utils.checkpoint import checkpoint

    function = FUNCTIONS[name]
    expected = value_and_gradient(function, z)
    for reentrant in (False, True):
        found = value_and_gradient_through_checkpoint(checkpoint, function, z, reentrant)
        torch.testing.assert_close(found, expected)


def value_and_gradient_through_checkpoint(checkpoint, function, z, reentrant):
    z.grad = None
    value = checkpoint(function, z, use_reentrant=reentrant)
    value.backward()
    return value.detach(), z.grad


@every_function
def test_deterministic_mode_is_obeyed(name, z):
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        first = value_and_gradient(FUNCTIONS[name], z)
        second = value_and_gradient(FUNCTIONS[name], z)
    finally:
        torch.use_deterministic_algorithms(before)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


@every_function
def test_no_value_is_read_off_the_device(name):
    """Meta tensors have no values: anything that would make the host wait raises here."""
    z = torch.empty(6, 9, device="meta", requires_grad=True)
    target = TARGET

    def on_meta(tensor):
        return tensor.to("meta")

    functions = {
        **FUNCTIONS,
        "softmax_loss": lambda z: F.softmax_loss(z, on_meta(target)),
        "sparsemax_loss": lambda z: F.sparsemax_loss(z, on_meta(target), label_smoothing=0.1),
        "entmax_loss": lambda z: F.entmax_loss(z, on_meta(target)),
        "entmax_loss alpha": lambda z: F.entmax_loss(
            z, on_meta(target), alpha=1.3 + z[:, 0].sigmoid()
        ),
        "alpha_relu_loss": lambda z: F.alpha_relu_loss(
            z, on_meta(target), tau=0.2, weight=torch.ones(9, device="meta")
        ),
        "normmax_loss": lambda z: F.normmax_loss(z, on_meta(target)),
    }
    functions[name](z).backward()
    assert z.grad.shape == z.shape


def test_the_solvers_read_no_value_off_the_device():
    from uncork.nn.transforms import budget, normmax, threshold

    v = torch.empty(3, 9, device="meta")
    rows = torch.empty(3, 1, device="meta")
    for parameter in (1.3, 1.5, 2.0, 3.0, rows):
        for solve in (threshold.entmax_shift, normmax._solve, budget._solve):
            assert solve(v, parameter).shape == (3, 1)


def test_peer_makes_the_host_wait():
    peer = pytest.importorskip("entmax")
    z = torch.empty(6, 9, device="meta")
    with pytest.raises(RuntimeError, match="meta"):
        peer.SparsemaxLoss(ignore_index=0)(z, TARGET.to("meta"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@every_function
def test_cuda_equals_cpu_without_host_synchronisation(name, z):
    expected = value_and_gradient(FUNCTIONS[name], z)
    moved = z.detach().cuda().requires_grad_()
    target = TARGET.cuda()
    functions = {
        **FUNCTIONS,
        "softmax_loss": lambda z: F.softmax_loss(z, target),
        "sparsemax_loss": lambda z: F.sparsemax_loss(z, target, label_smoothing=0.1),
        "entmax_loss": lambda z: F.entmax_loss(z, target),
        "entmax_loss alpha": lambda z: F.entmax_loss(z, target, alpha=1.3 + z[:, 0].sigmoid()),
        "alpha_relu_loss": lambda z: F.alpha_relu_loss(
            z, target, tau=0.2, weight=torch.ones(9, device="cuda")
        ),
        "normmax_loss": lambda z: F.normmax_loss(z, target),
    }
    function = functions[name]
    value_and_gradient(function, moved)  # libraries may wait while they load
    torch.cuda.set_sync_debug_mode("error")
    try:
        value, gradient = value_and_gradient(function, moved)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close((value.cpu(), gradient.cpu()), expected, atol=1e-5, rtol=1e-4)


def test_modules_show_their_parameters_wherever_they_are():
    assert "alpha=1.3000" in repr(unn.EntmaxLoss(torch.nn.Parameter(torch.tensor(1.3))))
    assert "alpha=tensor(2, 1)" in repr(unn.Entmax(torch.tensor([[1.2], [1.3]])))
    for module in (unn.AlphaReLU(tau=0.2), unn.LinearAlphaReLULoss(tau=0.2)):
        assert "tau=0.2000" in repr(module)
        assert "tau=tensor()" in repr(module.to("meta"))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: unn.LinearAlphaReLULoss(tau=torch.zeros(3)), "one value for all rows"),
        (lambda: unn.NormmaxLoss(torch.nn.Parameter(torch.tensor(2.0))), "alpha must be a number"),
        (
            lambda: F.normmax_loss(
                torch.ones(1, 3), TARGET[:1], alpha=torch.ones((), requires_grad=True)
            ),
            "alpha receives no gradient",
        ),
        (lambda: unn.Budget(torch.nn.Parameter(torch.tensor(2.0))), "budget must be a number"),
        (lambda: unn.ArgmaxableLinear(3, 4, "length"), "expected norm or bias"),
        (lambda: unn.ArgmaxableLinear.from_linear(torch.nn.Embedding(4, 3)), "got Embedding"),
    ],
)
def test_what_a_module_cannot_take_is_said(make, says):
    with pytest.raises(UncorkError, match=says):
        make()


def _train_one_of_two(rank):
    torch.manual_seed(0)
    z, target = torch.randn(6, 4), torch.tensor([3, 0, 8, 5, 1, 2])
    plain = torch.nn.Linear(4, 9)
    model = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(plain))
    half = slice(rank * 3, rank * 3 + 3)
    for loss in (unn.EntmaxLoss(1.3), unn.AlphaReLULoss(tau=0.2)):
        loss(model(z[half]), target[half]).backward()
        loss(plain(z), target).backward()
    torch.testing.assert_close(model.module.weight.grad, plain.weight.grad)


@pytest.mark.slow
@needs_gloo
def test_two_processes_of_data_parallel_training_equal_one(tmp_path):
    in_processes(_train_one_of_two, tmp_path)
