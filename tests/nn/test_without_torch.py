"""What an installation without PyTorch can and cannot do."""

import subprocess
import sys
import textwrap


def python_without_torch(program: str) -> str:
    blocked = "import sys; sys.modules['torch'] = None\n" + textwrap.dedent(program)
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", blocked], capture_output=True, text=True, check=True
    )
    return result.stdout


def test_the_numpy_twin_and_tau_from_shape_need_no_torch():
    out = python_without_torch(
        """
        from uncork.nn import reference, tau_from_shape
        print(reference.sparsemax([0.5, 0.0, -2.0]).tolist(), round(tau_from_shape(512, 10_000), 4))
        """
    )
    assert out.strip() == "[0.75, 0.25, 0.0] 0.3258"


def test_everything_else_says_what_to_install():
    out = python_without_torch(
        """
        import uncork.nn
        for use in (lambda: uncork.nn.EntmaxLoss, lambda: __import__("uncork.nn.functional")):
            try:
                use()
            except ImportError as error:
                print(error)
        """
    )
    assert out.count("pip install 'uncork[torch]'") == 2


def test_an_unknown_name_is_an_attribute_error():
    import pytest

    import uncork.nn

    with pytest.raises(AttributeError, match="EntmaxLos"):
        _ = uncork.nn.EntmaxLos
    assert "EntmaxLoss" in dir(uncork.nn)
