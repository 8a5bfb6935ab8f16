"""scikit-learn classifiers, live or as skops files."""
