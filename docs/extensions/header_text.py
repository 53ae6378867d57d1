# SPDX-License-Identifier: Apache-2.0
"""Reads a header of include/tenon, and writes its reference as reStructuredText.

It reads the form in which the headers are written, not C or C++ in general. A comment documents the
declaration below it, or the one before it on its line. A comment of dashes and a title begins a section. Each
public declaration becomes a directive of Sphinx's C or C++ domain. Bodies, private members, namespaces
``detail`` and specializations are left out.
"""

import dataclasses
import re
import textwrap
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "include/tenon"
SECTION = re.compile(r"-{10,} (.+)")
SINCE = re.compile(r"^\\since (.+)$", re.M)
ACCESS = re.compile(r"(public|private|protected)\s*:(?!:)")
RECORD = re.compile(
    r"(typedef )?(requires.*?[ )])?(enum class|enum|class|struct|union)\b ?([\w:<>, ]*?)(?: final)?"
)
INITIALIZERS = re.compile(r"(?<=\))((?: noexcept)?) : [\w:]+[({<].*$")
OPEN_INITIALIZER = re.compile(r"\)[^?]*\s:\s[^?]*[\w>]$", re.S)
NO_PROSE = re.compile(r"NOLINT|namespace |clang-format|extern \"C\"")
PART = re.compile(r"(?P<example>(?: {4}.*\n|\n(?= {4}))+)|(?P<text>.+\n(?:(?! {4}| *- ).+\n)*)|\n")
NAME = re.compile(r"(?<![\w`])(tenon_\w+|TENON_\w+)(?:\(\))?(?![\w`]|\\?\*)")
PAGE = re.compile(r"docs/([\w/]+)\.md")
# Of the two spellings of a declaration, for C and for C++, the latter.
TWICE = re.compile(r"#ifdef __cplusplus\n((?:(?!#e).*\n)*)#else\n(?:(?!#e).*\n)*#endif\n")


@dataclasses.dataclass
class Declaration:
    kind: str  # of the directive: function, struct, ...; "text" has a comment alone, "namespace" its name
    code: str = ""
    comment: str = ""
    members: list["Declaration"] = dataclasses.field(default_factory=list)


def plain(comment):
    """The text of a comment, without its delimiters."""
    if comment.startswith("//"):
        lines = [re.sub(r"^\s*// ?", "", line) for line in comment.splitlines()]
    else:
        first, *others = comment[2:-2].splitlines() or [""]
        lines = [first.strip(), *(re.sub(r"^\s*\* ?", "", textwrap.dedent(line)) for line in others)]
        if others and not re.match(r"\s*\*", others[0]):  # without a column of stars
            lines = [first.strip(), *textwrap.dedent("\n".join(others)).splitlines()]
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def without_template(code):
    """(``template <...> ``, what follows it)."""
    if not code.startswith("template"):
        return "", code
    depth = 0
    for at, character in enumerate(code):
        depth += (character == "<") - (character == ">" and code[at - 1] != "-")
        if character == ">" and depth == 0:
            return code[: at + 1] + " ", code[at + 1 :].strip()
    raise ValueError(code)


