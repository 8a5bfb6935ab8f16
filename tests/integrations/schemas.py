"""What GitHub and GitLab expect of their files, by the schemas that check-jsonschema carries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def problems(text: str, kind: str) -> list[str]:
    """What is wrong with a file of that kind: github-actions, github-workflows or gitlab-ci."""
    check = pytest.importorskip("check_jsonschema")
    jsonschema = pytest.importorskip("jsonschema")
    yaml = pytest.importorskip("yaml")
    file = Path(check.__file__).parent / "builtin_schemas" / "vendor" / f"{kind}.json"
    rules = json.loads(file.read_text("utf-8"))
    content = yaml.safe_load(text)
    # YAML 1.1 takes `on` for true; GitHub does not.
    content = {"on" if key is True else key: value for key, value in content.items()}
    validator = jsonschema.validators.validator_for(rules)(rules)
    return [error.message for error in validator.iter_errors(content)]
