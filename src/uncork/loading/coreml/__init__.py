"""Core ML models: neural networks and ML Programs."""
