#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a program that is not in this tree meets: the symbols that libgx.so shows, the installed files by pkg-config, shared and
static, the same by CMake, and the headers as C++. Arguments: the build folder, the source folder, flags of the build (sanitizers)."""
import fnmatch
import os
import shutil
import subprocess
import sys
import tempfile

build, source, flags = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), sys.argv[3:]
LAB = ("gx_gather_", "gx_load_", "gx_pattern_")  # of libgxlab, which is not installed
CXX = """
#include <gx/coll.h>
#include <gx/engine.h>
#include <gx/gx.h>
#include <gx/nic.h>
// Names of functions inside of gx: a program may have its own.
extern "C" int list_push(void) { return 1; }
extern "C" int op_free(void) { return 2; }
extern "C" int gx_fail(void) { return 3; }
int main()
{
	gx_opts o = GX_INIT(o);
	gx_op op = {};
	if (list_push() + op_free() + gx_fail() != 6)
		return 1;
	return o.size != sizeof(o) || op.note_len || op.mem || gx_strerror(0)[0] != 'd';
}
"""

CMAKE = """
cmake_minimum_required(VERSION 3.13)
project(outside C)
find_package(gx 0.2 REQUIRED)
add_executable(outside SOURCE/docs/example.c)
target_link_libraries(outside PRIVATE gx::gx)
"""


def out(*args, **more):
    p = subprocess.run(args, capture_output=True, text=True, timeout=300, **more)
    if p.returncode:
        sys.exit(f"{' '.join(args)}\n{p.stdout}{p.stderr}exit status {p.returncode}")
    return p.stdout


def symbols(*how):
    """Names that a library shows, beside those of the sanitizers."""
    words = [line.split() for line in out("nm", "--defined-only", *how).splitlines()]
    return sorted(w[-1].split("@")[0] for w in words if len(w) == 3 and not w[-1].startswith("__odr_asan"))


def shared():
    names = symbols("-D", os.path.join(build, "libgx.so"))
    others = sorted(n for n in names if not n.startswith("gx_") or n.startswith(LAB))
    if others or "gx_open" not in names or "gx_strerror" not in names:
        sys.exit(f"libgx.so shows {len(names)} symbols; not gx's: {' '.join(others[:20])}")
    with open(os.path.join(source, "debian", "libgx1.symbols")) as f:
        known = {line.split("@")[0].strip() for line in f if line.startswith(" ")}
    if known != set(names):
        sys.exit(f"debian/libgx1.symbols, with the version that a call came in, does not have what libgx.so has: {' '.join(sorted(known ^ set(names)))}")
    print(f"libgx.so shows {len(names)} symbols, all gx_, and debian/libgx1.symbols has them")
    return names


def program(where, name, text_or_path, static):
    """Compile and link by what pkg-config says alone; then it has to start."""
    env = dict(os.environ, PKG_CONFIG_PATH=os.path.join(where, "pkgconfig"), PKG_CONFIG_LIBDIR="/usr/lib/x86_64-linux-gnu/pkgconfig")
    config = out("pkg-config", "--cflags", "--libs", *(["--static"] if static else []), "gx", env=env).split()
    if static:  # both lie there: this one
        config = ["-l:libgx.a" if word == "-lgx" else word for word in config]
    cc = ["c++", "-std=c++11", "-pedantic"] if name.endswith(".cpp") else ["cc", "-std=c11", "-pedantic"]
    exe = os.path.join(where, name + (".static" if static else ".shared"))
    out(*cc, "-Wall", "-Wextra", "-Werror", *flags, text_or_path, "-o", exe, *config, f"-Wl,--as-needed,-rpath,{where}", env=env)
    uses = [line.split()[0] for line in out("ldd", exe, env=env).splitlines()]
    if static == any(u.startswith("libgx.so") for u in uses):
        sys.exit(f"{name}: static is {static}, and it uses {uses}")
    return exe


def cmake(where, lib, prefix):
    """The program of the documentation by find_package(gx)."""
    if not shutil.which("cmake"):
        return print("no CMake here: find_package(gx) is not tried")
    folder = os.path.join(where, "outside")
    os.mkdir(folder)
    with open(os.path.join(folder, "CMakeLists.txt"), "w") as f:
        f.write(CMAKE.replace("SOURCE", source))
    flag = " ".join(flags)
    out("cmake", "-G", "Ninja", "-S", folder, "-B", folder + "/build", f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_C_FLAGS={flag}", "-DCMAKE_C_COMPILER=cc")
    out("cmake", "--build", folder + "/build")
    # meson sets this, and it would go before what CMake has written.
    uses = out("ldd", folder + "/build/outside", env={k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"})
    if f"libgx.so.1 => {lib}/" not in uses:
        sys.exit(f"by CMake: {uses}")
    return print("by CMake: docs/example.c links")


def stay_loaded():
    """A thread that looks up a name may outlive the context, so what has libgx inside stays when a program closes it."""
    for name in ("libgx.so", "bindings/nixl/libplugin_GX.so", "bindings/nccl/libnccl-net-gx.so"):
        path = os.path.join(build, name)
        if os.path.exists(path) and "NODELETE" not in out("readelf", "-d", path):
            sys.exit(f"{name}: dlclose() unloads it (it is not linked with -z nodelete)")


def missing(where):
    """Without any library, meson names all packages at once."""
    env = dict(os.environ, PKG_CONFIG_PATH="", PKG_CONFIG_LIBDIR=where)
    said = subprocess.run(["meson", "setup", os.path.join(where, "none"), source], env=env, capture_output=True, text=True, timeout=300).stdout
    line = [part for part in said.splitlines() if "apt install" in part]
    if len(line) != 1 or not all(f" {p}" in line[0] for p in ("liburing-dev", "libisal-dev", "libseccomp-dev")):
        sys.exit(f"what is missing is not said in one line: {line or said[-500:]}")
    print(f"without libraries: {line[0]}")


def packaged(where):
    """Each file that is installed is in a Debian package, and in one alone. Return: their number."""
    patterns = {}
    for name in sorted(os.listdir(os.path.join(source, "debian"))):
        if name.endswith(".install"):
            with open(os.path.join(source, "debian", name)) as f:
                patterns |= {line.split()[0]: name for line in f if line.strip()}
    files = [os.path.join(d, f) for d, _, fs in os.walk(where) for f in fs]
    prefix = os.path.commonpath([os.path.dirname(f) for f in files if "/bin/" in f])[:-len("/bin")]
    for path in files:
        short = "usr/" + os.path.relpath(path, prefix) if path.startswith(prefix + "/") else os.path.relpath(path, where)
        short = short.replace("usr/etc/", "etc/", 1)
        parts = short.split("/")
        found = {n for p, n in patterns.items() for i in range(len(parts)) if fnmatch.fnmatch("/".join(parts[:i + 1]), p)}
        if len(found) != 1:
            sys.exit(f"{short}, which meson installs, is in {len(found)} Debian packages: {sorted(found)}")
    return len(files)


def main():
    names = shared()
    stay_loaded()
    with tempfile.TemporaryDirectory() as tmp:
        env = dict(os.environ, DESTDIR=tmp)
        out("meson", "install", "-C", build, "--no-rebuild", "--only-changed", "--quiet", env=env)
        pcs = [os.path.join(d, f) for d, _, fs in os.walk(tmp) for f in fs if f == "gx.pc"]
        lib = os.path.dirname(os.path.dirname(pcs[0]))
        print(f"{packaged(tmp)} files are installed, each by one Debian package")
        lab = [f for _, dirs, fs in os.walk(tmp) for f in dirs + fs if "gxlab" in f]
        if lab:
            sys.exit(f"installed: {lab}, which measure and are no part of the library")
        with open(pcs[0]) as f:  # it names the place that it is meant for
            text = f.read().replace("prefix=/", f"prefix={tmp}/", 1)
        with open(pcs[0], "w") as f:
            f.write(text)
        others = sorted(set(symbols("-g", os.path.join(lib, "libgx.a"))) ^ set(names))
        if others:
            sys.exit(f"libgx.a does not show what libgx.so shows: {' '.join(others[:20])}")
        cpp = os.path.join(tmp, "all.cpp")
        with open(cpp, "w") as f:
            f.write(CXX)
        for static in False, True:
            program(lib, "example", os.path.join(source, "docs", "example.c"), static)
            out(program(lib, "all.cpp", cpp, static))
            print(f"by pkg-config{' --static' if static else ''}: docs/example.c and C++ link")
        missing(tmp)
        cmake(tmp, lib, os.path.dirname(os.path.dirname(lib) if "linux-gnu" in lib else lib))


main()
