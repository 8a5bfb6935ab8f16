from uncork.nn.entmax import Entmax
from uncork.nn.alpha_relu import AlphaReLU


def sparsemax(x):
    return Entmax.apply(x, 2.0)


def entmax(x, a):
    return Entmax.apply(x, a)


def alpha_relu(x, a, t):
    return AlphaReLU.apply(x, a, t)
