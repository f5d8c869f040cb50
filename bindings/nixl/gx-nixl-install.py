#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Link gx's backend into NIXL's wheels of the Python that runs this, so that NIXL finds it without any variable.

usage: gx-nixl-install [--remove] [PLUGIN]

PLUGIN: default: the one that was installed with this program, or with the package gx.
"""
import importlib.metadata
import importlib.util
import pathlib
import sys

PLUGIN = "@PLUGIN@"
LIBS = "gx_dataplane.libs"  # the wheel's; the loader looks for it from where the link is


def folders():
    """The folders of plugins of the wheels that are installed."""
    for name in ("nixl_cu13", "nixl_cu12"):
        spec = importlib.util.find_spec(name)
        if spec and spec.origin:
            folder = pathlib.Path(spec.origin).parent.parent / f".{name}.mesonpy.libs" / "plugins"
            if folder.is_dir():
                yield folder


def plugin_here():
    gx = importlib.util.find_spec("gx")
    wheel = pathlib.Path(gx.origin).parent.parent / ".gx_dataplane.mesonpy.libs" / "libplugin_GX.so" if gx and gx.origin else None
    return wheel if wheel and wheel.is_file() else PLUGIN


def link_set(link, to):
    """A link to @to; None: none."""
    if link.is_symlink():
        link.unlink()
        print(f"{link}: removed" if not to else f"{link} -> {to}")
    elif link.exists():
        sys.exit(f"gx-nixl-install: {link} is a file, not ours: left as it is")
    elif to:
        print(f"{link} -> {to}")
    if to:
        link.symlink_to(to)


def main(args):
    remove = "--remove" in args
    rest = [a for a in args if a != "--remove"]
    if len(rest) > 1 or any(a.startswith("-") for a in rest):
        sys.exit(__doc__)
    plugin = pathlib.Path(rest[0] if rest else plugin_here()).resolve()
    if not remove and not plugin.is_file():
        sys.exit(f"gx-nixl-install: no file {plugin}")
    found = list(folders())
    for folder in found:
        name = folder.parent.name.split(".")[1]
        version = importlib.metadata.version(name)
        if not remove and int(version.split(".")[0]) < 1:
            sys.exit(f"gx-nixl-install: {name} is {version}, and gx's backend is for NIXL 1.0 or newer: pip install -U {name}")
    if not found:
        sys.exit(f"gx-nixl-install: {sys.executable} has no wheel of NIXL (pip install nixl-cu13)")
    for folder in found:
        link_set(folder / "libplugin_GX.so", None if remove else plugin)
        libs = plugin.parent.parent / LIBS
        link_set(folder.parent / LIBS, libs if libs.is_dir() and not remove else None)


if __name__ == "__main__":
    main(sys.argv[1:])
