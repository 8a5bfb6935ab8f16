"""check: named checks with conditions over one model, and what came of them."""

from uncork.check.baseline import Baseline, read_baseline
from uncork.check.checks import CHECKS
from uncork.check.conditions import Suite, read_suite
from uncork.check.protocol import Check, Concerned, Condition, Finding, Outcome, Result, Severity
from uncork.check.run import Checked, run_checks
from uncork.check.subject import Given, Subject

__all__ = [
    "CHECKS",
    "Baseline",
    "Check",
    "Checked",
    "Concerned",
    "Condition",
    "Finding",
    "Given",
    "Outcome",
    "Result",
    "Severity",
    "Subject",
    "Suite",
    "read_baseline",
    "read_suite",
    "run_checks",
]
