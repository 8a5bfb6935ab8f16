"""The trusted code: it checks proofs, and searches for none."""
