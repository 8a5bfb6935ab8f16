"""Comments a table on a pull request, or replaces the comment of an earlier run: `action.yml`.

    python github_comment.py MODEL TABLE.md

With what GitHub sets for a step (GITHUB_API_URL, GITHUB_REPOSITORY, GITHUB_EVENT_PATH), and TOKEN.
Needs nothing but Python. A token that may not comment (pull requests from forks) is a notice in the
log, not a failure: what was found is in the summary anyway.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

LONGEST = 65_000  # characters of a comment
_PAGES = 20


def main(model: str, table: str) -> None:
    mark = f"<!-- uncork check: {model.replace('--', '- -')} -->"
    text = Path(table).read_text(encoding="utf-8")
    if len(text) > LONGEST:
        text = text[:LONGEST] + "\n\n… (the rest is in the run's summary)\n"
    event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
    comments = f"repos/{os.environ['GITHUB_REPOSITORY']}/issues/{event['number']}/comments"
    body = {"body": f"{mark}\n{text}"}
    try:
        earlier = _earlier(comments, mark)
        if earlier is None:
            made = _ask("POST", comments, body)
        else:
            address = f"repos/{os.environ['GITHUB_REPOSITORY']}/issues/comments/{earlier}"
            made = _ask("PATCH", address, body)
    except urllib.error.HTTPError as error:
        if error.code not in (401, 403, 404):
            raise
        print(f"::notice::uncork could not comment ({error.code}): pull-requests: write is needed")
        return
    print(f"commented: {made['html_url']}")


def _earlier(comments: str, mark: str) -> int | None:
    """The comment of an earlier run about the same model."""
    for page in range(1, _PAGES + 1):
        listed = _ask("GET", f"{comments}?per_page=100&page={page}")
        for comment in listed:
            if str(comment["body"]).startswith(mark):
                return int(comment["id"])
        if len(listed) < 100:
            break
    return None


def _ask(method: str, address: str, body: Any = None) -> Any:
    request = urllib.request.Request(
        f"{os.environ['GITHUB_API_URL']}/{address}",
        data=None if body is None else json.dumps(body).encode(),
        method=method,
        headers={
            "Authorization": f"Bearer {os.environ['TOKEN']}",
            "Accept": "application/vnd.github+json",
            "Content-Type": "application/json",
            "User-Agent": "uncork",
        },
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


if __name__ == "__main__":
    main(*sys.argv[1:])
