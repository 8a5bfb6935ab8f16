"""ncnn models."""
