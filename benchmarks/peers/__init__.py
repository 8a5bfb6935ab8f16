"""The test suites of other packages, run on uncork: their files stay where they are.

Each module is a command, given from this repository's root in an environment that has uncork's
`test` extra. Their packages need not be installed: what the tests need of them is imported from the
checkout.
"""
