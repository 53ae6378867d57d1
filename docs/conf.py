# SPDX-License-Identifier: Apache-2.0
"""How `make docs` turns the Markdown files of this folder into HTML. They read well without it."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
numbers = re.findall(r"TENON_VERSION_\w+ (\d+)", (ROOT / "include/tenon/version.h").read_text())

project = "Tenon"
author = "the Tenon authors"
copyright = author
release = version = ".".join(numbers)

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"Tenon {release}"
