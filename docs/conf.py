# SPDX-License-Identifier: Apache-2.0
"""How `make docs` turns the pages of this folder into a site. The Markdown pages read well without it."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
numbers = re.findall(r"TENON_VERSION_\w+ (\d+)", (ROOT / "include/tenon/version.h").read_text())

project = "Tenon"
author = "the Tenon authors"
copyright = author
release = version = ".".join(numbers)

sys.path.insert(0, str(Path(__file__).parent / "extensions"))
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "reference",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["extensions", "static"]
suppress_warnings = ["ref.python"]  # words of docstrings that several classes have as members
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
napoleon_google_docstring = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = c_maximum_signature_line_length = cpp_maximum_signature_line_length = (
    90
)
add_module_names = False
toc_object_entries_show_parents = "hide"
default_role = "py:obj"
# Prompts are not copied. If a block has prompts, only their lines are copied.
copybutton_prompt_text = r">>> |\.\.\. |\$ |In \[\d+\]: | +\.\.\.: "
copybutton_prompt_is_regexp = True
html_theme = "furo"
html_theme_options = {"top_of_page_buttons": []}
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_title = f"Tenon {release}"
