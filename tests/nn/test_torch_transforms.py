"""torch's function transforms: batched gradients, tracing, forward mode, Hessians."""

import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import uncork.nn.functional as F  # noqa: E402

TARGET = torch.tensor([3, 0, 5])
FUNCTIONS = {
    "sparsemax": lambda z: F.sparsemax(z),
    "entmax 1.3": lambda z: F.entmax(z, 1.3),
    "entmax 1.5": lambda z: F.entmax(z),
    "entmax 3": lambda z: F.entmax(z, 3.0),
    "entmax tensor": lambda z: F.entmax(z, 1.2 + torch.sigmoid(z[:, :1])),
    "alpha_relu": lambda z: F.alpha_relu(z, 1.5, 0.2),
    "alpha_relu tensors": lambda z: F.alpha_relu(z, 1.2 + z[:, :1] ** 2, z[:, 1:2]),
    "normmax": lambda z: F.normmax(z),
    "normmax tensor": lambda z: F.normmax(z, 1.5 + torch.sigmoid(z[:, :1])),
    "budget": lambda z: F.budget(z),
    "budget tensor": lambda z: F.budget(z, 1.5 + torch.sigmoid(z[:, :1])),
    "sparsemax_loss": lambda z: F.sparsemax_loss(z, TARGET),
    "entmax_loss": lambda z: F.entmax_loss(z, TARGET, label_smoothing=0.1),
    "entmax_loss alpha": lambda z: F.entmax_loss(z, TARGET, alpha=1.3 + z[:, 0].sigmoid()),
    "entmax_loss soft": lambda z: F.entmax_loss(z, torch.full_like(z, 1 / 7)),
    "alpha_relu_loss": lambda z: F.alpha_relu_loss(z, TARGET, tau=z[0, 0]),
    "normmax_loss": lambda z: F.normmax_loss(z, TARGET),
}
every_function = pytest.mark.parametrize("name", FUNCTIONS)
# torch's own forward mode uses what torch deprecates for others.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def z():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 7, generator=generator, dtype=torch.float64)


def scalar(function):
    return lambda z: function(z).square().sum()


@every_function
def test_gradients_in_a_batch_equal_one_after_the_other(name, z):
    jacobian = torch.autograd.functional.jacobian
    function = FUNCTIONS[name]
    torch.testing.assert_close(jacobian(function, z, vectorize=True), jacobian(function, z))


@every_function
def test_a_trace_of_values_and_gradients_holds_for_other_logits(name, z):
    for function in (FUNCTIONS[name], torch.func.grad(scalar(FUNCTIONS[name]))):
        traced = make_fx(function)(z)
        torch.testing.assert_close(traced(z + z.sin()), function(z + z.sin()))


@every_function
def test_forward_mode_equals_two_backwards(name, z):
    function, along = FUNCTIONS[name], z.cos()
    found = torch.func.jvp(function, (z,), (along,))
    expected = torch.autograd.functional.jvp(function, (z,), (along,))
    torch.testing.assert_close(found, expected)


@every_function
def test_the_hessian_forward_over_reverse_equals_reverse_over_reverse(name, z):
    function = scalar(FUNCTIONS[name])
    expected = torch.autograd.functional.hessian(function, z)
    torch.testing.assert_close(torch.func.hessian(function)(z), expected)


def test_a_trace_with_symbolic_sizes_takes_other_batches(z):
    for name in ("entmax 1.5", "alpha_relu", "normmax", "budget"):
        traced = make_fx(FUNCTIONS[name], tracing_mode="symbolic")(z)
        batch = torch.cat([z, z.flip(0)])
        torch.testing.assert_close(traced(batch), FUNCTIONS[name](batch))
