"""The documentation site, built by Sphinx: `make docs`. Nothing in it comes from another host.

docs/contributing/site.md says why it is Sphinx, and what this file adds to it.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
from pathlib import Path
from typing import Any

PLAYGROUND = "playground.html"
_NAMES = r"[a-z_]\w*(?:, [a-z_]\w*)*"
ARGUMENT = re.compile(rf" {{4}}{_NAMES}:")  # name: what it is
COLUMN = re.compile(rf"({_NAMES}) {{2,}}(\S.*)")  # name   what it is

project = "uncork"
release = importlib.metadata.version("uncork")
html_title = "uncork"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["Thumbs.db", ".DS_Store"]
nitpicky = True
# Links to pages, headings and files are checked. Names of types in signatures are not: most of them
# belong to other libraries.
nitpick_ignore_regex = [("py:.*", ".*")]
highlight_language = "text"

myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4

# One script with its glyphs inside: no fonts to fetch, and it also runs on pages opened from disk.
mathjax_path = "mathjax/tex-svg.js"
mathjax3_config = {"options": {"enableMenu": False}, "svg": {"fontCache": "global"}}

copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_maximum_signature_line_length = 88

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#0b5c88",
        "color-brand-content": "#0b6a9e",
        "color-brand-visited": "#0b6a9e",
    },
    "dark_css_variables": {
        "color-brand-primary": "#6cc0ee",
        "color-brand-content": "#6cc0ee",
        "color-brand-visited": "#6cc0ee",
    },
}


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", _as_restructured_text, priority=100)
    app.connect("source-read", _link_to_playground)
    app.connect("build-finished", _write_what_is_not_a_page)


def _as_restructured_text(
    app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Docstrings are prose. They have `code` in backticks, indented blocks after a blank line, and
    arguments either under "Args:" (for napoleon, which runs next) or as a column of names."""
    converted: list[str] = []
    where = ""  # "code", "Args:" or "column"
    for line in lines:
        indented = line.startswith("    ")
        after_blank = not converted or not converted[-1].strip()
        column = COLUMN.match(line)
        if indented and after_blank and where != "code":
            converted += ["::", ""]
            where = "code"
        elif line == "Args:":
            where = "Args:"
        elif column:
            line = ":param {}: {}".format(*column.groups())
            where = "column"
        elif where == "Args:" and re.match(" {4}[^ ]", line) and not ARGUMENT.match(line):
            converted.append("")  # "Others as for …" closes the section
            line = line.strip()
            where = ""
        elif line.strip() and not indented:
            if where == "column":
                converted.append("")
            where = ""
        converted.append(line if where == "code" else _escaped(line))
    if what in ("attribute", "property"):
        # An empty comment, or napoleon takes what is before a colon for a type.
        converted[:0] = ["..", ""]
    lines[:] = converted


def _escaped(line: str) -> str:
    parts = re.split(r"((?::\w+:)?`+[^`]+`+)", line)
    return "".join(map(_escaped_part, parts))


def _escaped_part(part: str) -> str:
    if part.startswith(":"):  # a role
        return part
    if part.startswith("`"):
        return f"``{part.strip('`')}``"
    return re.sub(r"[*|\\]|(?<=\w)_(?!\w)", r"\\\g<0>", part)


def _link_to_playground(app: Any, page: str, source: list[str]) -> None:
    """The playground is not one of these pages but a file beside them."""
    source[0] = re.sub(
        rf"\[([^\[\]]+)\]\(((?:\.\./)*{re.escape(PLAYGROUND)})\)", r'<a href="\2">\1</a>', source[0]
    )


def _write_what_is_not_a_page(app: Any, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    from uncork.web.playground import standalone

    out = Path(app.outdir)
    (out / PLAYGROUND).write_text(standalone(), encoding="utf-8")
    found = importlib.metadata.files("sphinx-mathjax-offline") or []
    script = next(file.locate() for file in found if file.name == "tex-svg.js")
    target = out / "_static" / mathjax_path
    target.parent.mkdir(exist_ok=True)
    shutil.copyfile(str(script), target)
