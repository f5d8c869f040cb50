#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The man pages. What drifts when it is written twice is not written here: commands, options and exit status come from the
programs' own tables (PROGRAM --complete, tools/common/opt_table.h), the list of calls from the headers, gx-wire(7) from
docs/wire.md. Beside this file PAGE.scd has the rest of a page: text above its first heading goes to the description, its sections
before SEE ALSO.

usage: man.py OUT SCDOC VERSION SOURCE GXD GXPERF     OUT: a folder that is made anew, with man1/ and so on
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap

SECTION = {"gxd": 8, "gxperf": 1}
SEE = {"gxd": "*gxperf*(1), *gx*(3)", "gxperf": "*gxd*(8), *gx*(3)"}


def plain(text):
    """Text in which scdoc sees no marks."""
    return re.sub(r"([\\*_~<>#`])", r"\\\1", text)


def rich(text):
    """A line of a help text: `words` and --options become bold."""
    made = "".join(f"*{plain(part)}*" if i % 2 else re.sub(r"(?<![\w-])(--[a-z][\w-]*)", r"*\1*", plain(part))
                   for i, part in enumerate(text.split("`")))
    return ("\\" if made[:1] in "[|-;.'" else "") + made


def words(arguments):
    """Of a synopsis: names that stand for something are underlined."""
    return re.sub(r"[A-Z][A-Z0-9:-]*[A-Z]|\b[A-Z]\b", r"_\g<0>_", plain(arguments))


class Command:
    """A program (name "") or a sub-command, as its table has it."""

    def __init__(self, arguments, text):
        self.arguments, self.more, self.headings, self.options = arguments, [], {}, []
        self.text, _, exits = text.partition("Exit status: ")
        if exits:  # it stands with the rest, not at the end
            self.more.append(f"Exit status: {exits}")

    def what(self, page):
        """For NAME: the first sentence."""
        first = re.split(r"(?<=[^.])\.(?: |$)", self.text)[0]
        first = re.sub(rf"^{page.replace('-', ' ')} (plan )?", "", first)
        return re.split(r"[:;,] | \(", first)[0] if len(first) > 60 else first


def table(program):
    """{name: Command}"""
    made = {}
    said = subprocess.run([program, "--complete"], stdout=subprocess.PIPE, text=True, check=True).stdout
    for kind, name, *fields in (line.split("\t") for line in said.splitlines()):
        if kind == "command":
            made[name] = Command(*fields)
        elif kind == "more":
            made[name].more.append(fields[0])
        elif kind == "heading":
            made[name].headings[int(fields[0])] = fields[1]
        else:
            made[name].options.append((int(fields[0]), *fields[1:]))
    return made


def options(command):
    """As the help text has them: by group, the negative ones last, and in it by the order of the tables."""
    made, last = [], None
    for group, name, key, value, text in sorted(command.options, key=lambda o: (o[0] < 0, o[0])):
        if group != last and group in command.headings:
            made.append(f"## {command.headings[group].rstrip(':')}")
        last = group
        names = [f"-{key}"] if key else []
        names += [f"--{name}"] if name else []
        made.append(", ".join(f"*{plain(n)}*" for n in names) + (f" _{plain(value)}_" if value else "") + f"\n\t{rich(text)}")
    return "\n\n".join(made)


def extra(here, page):
    """(text, sections) of PAGE.scd."""
    path = here / f"{page}.scd"
    if not path.exists():
        return "", ""
    text = path.read_text()
    at = re.search(r"^# ", text, re.M)
    return (text[:at.start()], text[at.start():]) if at else (text, "")


