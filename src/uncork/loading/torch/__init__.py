"""PyTorch checkpoints, read without torch and without running their pickle."""
