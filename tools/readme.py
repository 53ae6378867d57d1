# SPDX-License-Identifier: Apache-2.0
"""Gives the metadata of the package its README, in which links work outside of the repository.

Links and pictures of README.md are relative to the repository. Its address is `Source` of `[project.urls]` in
pyproject.toml. Without it, the text of the links stays, and pictures are left out. scikit-build-core calls
`dynamic_metadata` at each build.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PICTURE = re.compile(r"!\[([^]]*)\]\((?!\w+:|#)([^)\s]+)\)\n*")
LINK = re.compile(r"(?<!!)\[([^][]+)\]\((?!\w+:|#)([^)\s]+)\)")


def absolute(text, source=None, tag="main"):
    """The text with links to the files of a tag of the repository `source`, or without such links."""
    if source is None:
        return LINK.sub(r"\1", PICTURE.sub("", text))
    text = PICTURE.sub(lambda found: found[0].replace(found[2], f"{source}/raw/{tag}/{found[2]}"), text)
    return LINK.sub(lambda found: f"[{found[1]}]({source}/blob/{tag}/{found[2]})", text)


def dynamic_metadata(settings, project):
    source = project.get("urls", {}).get("Source")
    text = absolute((ROOT / "README.md").read_text(encoding="utf-8"), source, f"v{project['version']}")
    return {"readme": {"content-type": "text/markdown", "text": text}}
