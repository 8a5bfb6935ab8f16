"""Sparse outputs: the highest probability under sparsemax and α-entmax."""
