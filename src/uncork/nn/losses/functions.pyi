# Written by `python -m uncork.nn.losses.stubs`.

from typing import Any, Literal, overload

from torch import Tensor

from uncork.nn.losses.specification import LinearLossResult

__all__ = [
    "alpha_relu_loss",
    "entmax_loss",
    "linear_alpha_relu_loss",
    "linear_cross_entropy",
    "linear_entmax_loss",
    "linear_normmax_loss",
    "linear_sparsemax_loss",
    "normmax_loss",
    "softmax_loss",
    "sparsemax_loss",
]

def softmax_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross entropy: the Fenchel-Young loss of softmax.

    For logits torch's own is the same, and faster.

    Args:
        input: logits (C), (N, C) or (N, C, d1, ...).
        target: class indices of shape (), (N) or (N, d1, ...); or probabilities shaped like
            `input`, whose loss is Σ_c target_c ℓ(z; c), as in cross_entropy (its least value is
            then the target's entropy, not 0; the gradient is p − target).
        weight, ignore_index, reduction, label_smoothing: exactly as in
            :func:`torch.nn.functional.cross_entropy`, with ℓ(z; c) in place of −log
            softmax(z)_c. Smoothing gives every class ε/C of the target.
    """

@overload
def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int | None = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    input_grad: bool = True,
    float32_accumulation: bool | None = None,
    z_loss: float = 0.0,
    token_weight: Tensor | None = None,
    return_lse: Literal[False] = False,
    return_predictions: Literal[False] = False,
    options: Any = None,
) -> Tensor:
    """`softmax_loss(linear(input, linear_weight, linear_bias), target)`, fused.

    Logits are made for some rows or some classes at a time, in a fraction of the memory.
    The loss is float32 or better.

    Args:
        input: hidden states (..., d).
        linear_weight: (C, d), the layer's weight.
        target: class indices, the shape of `input` without d; or probabilities of that shape
            and C, which take as much memory as the logits would.
        weight, ignore_index, reduction, label_smoothing: exactly as in
            :func:`torch.nn.functional.cross_entropy`, with ℓ(z; c) in place of −log
            softmax(z)_c. Smoothing gives every class ε/C of the target.
        linear_bias: (C), the layer's bias.
        softcap: logits become softcap · tanh(logits / softcap), as in Gemma 2.
        input_grad: False leaves the gradient of the hidden states out (a frozen body).
        float32_accumulation: for 16-bit tensors, how sums over several products are kept. None
            keeps the hidden states' gradient in float32, and the weight's, where it takes more
            than one product (cross entropy, entmax of flat logits, small problems), if that
            costs little memory. True keeps everything in float32, at the price of a further
            product; False nothing.
        z_loss: ζ of ζ·lse² added to every loss that counts, which keeps the normaliser near 1
            (PaLM has 1e-4). Class weights have no part in it: a mean divides it by the rows
            that count.
        token_weight: what each loss is multiplied by, of target's shape, as 0 for a prompt. A
            mean divides by the sum of these weights, those of the classes included; where all
            are 0, it is 0, and so are the gradients. Of an ignored target it counts nothing,
            whatever it is.
        return_lse, return_predictions: the result is a `LinearLossResult(loss, lse, predicted,
            accuracy)`, with None for what was not asked for. lse is logsumexp of the logits (of
            other losses Ω*(z)) and differentiable, 0 where ignored; gradients are then made in
            backward, with one product more. predicted is the most probable class, and accuracy
            the share of targets predicted, among those that are not ignored and whose
            token_weight is not 0.
        options: torch's LinearCrossEntropyOptions, taken so that calls of torch's function
            work, and not needed: blocks are chosen here. A linear_weight (C, d1, …, dK, d) is
            taken as there too.
    """

@overload
def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int | None = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    input_grad: bool = True,
    float32_accumulation: bool | None = None,
    z_loss: float = 0.0,
    token_weight: Tensor | None = None,
    return_lse: Literal[True],
    return_predictions: bool = False,
    options: Any = None,
) -> LinearLossResult: ...
@overload
def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int | None = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    input_grad: bool = True,
    float32_accumulation: bool | None = None,
    z_loss: float = 0.0,
    token_weight: Tensor | None = None,
    return_lse: bool = False,
    return_predictions: Literal[True],
    options: Any = None,
) -> LinearLossResult: ...
def sparsemax_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """ℓ(z; y) = (p − e_y)·z + ½ (1 − ‖p‖²) with p = sparsemax(z): gradient exactly p − e_y.

    α-entmax's loss at α = 2, the sparsest in common use (Martins and Astudillo 2016).

    Args:
        input: logits (C), (N, C) or (N, C, d1, ...).
        target: class indices of shape (), (N) or (N, d1, ...); or probabilities shaped like
            `input`, whose loss is Σ_c target_c ℓ(z; c), as in cross_entropy (its least value is
            then the target's entropy, not 0; the gradient is p − target).
        weight, ignore_index, reduction, label_smoothing: exactly as in
            :func:`torch.nn.functional.cross_entropy`, with ℓ(z; c) in place of −log
            softmax(z)_c. Smoothing gives every class ε/C of the target.
    """

@overload
def linear_sparsemax_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int | None = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    input_grad: bool = True,
    float32_accumulation: bool | None = None,
    z_loss: float = 0.0,
    token_weight: Tensor | None = None,
    return_lse: Literal[False] = False,
    return_predictions: Literal[False] = False,
) -> Tensor:
    """`sparsemax_loss(linear(input, linear_weight, linear_bias), target)`, fused.

    Logits are made for some rows or some classes at a time, in a fraction of the memory.
    The loss is float32 or better.

    Args:
        input: hidden states (..., d).
        linear_weight: (C, d), the layer's weight.
        target: class indices, the shape of `input` without d; or probabilities of that shape
            and C, which take as much memory as the logits would.
        weight, ignore_index, reduction, label_smoothing: exactly as in
            :func:`torch.nn.functional.cross_entropy`, with ℓ(z; c) in place of −log
            softmax(z)_c. Smoothing gives every class ε/C of the target.
        linear_bias: (C), the layer's bias.
        softcap: logits become softcap · tanh(logits / softcap), as in Gemma 2.
        input_grad: False leaves the gradient of the hidden states out (a frozen body).
        float32_accumulation: for 16-bit tensors, how sums over several products are kept. None
            keeps the hidden states' gradient in float32, and the weight's, where it takes more
            than one product (cross entropy, entmax of flat logits, small problems), if that
            costs little memory. True keeps everything in float32, at the price of a further
            product; False nothing.
        z_loss: ζ of ζ·lse² added to every loss that counts, which keeps the normaliser near 1
            (PaLM has 1e-4). Class weights have no part in it: a mean divides it by the rows
            that count.
        token_weight: what each loss is multiplied by, of target's shape, as 0 for a prompt. A
            mean divides by the sum of these weights, those of the classes included; where all
            are 0, it is 0, and so are the gradients. Of an ignored target it counts nothing,
            whatever it is.
        return_lse, return_predictions: the result is a `LinearLossResult(loss, lse, predicted,
            accuracy)`, with None for what was not asked for. lse is logsumexp of the logits (of
            other losses Ω*(z)) and differentiable, 0 where ignored; gradients are then made in
            backward, with one product more. predicted is the most probable class, and accuracy
            the share of targets predicted, among those that are not ignored and whose
            token_weight is not 0.
    """

@overload
def linear_sparsemax_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int | None = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    input_grad: bool = True,
    float32_accumulation: bool | None = None,
    z_loss: float = 0.0,
    token_weight: Tensor | None = None,
    return_lse: Literal[True],
    return_predictions: bool = False,
) -> LinearLossResult: ...
@overload
def linear_sparsemax_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int | None = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    input_grad: bool = True,
    float32_accumulation: bool | None = None,
    z_loss: float = 0.0,
    token_weight: Tensor | None = None,
    return_lse: bool = False,
    return_predictions: Literal[True],
) -> LinearLossResult: ...
def entmax_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    alpha: float | Tensor = 1.5,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """ℓ(z; y) = (p − e_y)·z + H_α(p) with p = entmax(z): gradient exactly p − e_y.

    The loss to train a model whose output is α-entmax. It is convex, at least 0, and 0 exactly
    where p puts everything on the target, at finite logits (Peters et al. 2019).

    Args:
        input: logits (C), (N, C) or (N, C, d1, ...).
        target: class indices of shape (), (N) or (N, d1, ...); or probabilities shaped like
            `input`, whose loss is Σ_c target_c ℓ(z; c), as in cross_entropy (its least value is
            then the target's entropy, not 0; the gradient is p − target).
        alpha: > 0; 1 is softmax, 2 sparsemax.
        weight, ignore_index, reduction, label_smoothing: exactly as in
            :func:`torch.nn.functional.cross_entropy`, with ℓ(z; c) in place of −log
            softmax(z)_c. Smoothing gives every class ε/C of the target.
    """

@overload
def linear_entmax_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    alpha: float = 1.5,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int | None = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    input_grad: bool = True,
    float32_accumulation: bool | None = None,
    z_loss: float = 0.0,
    token_weight: Tensor | None = None,
    return_lse: Literal[False] = False,
    return_predictions: Literal[False] = False,
) -> Tensor:
    """`entmax_loss(linear(input, linear_weight, linear_bias), target)`, fused.

    Logits are made for some rows or some classes at a time, in a fraction of the memory.
    The loss is float32 or better.

    Args:
        input: hidden states (..., d).
        linear_weight: (C, d), the layer's weight.
        target: class indices, the shape of `input` without d; or probabilities of that shape
            and C, which take as much memory as the logits would.
        alpha: ≥ 1; 1 is softmax, 2 sparsemax.
        weight, ignore_index, reduction, label_smoothing: exactly as in
            :func:`torch.nn.functional.cross_entropy`, with ℓ(z; c) in place of −log
            softmax(z)_c. Smoothing gives every class ε/C of the target.
        linear_bias: (C), the layer's bias.
        softcap: logits become softcap · tanh(logits / softcap), as in Gemma 2.
        input_grad: False leaves the gradient of the hidden states out (a frozen body).
        float32_accumulation: for 16-bit tensors, how sums over several products are kept. None
            keeps the hidden states' gradient in float32, and the weight's, where it takes more
            than one product (cross entropy, entmax of flat logits, small problems), if that
            costs little memory. True keeps everything in float32, at the price of a further
            product; False nothing.
        z_loss: ζ of ζ·lse² added to every loss that counts, which keeps the normaliser near 1
            (PaLM has 1e-4). Class weights have no part in it: a mean divides it by the rows
            that count.
        token_weight: what each loss is multiplied by, of target's shape, as 0 for a prompt. A
            mean divides by the sum of these weights, those of the classes included; where all
            are 0, it is 0, and so are the gradients. Of an ignored target it counts nothing,
            whatever it is.
        return_lse, return_predictions: the result is a `LinearLossResult(loss, lse, predicted,
            accuracy)`, with None for what was not asked for. lse is logsumexp of the logits (of
            other losses Ω*(z)) and differentiable, 0 where ignored; gradients are then made in
            backward, with one product more. predicted is the most probable class, and accuracy
            the share of targets predicted, among those that are not ignored and whose
            token_weight is not 0.
    """

@overload
def linear_entmax_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    alpha: float = 1.5,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int | None = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    input_grad: bool = True,
    float32_accumulation: bool | None = None,
    z_loss: float = 0.0,
    token_weight: Tensor | None = None,
    return_lse: Literal[True],
    return_predictions: bool = False,
) -> LinearLossResult: ...
@overload
def linear_entmax_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    alpha: float = 1.5,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int | None = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    input_grad: bool = True,
    float32_accumulation: bool | None = None,
    z_loss: float = 0.0,
    token_weight: Tensor | None = None,
    return_lse: bool = False,
    return_predictions: Literal[True],
) -> LinearLossResult: ...
def alpha_relu_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    alpha: float | Tensor = 1.5,
    tau: float | Tensor = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """ℓ(z; y) = (1/α) Σp^α − z_y + (τ + 1/α)/(α−1) with p = alpha_relu(z): gradient p − e_y.

    α-entmax's loss without the search for τ. Set `tau` once with
    :func:`uncork.nn.tau_from_data` or :func:`uncork.nn.tau_from_shape`. A tensor receives the
    gradient (1 − Σp)/(α−1): at its root the outputs are normalised on average.

    Args:
        input: logits (C), (N, C) or (N, C, d1, ...).
        target: class indices of shape (), (N) or (N, d1, ...); or probabilities shaped like
            `input`, whose loss is Σ_c target_c ℓ(z; c), as in cross_entropy (its least value is
            then the target's entropy, not 0; the gradient is p − target).
        alpha: > 1; p = [(α−1) z − τ]₊^{1/(α−1)}.
        tau: the threshold.
        weight, ignore_index, reduction, label_smoothing: exactly as in
            :func:`torch.nn.functional.cross_entropy`, with ℓ(z; c) in place of −log
            softmax(z)_c. Smoothing gives every class ε/C of the target.
    """

@overload
def linear_alpha_relu_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    alpha: float = 1.5,
    tau: float | Tensor = 0.0,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int | None = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    input_grad: bool = True,
    float32_accumulation: bool | None = None,
    z_loss: float = 0.0,
    token_weight: Tensor | None = None,
    return_lse: Literal[False] = False,
    return_predictions: Literal[False] = False,
) -> Tensor:
    """`alpha_relu_loss(linear(input, linear_weight, linear_bias), target)`, fused.

    Logits are made for some rows or some classes at a time, in a fraction of the memory.
    The loss is float32 or better.

    Args:
        input: hidden states (..., d).
        linear_weight: (C, d), the layer's weight.
        target: class indices, the shape of `input` without d; or probabilities of that shape
            and C, which take as much memory as the logits would.
        alpha: > 1; p = [(α−1) z − τ]₊^{1/(α−1)}.
        tau: the threshold.
        weight, ignore_index, reduction, label_smoothing: exactly as in
            :func:`torch.nn.functional.cross_entropy`, with ℓ(z; c) in place of −log
            softmax(z)_c. Smoothing gives every class ε/C of the target.
        linear_bias: (C), the layer's bias.
        softcap: logits become softcap · tanh(logits / softcap), as in Gemma 2.
        input_grad: False leaves the gradient of the hidden states out (a frozen body).
        float32_accumulation: for 16-bit tensors, how sums over several products are kept. None
            keeps the hidden states' gradient in float32, and the weight's, where it takes more
            than one product (cross entropy, entmax of flat logits, small problems), if that
            costs little memory. True keeps everything in float32, at the price of a further
            product; False nothing.
        z_loss: ζ of ζ·lse² added to every loss that counts, which keeps the normaliser near 1
            (PaLM has 1e-4). Class weights have no part in it: a mean divides it by the rows
            that count.
        token_weight: what each loss is multiplied by, of target's shape, as 0 for a prompt. A
            mean divides by the sum of these weights, those of the classes included; where all
            are 0, it is 0, and so are the gradients. Of an ignored target it counts nothing,
            whatever it is.
        return_lse, return_predictions: the result is a `LinearLossResult(loss, lse, predicted,
            accuracy)`, with None for what was not asked for. lse is logsumexp of the logits (of
            other losses Ω*(z)) and differentiable, 0 where ignored; gradients are then made in
            backward, with one product more. predicted is the most probable class, and accuracy
            the share of targets predicted, among those that are not ignored and whose
            token_weight is not 0.
    """

@overload
def linear_alpha_relu_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    alpha: float = 1.5,
    tau: float | Tensor = 0.0,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int | None = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    input_grad: bool = True,
    float32_accumulation: bool | None = None,
    z_loss: float = 0.0,
    token_weight: Tensor | None = None,
    return_lse: Literal[True],
    return_predictions: bool = False,
) -> LinearLossResult: ...
@overload
def linear_alpha_relu_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    alpha: float = 1.5,
    tau: float | Tensor = 0.0,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int | None = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    input_grad: bool = True,
    float32_accumulation: bool | None = None,
    z_loss: float = 0.0,
    token_weight: Tensor | None = None,
    return_lse: bool = False,
    return_predictions: Literal[True],
) -> LinearLossResult: ...
def normmax_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    alpha: float = 2.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """ℓ(z; y) = (p − e_y)·z + 1 − ‖p‖_α with p = normmax(z): gradient exactly p − e_y.

    For outputs that spread their mass evenly over a set of classes.

    Args:
        input: logits (C), (N, C) or (N, C, d1, ...).
        target: class indices of shape (), (N) or (N, d1, ...); or probabilities shaped like
            `input`, whose loss is Σ_c target_c ℓ(z; c), as in cross_entropy (its least value is
            then the target's entropy, not 0; the gradient is p − target).
        alpha: > 1; the norm's exponent.
        weight, ignore_index, reduction, label_smoothing: exactly as in
            :func:`torch.nn.functional.cross_entropy`, with ℓ(z; c) in place of −log
            softmax(z)_c. Smoothing gives every class ε/C of the target.
    """

@overload
def linear_normmax_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    alpha: float = 2.0,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int | None = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    input_grad: bool = True,
    float32_accumulation: bool | None = None,
    z_loss: float = 0.0,
    token_weight: Tensor | None = None,
    return_lse: Literal[False] = False,
    return_predictions: Literal[False] = False,
) -> Tensor:
    """`normmax_loss(linear(input, linear_weight, linear_bias), target)`, fused.

    Logits are made for some rows or some classes at a time, in a fraction of the memory.
    The loss is float32 or better.

    Args:
        input: hidden states (..., d).
        linear_weight: (C, d), the layer's weight.
        target: class indices, the shape of `input` without d; or probabilities of that shape
            and C, which take as much memory as the logits would.
        alpha: > 1; the norm's exponent.
        weight, ignore_index, reduction, label_smoothing: exactly as in
            :func:`torch.nn.functional.cross_entropy`, with ℓ(z; c) in place of −log
            softmax(z)_c. Smoothing gives every class ε/C of the target.
        linear_bias: (C), the layer's bias.
        softcap: logits become softcap · tanh(logits / softcap), as in Gemma 2.
        input_grad: False leaves the gradient of the hidden states out (a frozen body).
        float32_accumulation: for 16-bit tensors, how sums over several products are kept. None
            keeps the hidden states' gradient in float32, and the weight's, where it takes more
            than one product (cross entropy, entmax of flat logits, small problems), if that
            costs little memory. True keeps everything in float32, at the price of a further
            product; False nothing.
        z_loss: ζ of ζ·lse² added to every loss that counts, which keeps the normaliser near 1
            (PaLM has 1e-4). Class weights have no part in it: a mean divides it by the rows
            that count.
        token_weight: what each loss is multiplied by, of target's shape, as 0 for a prompt. A
            mean divides by the sum of these weights, those of the classes included; where all
            are 0, it is 0, and so are the gradients. Of an ignored target it counts nothing,
            whatever it is.
        return_lse, return_predictions: the result is a `LinearLossResult(loss, lse, predicted,
            accuracy)`, with None for what was not asked for. lse is logsumexp of the logits (of
            other losses Ω*(z)) and differentiable, 0 where ignored; gradients are then made in
            backward, with one product more. predicted is the most probable class, and accuracy
            the share of targets predicted, among those that are not ignored and whose
            token_weight is not 0.
    """

@overload
def linear_normmax_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    alpha: float = 2.0,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int | None = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    input_grad: bool = True,
    float32_accumulation: bool | None = None,
    z_loss: float = 0.0,
    token_weight: Tensor | None = None,
    return_lse: Literal[True],
    return_predictions: bool = False,
) -> LinearLossResult: ...
@overload
def linear_normmax_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    alpha: float = 2.0,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int | None = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    input_grad: bool = True,
    float32_accumulation: bool | None = None,
    z_loss: float = 0.0,
    token_weight: Tensor | None = None,
    return_lse: bool = False,
    return_predictions: Literal[True],
) -> LinearLossResult: ...
