"""Writes the Paddle models that tests read: `python make_paddle.py`, with paddlepaddle 3.3.1.

Each is saved twice, as an older program (.pdmodel) and as a newer one (.json), beside what the
library itself computes: the inputs of the last layer (x) and its logits (z). The package is far
too large for the tests to install.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent / "paddle"
OLD = sys.argv[1:] == ["older"]
OLDER = ("recogniser", "classifier", "tagger")  # 3.3.1 fails to write the fourth in that form
YML = """Global:
  model_name: tiny_rec
PostProcess:
  name: CTCLabelDecode
  character_dict:
  - '!'
  - a
  - ''''
  - "\\u3000"
  - '-'
  - 宀
  - '1'
"""


def networks() -> dict[str, tuple[Any, list[Any], np.ndarray]]:
    import paddle
    from paddle import nn
    from paddle.nn import functional as F
    from paddle.static import InputSpec

    rng = np.random.default_rng(0)

    class Network(nn.Layer):
        def forward(self, given: Any) -> Any:
            return self.after(self.last(self.features(given)))

        def after(self, logits: Any) -> Any:
            return F.softmax(logits, axis=-1)

    class Recogniser(Network):
        """Swish, a window over the whole height, one column after the other."""

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2D(1, 4, 3, padding=1), nn.BatchNorm2D(4)
            self.last = nn.Linear(4, 9)

        def features(self, given: Any) -> Any:
            seen = F.avg_pool2d(F.swish(self.norm(self.conv(given))), [8, 1])
            return seen.squeeze(2).transpose([0, 2, 1])

    class Classifier(Network):
        """Global pooling and ReLU6; the largest probabilities and their classes leave."""

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2D(1, 4, 3, stride=2), nn.BatchNorm2D(4)
            self.inner, self.last = nn.Linear(4, 5), nn.Linear(5, 7)
            self.pool, self.drop = nn.AdaptiveAvgPool2D(1), nn.Dropout(0.5)

        def features(self, given: Any) -> Any:
            seen = self.pool(F.hardswish(self.norm(self.conv(given)))).flatten(1)
            return self.drop(F.relu6(self.inner(seen) * 4))

    class Tagger(Network):
        """An LSTM in both directions; the class itself leaves."""

        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(11, 3)
            self.lstm, self.last = nn.LSTM(3, 2, direction="bidirect"), nn.Linear(4, 6)

        def features(self, given: Any) -> Any:
            return self.lstm(self.words(given))[0]

        def after(self, logits: Any) -> Any:
            # Version 3.3.1 fails to write an argmax in the older form.
            return super().after(logits) if OLD else paddle.argmax(logits, axis=-1)

    class Encoder(Network):
        """A norm, and a head tied to an embedding, with a temperature."""

        def __init__(self) -> None:
            super().__init__()
            normal = nn.initializer.Normal()
            self.inner = nn.Linear(3, 4)
            self.norm = nn.LayerNorm(4, weight_attr=normal, bias_attr=normal)
            self.words = nn.Embedding(8, 4)
            self.offset = self.create_parameter([8], default_initializer=normal)

        def features(self, given: Any) -> Any:
            return self.norm(F.gelu(self.inner(given)))

        def last(self, features: Any) -> Any:
            return paddle.matmul(features, self.words.weight, transpose_y=True) + self.offset

        def after(self, logits: Any) -> Any:
            return F.log_softmax(logits / 0.5, axis=-1)

    paddle.seed(1)
    images = rng.normal(size=(2, 1, 8, 6)).astype("f4")
    return {
        "recogniser": (Recogniser(), [InputSpec([None, 1, 8, None], "float32")], images),
        "classifier": (Classifier(), [InputSpec([None, 1, 8, 6], "float32")], images),
        "tagger": (Tagger(), [InputSpec([None, None], "int64")], rng.integers(0, 11, (2, 5))),
        "encoder": (Encoder(), [InputSpec([None, 3], "float32")],
                    rng.normal(size=(5, 3)).astype("f4")),
    }  # fmt: skip


def save_newer() -> None:
    import paddle

    for name, (network, spec, given) in networks().items():
        network.eval()
        folder = HERE / "newer" / name
        x = network.features(paddle.to_tensor(given))
        paddle.jit.save(network, str(folder / "inference"), input_spec=spec)
        np.savez(folder / "computed.npz", x=x.numpy(), z=network.last(x).numpy())


def save_older() -> None:
    import paddle
    from paddle import static

    paddle.enable_static()
    runner = static.Executor(paddle.CPUPlace())
    for name in OLDER:
        main, start = static.Program(), static.Program()
        with static.program_guard(main, start):
            network, spec, given = networks()[name]
            network.eval()
            data = static.data("x", spec[0].shape, spec[0].dtype)
            x = network.features(data)
            z = network.last(x)
            probabilities = network.after(z)
        folder = HERE / "older" / name
        runner.run(start)
        testing = main.clone(for_test=True)
        static.save_inference_model(str(folder / "inference"), [data], [probabilities], runner,
                                    program=testing)  # fmt: skip
        found = runner.run(testing, feed={"x": given}, fetch_list=[x, z])
        np.savez(folder / "computed.npz", x=found[0], z=found[1])
        _without_callstacks(folder / "inference.pdmodel")


def _without_callstacks(path: Path) -> None:
    """Where in which file of this machine an operator was made is nobody's business."""
    from paddle.base.proto import framework_pb2

    program = framework_pb2.ProgramDesc.FromString(path.read_bytes())
    for block in program.blocks:
        for operator in block.ops:
            kept = [one for one in operator.attrs if one.name != "op_callstack"]
            del operator.attrs[:]
            operator.attrs.extend(kept)
    path.write_bytes(program.SerializeToString())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        (save_older if sys.argv[1] == "older" else save_newer)()
        (HERE / sys.argv[1] / "recogniser" / "inference.yml").write_text(YML, encoding="utf-8")
    else:  # which kind is written is settled when the library is imported
        for kind in ("older", "newer"):
            flags = {"FLAGS_enable_pir_api": "0" if kind == "older" else "1"}
            subprocess.run([sys.executable, __file__, kind], check=True, env=os.environ | flags)
