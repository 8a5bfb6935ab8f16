"""The test suites of other packages, run on uncork: their files stay where they are."""
