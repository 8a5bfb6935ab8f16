"""spaCy pipelines and Thinc models."""