class Reader:
    """Reads a header to declarations."""

    def __init__(self, text):
        self.text = TWICE.sub(r"\1", text)
        self.at = 0
        self.comment = ""  # the one above the next declaration
        self.last = None  # the declaration that a comment on its line is of
        self.macros = set()

    def find_end(self, opening, closing):
        """Past the bracket that closes the one at the current place."""
        depth = 0
        while True:
            character = self.text[self.at]
            if self.skip_literal():
                continue
            self.at += 1
            depth += (character == opening) - (character == closing)
            if depth == 0:
                return

    def skip_literal(self):
        found = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|(?<!\w)'(?:\\.|[^'\\])+'", re.S).match(
            self.text, self.at
        )
        if found:
            self.at = found.end()
        return found

    def until(self, stops):
        """The code up to one of the characters in stops outside of brackets, without comments."""
        code, depth = "", 0
        while self.at < len(self.text):
            character = self.text[self.at]
            if depth == 0 and character in stops:  # a slash: a comment ends it, too
                if character != "{" or not OPEN_INITIALIZER.search(code):
                    return code.strip(), character
                begin = self.at
                self.find_end("{", "}")
                code += self.text[begin : self.at]
                continue
            begin = self.at
            if literal := self.skip_literal():
                code += "" if literal[0].startswith("/") else literal[0]
                continue
            depth += (character in "([") - (character in ")]")
            self.at = begin + 1
            code += character
        return code.strip(), ""

    def take_comments(self, found):
        """Space and comments. One on the line of a declaration is added to that."""
        while match := re.compile(r"\s+|/\*.*?\*/|//[^\n]*(?:\n[ \t]*//[^\n]*)*", re.S).match(
            self.text, self.at
        ):
            words, before = match[0], self.text[self.text.rfind("\n", 0, self.at) + 1 : self.at]
            self.at = match.end()
            if words.isspace():
                if words.count("\n") > 1:
                    self.flush(found)
                continue
            if before.strip() and not before.rstrip().endswith("{"):  # on the line of code
                if words.startswith("//"):  # and below it in the same column
                    lines, column = words.split("\n"), len(before)
                    kept = 1
                    while kept < len(lines) and lines[kept].index("//") == column:
                        kept += 1
                    words = "\n".join(lines[:kept])
                    self.at = match.start() + len(words)
                if self.last and not NO_PROSE.match(plain(words)):
                    self.last.comment = "\n\n".join(filter(None, [self.last.comment, plain(words)]))
                continue
            self.flush(found)
            self.comment = "" if NO_PROSE.match(plain(words)) else plain(words)

    def flush(self, found):
        if self.comment and found is not None:
            found.append(Declaration("text", comment=self.comment))
        self.comment = ""

    def take_comment(self):
        comment, self.comment = self.comment, ""
        return comment

    def enumerators(self):
        found = []
        self.at += 1
        while True:
            self.take_comments(found)
            if self.text[self.at] == "}":
                self.at += 1
                return found
            code, stop = self.until(",}/")
            self.last = Declaration("enumerator", " ".join(code.split()), self.take_comment())
            found.append(self.last)
            self.at += stop == ","

    def scope(self, owner="", is_public=True):
        """The declarations up to the closing brace, or the end of the text."""
        found = []
        while True:
            shown = found if is_public else []
            self.take_comments(shown)
            if self.at == len(self.text) or self.text[self.at] == "}":
                self.flush(shown)
                self.at += 1
                return found
            if label := ACCESS.match(self.text, self.at):
                self.at, is_public = label.end(), label[1] == "public"
                continue
            made = self.directive() if self.text[self.at] == "#" else self.statement(owner)
            self.last = made[-1] if made else None
            shown += made

    def directive(self):
        line = re.compile(r"#(?:[^\n\\]|\\\n|\\.)*").match(self.text, self.at)
        self.at = line.end()
        text = re.split(r"/\*|//", line[0])[0]
        macro = re.match(r"#define (\w+(?:\([^)]*\))?)(?:\s+(.*))?", text, re.S)
        if not macro or macro[1] in self.macros or macro[2] is None or macro[1] == "TENON_API":
            return []
        self.macros.add(macro[1])
        return [Declaration("macro", macro[1], self.take_comment())]

    def statement(self, owner):
        code, stop = self.until(";{")
        code = re.sub(r"\b(TENON_API|TENON_PLUGIN_EXPORT|inline|__extension__) ", "", " ".join(code.split()))
        if stop != "{":
            self.at += 1
            return self.simple(code, owner)
        if code.startswith('extern "C"'):
            self.at += 1
            return self.scope()
        if name := re.match(r"namespace\s*([\w:]*)$", code):
            self.at += 1
            inner = self.scope()
            if name[1] in ("", "detail"):
                return []
            return inner if name[1].startswith("api") else [Declaration("namespace", name[1], members=inner)]
        comment = self.take_comment()
        template, rest = without_template(code)
        if record := RECORD.fullmatch(re.split(r"(?<!:) ?:(?!:)", rest)[0].strip()):
            return self.record(template, record, rest, comment)
        self.find_end("{", "}")
        self.comment = comment
        if end := re.compile(r"\s*;").match(self.text, self.at):
            self.at = end.end()
        return self.simple(INITIALIZERS.sub(r"\1", code), owner)

    def record(self, template, record, code, comment):
        is_typedef, requires, kind, name = record.groups()
        if kind.startswith("enum"):
            members = self.enumerators()
        else:
            self.at += 1
            members = self.scope("a record", is_public=kind != "class")
        declarator, _ = self.until(";")
        self.at += 1
        name = declarator if is_typedef else name
        if "<" in name or template == "template <> ":
            return []  # a specialization
        if not name and kind == "union":
            return members
        bases = re.search(r"(?<!:):(?!:).*", code) if kind in ("class", "struct") else None
        head = f"{template}{requires or ''}{name} {bases[0] if bases else ''}".strip()
        return [Declaration(kind.replace(" ", "-"), head, comment, members)]

    def simple(self, code, owner):
        """A declaration without members, or one whose body was skipped."""
        comment = self.take_comment()
        template, rest = without_template(code)
        if opaque := re.fullmatch(r"typedef (struct|union) (\w+) (\w+)", code):
            return [Declaration(opaque[1], opaque[3], comment)]
        if code.startswith("typedef "):
            return [Declaration("type", code.removeprefix("typedef "), comment)]
        if template and comment and (primary := re.match(r"(class|struct) (\w+)$", rest)):
            return [Declaration(primary[1], template + primary[2], comment)]
        if not code or re.match(r"(class|struct|union|enum|friend|static_assert)\b", rest):
            return []
        if rest.startswith("using "):
            return (
                [Declaration("type", template + rest.removeprefix("using "), comment)] if "=" in rest else []
            )
        if concept := re.match(r"concept (\w+)", rest):
            return [Declaration("concept", template + concept[1], comment)]
        before = re.split(r"(?<!\boperator)\(", re.sub(r"^requires ?\(.*?\) (?=\w)", "", rest))[0]
        is_operator = "operator" in before
        if (
            "(" in rest
            and (is_operator or not re.search(r"=|<$", before))
            and not re.match(r"[^(]*\(\*", rest)
        ):
            if "::" in before.split()[-1] and not is_operator:
                return []  # a member that is defined outside of its class
            return [Declaration("function", re.sub(r"^static (?=.*\btenon_plugin_)", "", code), comment)]
        first, *others = code.split(", ") if re.fullmatch(r"[\w ,]+", code) else [code]
        codes = [first, *(f"{first.rsplit(' ', 1)[0]} {name}" for name in others)]
        return [Declaration("member" if owner else "var", code, comment) for code in codes]


