# SPDX-License-Identifier: Apache-2.0
"""The sources as test_house.py and house_graph.py read them: by lines, not by a compiler."""
import re

FOLDERS = ("poll", "gpu", "dataplane")
SOURCE_DIRS = FOLDERS + ("bindings", "tools", "tests", "include", "docs")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def code_only(text):
    """Comments, and what is in quotes, blanked out; line numbers stay."""
    def blank(match):
        return "".join(c if c == "\n" else " " for c in match.group(0))
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text, flags=re.S)


def includes(text):
    """[(line, is_angle, name)]"""
    out = []
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            out.append((number, match.group(1) == "<", match.group(2)))
    return out


def functions(code):
    """[(name, first line, lines, body)] of code whose functions open and close in column 0."""
    out, lines, start = [], code.split("\n"), None
    for i, line in enumerate(lines):
        if line.startswith("{") and i and start is None:
            j = i - 1
            while j > 0 and (not lines[j].strip() or lines[j][0].isspace()):
                j -= 1
            head = " ".join(lines[j:i])
            if "(" in head and "=" not in head.split("(")[0]:
                names = re.findall(r"(\w+)\s*\(", re.sub(r"__attribute__\s*\(\(.*?\)\)", "", head))
                start = (names[-1] if names and names[0].isupper() else names[0] if names else "?", i)
        elif line.startswith("}") and start:
            out.append((start[0], start[1] + 1, i - start[1] - 1, "\n".join(lines[start[1]:i])))
            start = None
    return out


def read_tree(top):
    """{path: text} of the project's own text files."""
    files = {}
    for folder in SOURCE_DIRS + (".ci",):
        for path in sorted((top / folder).rglob("*")):
            if path.is_file() and (path.suffix in (".c", ".cc", ".h", ".cu", ".cuh", ".py", ".sh", ".pml") or path.name in ("meson.build", "run")):
                files[path.relative_to(top).as_posix()] = path.read_text(errors="replace")
    for name in ("run", "meson.build", "meson_options.txt", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE"):
        if (top / name).is_file():
            files[name] = (top / name).read_text()
    for path in sorted((top / "docs").rglob("*")):
        if path.is_file():
            files[path.relative_to(top).as_posix()] = path.read_text() if path.suffix in (".md", ".c", ".py") else ""
    return files
