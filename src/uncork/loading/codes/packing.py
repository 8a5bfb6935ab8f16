"""Small numbers packed into larger words, and the values of 4-bit floats."""

from __future__ import annotations

import numpy as np

E2M1 = np.array(  # 4-bit floats by their code: sign, two bits of exponent, one of mantissa
    [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32
)


def unpacked(words: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Codes of so many bits, packed densely from the lowest bit of each row: (rows, count)."""
    rows = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), -1)
    if bits == 8:
        return rows[:, :count]
    if bits in (2, 4):  # none lies across two bytes
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        codes = (rows[:, :, None] >> shifts) & np.uint8(2**bits - 1)
        return codes.reshape(len(rows), -1)[:, :count]
    single = np.unpackbits(rows, axis=1, count=bits * count, bitorder="little")
    weights = (1 << np.arange(bits)).astype(np.uint8)
    return single.reshape(len(rows), count, bits) @ weights


def powers_of_two(exponents: np.ndarray) -> np.ndarray:
    """Scales kept as exponents in a byte: 2^(byte − 127), and 255 is not a number (OCP's E8M0)."""
    values = np.ldexp(np.float32(1), exponents.view(np.uint8).astype(np.int32) - 127)
    return np.where(exponents.view(np.uint8) == 255, np.float32(np.nan), values)
