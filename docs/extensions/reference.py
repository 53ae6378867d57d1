# SPDX-License-Identifier: Apache-2.0
"""The reference of C and C++, corrections of that of Python, and the check that each name is on a page.

The directive ``tenon-header`` shows a header. After all pages have been read, each public name that is on no
page is a warning, and warnings fail the build. The names come from sources that the pages are not made of:
``__all__`` of the package, tests/abi/frozen.txt for C, and a search for classes in the headers of C++.
"""

import itertools
import re
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.statemachine import StringList
from header_text import FOLDER, Writer, prose, read
from sphinx import addnodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import nested_parse_with_titles

import tenon

ROOT = Path(__file__).parents[2]
logger = logging.getLogger(__name__)
BREAKS = r"(?<=[_.(,/=:])(?=[^_.(,/=:)\s])|(?<=[a-z])(?=[A-Z])"  # where a name in a table may be broken


class Header(SphinxDirective):
    required_arguments = 1
    option_spec: ClassVar = {"without": str.strip}  # a macro that another header defines, too

    def run(self):
        name = self.arguments[0]
        self.env.note_dependency(str(FOLDER / name))
        self.env.note_dependency(__file__)
        self.env.note_dependency(str(Path(__file__).with_name("header_text.py")))
        head, found = read(name)
        writer = Writer("c" if name.endswith(".h") else "cpp")
        head = re.sub(r"^\w+\.\w+ - ", "", head)
        writer.add(0, *prose(head[:1].upper() + head[1:]))
        writer.declarations(item for item in found if item.code != self.options.get("without"))
        node = nodes.section()
        node.document = self.state.document
        nested_parse_with_titles(self.state, StringList(writer.lines, source=f"include/tenon/{name}"), node)
        return node.children


def names_of_python():
    return {f"tenon.{name}" for name in tenon.__all__} | {f"tenon.io.{name}" for name in tenon.io.__all__}


def names_of_c():
    kinds = r"^(?:macro|enumerator|function|size) (\w+)(?: -?\d+)?$"
    return set(re.findall(kinds, (ROOT / "tests/abi/frozen.txt").read_text(), re.M))


def names_of_cpp():
    """Classes at the level of a namespace: they begin a line. What is in ``detail`` is not public."""
    found = set()
    for header in (ROOT / "include/tenon").glob("*.hpp"):
        public = re.sub(
            r"^namespace detail \{$.*?^\}  // namespace detail$", "", header.read_text(), flags=re.M | re.S
        )
        found |= set(re.findall(r"^(?:class|struct|enum class) (\w+)\b(?!<)[^;<>]*\{", public, re.M))
    return found


def check(app, env):
    on_pages = {
        "Python": {name for name, *_ in env.domains["py"].get_objects()},
        "C": {name for name, *_ in env.domains["c"].get_objects()},
        "C++": {name.split("::")[-1] for name, *_ in env.domains["cpp"].get_objects()},
    }
    wanted = {"Python": names_of_python(), "C": names_of_c(), "C++": names_of_cpp()}
    for language, names in wanted.items():
        if not names:
            logger.warning("no public name of %s was found: see docs/extensions/reference.py", language)
        for name in sorted(names - on_pages[language]):
            logger.warning("%s of %s is on no page of docs/reference", name, language)


def skip_what_numpy_alone_has(app, what, name, member, skip, options):
    """NDArray has names of ndarray whose use raises an error that names the way."""
    return True if member.__doc__ == "Not an attribute of NDArrays." else None


def without_self(app, what, name, member, options, signature, result):
    """The extension's signatures name it."""
    return re.sub(r"^\(self(?:, )?", "(", signature or "") or None, result


plain_docstrings = {}


def keep_plain(app, what, name, member, options, lines):
    """Napoleon would take what stands before a colon in the docstring of a property for a type."""
    if what in ("attribute", "data", "property") and not any(line.startswith("---") for line in lines):
        plain_docstrings[name], lines[:] = lines[:], []


def restore_plain(app, what, name, member, options, lines):
    lines += plain_docstrings.pop(name, [])


def correct(app, doctree):
    for node in list(doctree.findall(addnodes.pending_xref)):
        if node["reftarget"] == "bool":  # in annotations: Python's, and not tn.bool
            node.replace_self(nodes.Text("bool"))
    for node in doctree.findall(nodes.literal_block):  # a doctest of a page ends with an empty line
        if node.rawsource == node.astext():
            node.rawsource = node.astext().rstrip()
            node[:] = [nodes.Text(node.rawsource)]
    for entry in doctree.findall(nodes.entry):
        for node in list(entry.findall(nodes.literal)):
            parts = re.split(BREAKS, node.astext())
            node[:] = [nodes.Text(parts[0])]
            for before, part in itertools.pairwise(parts):
                kind = ' class="inner"' if before[-1].isalpha() else ""  # site.css ignores it on wide screens
                node += [nodes.raw("", f"<wbr{kind}>", format="html"), nodes.Text(part)]


def setup(app):
    app.connect("autodoc-skip-member", skip_what_numpy_alone_has)
    app.connect("autodoc-process-signature", without_self)
    app.connect("autodoc-process-docstring", keep_plain, priority=400)  # before Napoleon
    app.connect("autodoc-process-docstring", restore_plain, priority=600)
    app.connect("doctree-read", correct)
    app.add_directive("tenon-header", Header)
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
