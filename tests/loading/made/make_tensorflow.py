"""Writes the TensorFlow models that tests read: `python make_tensorflow.py`, tensorflow 2.21.0.

SavedModels and frozen graphs, beside what the library itself computes: the inputs of the last
layer (x) and its logits (z). The package is far too large for the tests to install.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

HERE = Path(__file__).parent / "tensorflow"
RNG = np.random.default_rng(0)


def normal(*shape: int) -> tf.Variable:
    return tf.Variable(RNG.normal(size=shape).astype("f4"))


class Network(tf.Module):
    """`features` precede the head, `last` is the head, `after` follows it."""

    spec: tuple[Any, ...] = ()

    @tf.function
    def inner(self, given: Any) -> Any:
        return self.features(given)

    def __call__(self, given: Any) -> dict[str, Any]:
        return {"answer": self.after(self.last(self.inner(given)))}

    def after(self, logits: Any) -> Any:
        return tf.nn.softmax(logits)


class Dense(Network):
    """A hidden layer with ReLU6 and a head, each in a function of its own."""

    spec = (tf.TensorSpec([None, 3], tf.float32, "given"),)

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.kernel, self.bias = normal(3, 4), normal(4, 6), normal(6)

    def features(self, given: Any) -> Any:
        return tf.nn.relu6(given @ self.hidden)

    @tf.function
    def last(self, features: Any) -> Any:
        return tf.nn.bias_add(tf.matmul(features, self.kernel), self.bias)


class Images(Network):
    """A convolution, batch normalisation, a mean over positions, a 1×1 convolution as the head."""

    spec = (tf.TensorSpec([None, 6, 6, 2], tf.float32, "given"),)

    def __init__(self) -> None:
        super().__init__()
        self.filters, self.kernel, self.bias = normal(3, 3, 2, 4), normal(1, 1, 4, 5), normal(5)
        self.scale, self.offset, self.mean = normal(4), normal(4), normal(4)
        self.variance = tf.Variable(RNG.uniform(1, 2, 4).astype("f4"))

    def features(self, given: Any) -> Any:
        seen = tf.nn.conv2d(given, self.filters, 2, "SAME")
        seen, _, _ = tf.compat.v1.nn.fused_batch_norm(
            seen, self.scale, self.offset, self.mean, self.variance, is_training=False
        )
        return tf.reduce_mean(tf.nn.relu(seen), [1, 2], keepdims=True)

    def last(self, features: Any) -> Any:
        return tf.nn.conv2d(features, self.kernel, 1, "VALID") + self.bias

    def after(self, logits: Any) -> Any:
        return tf.nn.softmax(tf.squeeze(logits, [1, 2]))


class Words(Network):
    """Embedded words, tanh, a head tied to the embedding at every position; the class leaves."""

    spec = (tf.TensorSpec([None, None], tf.int32, "given"),)

    def __init__(self) -> None:
        super().__init__()
        self.words, self.inside, self.bias = normal(9, 4), normal(4, 4), normal(9)

    def features(self, given: Any) -> Any:
        return tf.tanh(tf.einsum("abc,cd->abd", tf.gather(self.words, given), self.inside))

    def last(self, features: Any) -> Any:
        return tf.einsum("abc,dc->abd", features, self.words) + self.bias

    def after(self, logits: Any) -> Any:
        return tf.argmax(logits, axis=-1)


def save(name: str, network: Network, given: np.ndarray) -> None:
    folder = HERE / name
    call = tf.function(network.__call__, input_signature=list(network.spec))
    tf.saved_model.save(network, str(folder), signatures=call)
    shutil.rmtree(folder / "debug", ignore_errors=True)  # paths of this machine
    shutil.rmtree(folder / "assets", ignore_errors=True)
    (folder / "fingerprint.pb").unlink(missing_ok=True)
    x = network.inner(tf.constant(given))
    np.savez(folder / "computed.npz", x=x.numpy(), z=network.last(x).numpy())


def freeze(name: str, network: Network, given: np.ndarray) -> None:
    from tensorflow.python.framework.convert_to_constants import (
        convert_variables_to_constants_v2,
    )

    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    call = tf.function(network.__call__).get_concrete_function(*network.spec)
    frozen = convert_variables_to_constants_v2(call)
    (folder / "frozen.pb").write_bytes(frozen.graph.as_graph_def().SerializeToString())
    x = network.inner(tf.constant(given))
    np.savez(folder / "computed.npz", x=x.numpy(), z=network.last(x).numpy())


def session(name: str) -> None:
    """As TensorFlow 1 saved models: variables in the main graph, a saver, two signatures."""
    v1 = tf.compat.v1
    with v1.Graph().as_default(), v1.Session() as run:
        given = v1.placeholder(tf.float32, [None, 3], "given")
        values = [RNG.normal(size=shape).astype("f4") for shape in ((3, 4), (4, 7), (7,))]
        inner, kernel, bias = (
            v1.get_variable(called, initializer=one, use_resource=called != "logits/bias")
            for called, one in zip(("inner", "logits/kernel", "logits/bias"), values, strict=True)
        )
        x = tf.nn.softplus(given @ inner)
        z = tf.nn.bias_add(x @ kernel, bias)
        run.run(v1.global_variables_initializer())
        folder = HERE / name
        builder = v1.saved_model.builder.SavedModelBuilder(str(folder))
        info = v1.saved_model.utils.build_tensor_info
        signatures = {
            called: v1.saved_model.signature_def_utils.build_signature_def(
                {"given": info(given)}, {"scores": info(output)}, "predict"
            )
            for called, output in (("serving_default", tf.nn.softmax(z)), ("inside", x))
        }
        builder.add_meta_graph_and_variables(run, ["serve"], signatures)
        builder.save()
        seen = RNG.normal(size=(4, 3)).astype("f4")
        found = run.run([x, z], {given: seen})
        np.savez(folder / "computed.npz", x=found[0], z=found[1])


if __name__ == "__main__":
    shutil.rmtree(HERE, ignore_errors=True)
    inputs = {
        "dense": (Dense, RNG.normal(size=(5, 3)).astype("f4") * 3),
        "images": (Images, RNG.normal(size=(3, 6, 6, 2)).astype("f4")),
        "words": (Words, RNG.integers(0, 9, (2, 4)).astype("i4")),
    }
    for name, (kind, given) in inputs.items():
        save(name, kind(), given)
        freeze(f"{name}-frozen", kind(), given)
    session("session")