def read(name):
    """(the comment at the head of the header, its declarations)."""
    text = (FOLDER / name).read_text()
    found = Reader(text).scope()
    return found[0].comment.replace("SPDX-License-Identifier: Apache-2.0", "").strip(), found[1:]


# ------------------------------------------------------------------------ reStructuredText


def linked(words):
    """Prose with its special characters escaped and the names of the C ABI as links."""
    parts = words.split("`")
    for i in range(0, len(parts), 2):
        escaped = re.sub(r"([\\*|<>])", r"\\\1", parts[i])
        escaped = re.sub(r"(?<=\w)_(?!\w)", r"\\_", escaped)
        escaped = PAGE.sub(r"\\ :doc:`/\1`\\ ", escaped)
        parts[i] = NAME.sub(r"\\ :c:data:`\1`\\ ", escaped)
    for i in range(1, len(parts), 2):
        parts[i] = rf"\ ``{parts[i].strip()}``\ "
    return "".join(parts)


def prose(comment):
    """The lines of a comment as reStructuredText: paragraphs, items of lists and indented examples."""
    comment = SINCE.sub(r"\n\nSince ABI version \1.\n\n", comment)
    lines = []
    for part in PART.finditer(textwrap.dedent(comment) + "\n"):
        text = " ".join((part["text"] or "").split())
        if part["example"]:
            lines += ["", ".. code-block:: cpp", ""]
            lines += textwrap.indent(textwrap.dedent(part["example"]).strip("\n"), "   ").splitlines()
        elif text.startswith("- "):
            lines += ["", "- " + linked(text[2:])]
        elif text:
            lines += ["", linked(text)]
    return lines


class Writer:
    """Writes declarations as reStructuredText for one of the domains."""

    def __init__(self, domain):
        self.domain = domain
        self.lines = []

    def add(self, depth, *lines):
        self.lines += [("   " * depth + line).rstrip() for line in lines]

    def declarations(self, found, depth=0, namespace=""):
        for item in found:
            if item.kind == "text":
                self.text(item.comment, depth)
            elif item.kind == "namespace":
                inner = f"{namespace}::{item.code}".removeprefix("::")
                self.add(depth, "", f".. cpp:namespace:: {inner}", "")
                self.declarations(item.members, depth, inner)
                self.add(depth, "", f".. cpp:namespace:: {namespace or 'NULL'}", "")
            else:
                self.declaration(item, depth)

    def text(self, comment, depth):
        title, _, others = comment.partition("\n")
        if section := SECTION.fullmatch(title.strip()):
            if depth == 0:
                name = section[1][:1].upper() + section[1][1:]
                self.add(0, "", name, "-" * len(name))
            comment = others
        self.add(depth, *prose(comment))

    def declaration(self, item, depth):
        domain, kind, code = self.domain, item.kind, item.code
        if kind == "macro":
            domain = "c"
        elif domain == "c" and kind in ("enum-class", "class"):
            domain = "cpp"
        if kind == "enum" and not code:  # without a name: its constants stand alone
            self.add(depth, *prose(item.comment))
            self.declarations(item.members, depth)
            return
        self.add(depth, "", f".. {domain}:{kind}:: {code}")
        self.add(depth + 1, *prose(item.comment), "")
        self.declarations(item.members, depth + 1)