def command_page(here, program, name, commands):
    """The page of a program, or of its sub-command @name."""
    command, section = commands[name], SECTION[program]
    page = f"{program}-{name}" if name else program
    exit_status = [line for line in command.more + commands[""].more if line.startswith("Exit status: ")][0]
    more = [line for line in command.more if not line.startswith(("Exit status: ", "  "))]
    text, sections = extra(here, page)
    subs = [n for n in commands if n]
    lead = f"*{page.replace('-', ' ', 1)}*"
    synopsis = f"{lead} [_OPTION_...]"
    if name:
        synopsis += f" {words(command.arguments)}"
    else:
        synopsis = (synopsis + "++\n" if program == "gxd" else "") + "++\n".join(
            f"{lead} *{n}* [_OPTION_...] {words(commands[n].arguments)}".rstrip() for n in subs)
    parts = ["# NAME", f"{page} - {rich(command.what(page))}", "# SYNOPSIS", synopsis, "# DESCRIPTION",
             rich(command.text), *map(rich, more), text.strip()]
    if not name:
        parts += ["# COMMANDS", *(f"*{n}*\n\t{rich(commands[n].what(f'{program}-{n}'))}: *{program}-{n}*({section})" for n in subs)]
    if command.options:
        parts += ["# OPTIONS", options(command)]
    exits = exit_status.removeprefix("Exit status: ")
    parts += [sections.strip(), "# EXIT STATUS", rich(exits)]
    see = ([f"*{program}*({section})"] if name else [f"*{program}-{n}*({section})" for n in subs]) + [SEE[program]]
    return page, section, parts + ["# SEE ALSO", ", ".join(see)]


def calls(header):
    """Each call of a header as it is declared, with the first sentence of what stands there."""
    made, text = [], header.read_text()
    said = {}
    for match in re.finditer(r"(gx_\w+\(\)(?:, gx_\w+\(\))*) - (.*?)(?=\*/|\n \*\n|[.] gx_\w+\(\) - )", text, re.S):
        first = re.split(r"(?<=[^.\d])\. ?(?=[A-Z@\[]|$)", re.sub(r"\s*\n\s*\*\s?", " ", match.group(2)).strip())[0].rstrip(".")
        said.update(dict.fromkeys(re.findall(r"gx_\w+", match.group(1)), first))
    for match in re.finditer(r"^(?:const |struct |unsigned |enum )*\w+ \**(gx_\w+)\([^;{]*\);", re.sub(r"/\*.*?\*/", "", text, flags=re.S), re.M):
        made.append(f"*{plain(' '.join(match.group(0).split()))}*" + (f"\n\t{rich(said[match.group(1)])}" if match.group(1) in said else ""))
    return made


def api_page(here, source):
    """gx(3)."""
    text, sections = extra(here, "gx")
    parts = ["# NAME", "gx - move memory between processes and machines", "# SYNOPSIS",
             "*#include <gx/gx.h>*", "*cc* ... *$(pkg-config --cflags --libs gx)*", "# DESCRIPTION", text.strip()]
    for header in sorted((source / "include/gx").glob("*.h"), key=lambda h: (h.name != "gx.h", h.name)):
        found = calls(header)
        if found:
            parts += [f"# CALLS OF {plain(header.name).upper()}", *found]
    return "gx", 3, parts + [sections.strip(), "# SEE ALSO", "*gx-wire*(7), *gxd*(8), *gxperf*(1)"]


