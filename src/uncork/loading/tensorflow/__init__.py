"""TensorFlow's SavedModels and graphs, and those of TensorFlow.js."""