def inline(text):
    """Marks of Markdown within a line, as those of scdoc."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    made = []
    for i, part in enumerate(re.split(r"`([^`]*)`", text)):
        if i % 2:
            made.append(f"*{plain(part)}*" if part.strip() else part)
            continue
        for j, word in enumerate(re.split(r"\*\*(.+?)\*\*", part, flags=re.S)):
            if j % 2:
                made.append(f"*{plain(word)}*")
                continue
            made += [f"_{plain(w)}_" if k % 2 else plain(w) for k, w in enumerate(re.split(r"\*([^*\s][^*]*)\*", word))]
    return "".join(made)


def markdown(text):
    """A page of docs/, as parts of a man page; its title is left out."""
    parts = []
    for block in re.split(r"\n\s*\n", re.sub(r"^# .*\n", "", text).strip()):
        lines = block.splitlines()
        if lines[0].startswith("#"):
            level = "#" if lines[0].startswith("## ") else "##"
            parts.append(f"{level} {inline(lines[0].lstrip('# ')).upper() if level == '#' else inline(lines[0].lstrip('# '))}")
        elif lines[0].startswith("|"):
            head, *rows = [[inline(c.strip()) for c in re.split(r"(?<!\\)\|", line.strip()[1:-1])] for line in lines if not re.match(r"^\|[-|: ]+$", line)]
            for row in rows:  # columns of a terminal are too few for a table of sentences
                cells = [f"{h}: {c}" if h and i else c for i, (h, c) in enumerate(zip(head, row)) if c]
                parts.append(f"{head[0]} {cells[0]}\n\t" + "; ".join(cells[1:]) if len(cells) > 1 else cells[0])
        elif lines[0].startswith(("- ", "* ")):
            parts.append("\n".join(("- " + inline(item.replace("\n", " ")[2:])) for item in re.split(r"\n(?=[-*] )", re.sub(r"\n +", " ", block))))
        elif re.match(r"\d+\. ", lines[0]):
            parts.append("\n".join(". " + inline(re.sub(r"^\d+\. ", "", item)) for item in re.split(r"\n(?=\d+\. )", re.sub(r"\n +", " ", block))))
        elif lines[0].startswith("```"):
            parts.append("```\n" + "\n".join(lines[1:-1]) + "\n```")
        else:
            line = inline(" ".join(lines))
            parts.append(("\\" if line[:1] in "[|-;." else "") + line)
    return parts


def wire_page(source):
    """gx-wire(7)."""
    return "gx-wire", 7, ["# NAME", "gx-wire - what gx says on the wire", "# DESCRIPTION",
                          *markdown((source / "docs/wire.md").read_text()), "# SEE ALSO", "*gx*(3), *gxd*(8)"]


def tidy(troff):
    """What scdoc writes, without its empty paragraphs, and in lines of 80 bytes."""
    made, verbatim = [], False
    for line in troff.splitlines():
        line = re.sub(r"[^ -~\t]", lambda c: f"\\[u{ord(c.group()):04X}]", line.rstrip())
        verbatim = line == ".nf" or verbatim and line != ".fi"
        if made and made[-1] == ".P" and line.startswith((".P", ".SH", ".SS", ".RE")):
            made.pop()
        if line == ".P" and made[-1].startswith((".SH", ".SS", ".TH")):
            continue
        if line.startswith(".TH"):
            line = re.sub(r'^\.TH "[^"]*"', lambda m: m.group(0).upper(), line)
        if verbatim or line[:1] in ".'" or len(line) <= 80:
            made.append(line)
        else:  # a line that begins with a point is a macro
            parts = textwrap.wrap(line, 78, break_long_words=False, break_on_hyphens=False)
            made += [re.sub(r"^(?=[.'])", r"\\&", part) for part in parts]
        if line == ".RE":
            made.append(".P")
    while made[-1] == ".P":
        made.pop()
    return "\n".join(made) + "\n"


def main(out, scdoc, version, source, *programs):
    here, out, source = pathlib.Path(__file__).parent, pathlib.Path(out), pathlib.Path(source)
    pages = [api_page(here, source), wire_page(source)]
    for path in programs:
        commands = table(path)
        pages += [command_page(here, os.path.basename(path), name, commands) for name in commands]
    shutil.rmtree(out, ignore_errors=True)
    for page, section, parts in pages:
        text = f'{page}({section}) "" "gx {version}"\n\n' + "\n\n".join(p for p in parts if p) + "\n"
        made = subprocess.run([scdoc], input=text, capture_output=True, text=True, check=False)
        if made.returncode:
            sys.exit(f"{page}({section}): {made.stderr}{text}")
        folder = out / f"man{section}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{page}.{section}").write_text(tidy(made.stdout))


if __name__ == "__main__":
    main(*sys.argv[1:])
