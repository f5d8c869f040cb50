#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bill of materials of a build, as JSON of SPDX 2.3: gx, the files that it installs with their checksums, the libraries that
these load, what is linked into them, and what built them. meson says what was built, dpkg what the rest is.

usage: sbom.py BUILD_DIR [FILE]     FILE: default is stdout
The same build gives the same bytes where SOURCE_DATE_EPOCH is set.
"""
import datetime
import functools
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

# Dependencies of meson that are no libraries that are loaded: code of theirs is in our files, or they are for tests.
HOW = {"libdpdk": "STATIC_LINK", "cmocka": "TEST_DEPENDENCY_OF"}
TOOLS = ("gcc", "meson", "ninja-build")
NIXL = {"name": "nixl-headers", "SPDXID": "SPDXRef-Package-nixl-headers", "versionInfo": "8770b655", "licenseDeclared": "Apache-2.0",
        "licenseConcluded": "Apache-2.0", "copyrightText": "Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES", "filesAnalyzed": False,
        "downloadLocation": "git+https://github.com/ai-dynamo/nixl@8770b655", "supplier": "Organization: NVIDIA"}


def out(*args):
    ran = subprocess.run([str(a) for a in args], capture_output=True, text=True, check=False)
    return ran.stdout if ran.returncode == 0 else ""


def introspect(build, what):
    return json.loads(out("meson", "introspect", build, f"--{what}") or "null")


@functools.cache
def dpkg_of(path):
    """The package that a file is of; dpkg knows some by the name before /usr was merged."""
    for name in (path, os.path.realpath(path), re.sub(r"^/usr", "", os.path.realpath(path))):
        said = out("dpkg-query", "-S", name)
        if said:
            return said.split(":")[0]
    return None


@functools.cache
def package_of(name):
    """The description of a package of Debian."""
    fields = out("dpkg-query", "-W", "-f", "${Version}\t${source:Package}\t${source:Version}\t${Architecture}\n", name).splitlines()
    if not fields:
        return None
    version, source, _, arch = fields[0].split("\t")
    return {"name": name, "SPDXID": f"SPDXRef-Package-{re.sub('[^a-zA-Z0-9.-]', '-', name)}", "versionInfo": version, "filesAnalyzed": False,
            "downloadLocation": "NOASSERTION", "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION", "copyrightText": "NOASSERTION",
            "supplier": "Organization: Debian", "sourceInfo": f"source package {source}",
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                              "referenceLocator": f"pkg:deb/debian/{name}@{version}?arch={arch}"}]}


def files_of(build):
    """The programs and libraries that are installed: [(path in the build, path there)]."""
    return sorted((made, to) for made, to in introspect(build, "installed").items()
                  if os.path.isfile(made) and made.startswith(str(build)) and open(made, "rb").read(4) == b"\x7fELF")


def file_entry(path, to):
    data = pathlib.Path(path).read_bytes()
    return {"fileName": f".{to}", "SPDXID": f"SPDXRef-File-{re.sub('[^a-zA-Z0-9.-]', '-', to.strip('/'))}", "fileTypes": ["BINARY"],
            "checksums": [{"algorithm": "SHA1", "checksumValue": hashlib.sha1(data).hexdigest()},
                          {"algorithm": "SHA256", "checksumValue": hashlib.sha256(data).hexdigest()}],
            "licenseConcluded": "Apache-2.0", "copyrightText": "NOASSERTION"}


def loaded(path):
    """Packages of the libraries that a file names itself."""
    names = re.findall(r"NEEDED.*\[(.*)\]", out("readelf", "-d", path))
    places = dict(re.findall(r"^\s*(\S+) => (/\S+)", out("ldd", path), re.M))
    return {dpkg_of(places[n]) for n in names if n in places} - {None}


def built_in(build):
    """{package: how} of what meson found to build with."""
    found = {}
    for dependency in introspect(build, "dependencies"):
        folder = out("pkg-config", "--variable=pcfiledir", dependency["name"]).strip()
        package = dpkg_of(f"{folder}/{dependency['name']}.pc") if folder else None
        if package:
            found[package] = HOW.get(dependency["name"], "BUILD_DEPENDENCY_OF")
    return found


def document(build):
    project = introspect(build, "projectinfo")
    gx = {"name": "gx", "SPDXID": "SPDXRef-Package-gx", "versionInfo": project["version"], "licenseDeclared": "Apache-2.0", "licenseConcluded": "Apache-2.0",
          "downloadLocation": "NOASSERTION", "copyrightText": "NOASSERTION", "filesAnalyzed": True, "primaryPackagePurpose": "LIBRARY"}
    files, packages, relations = [], {}, [("SPDXRef-DOCUMENT", "DESCRIBES", gx["SPDXID"]), (gx["SPDXID"], "CONTAINS", NIXL["SPDXID"])]

    def package(name):
        if name not in packages:
            packages[name] = package_of(name)
        return packages[name]

    for path, to in files_of(build):
        entry = file_entry(path, to)
        files.append(entry)
        relations.append((gx["SPDXID"], "CONTAINS", entry["SPDXID"]))
        relations += [(entry["SPDXID"], "DYNAMIC_LINK", package(n)["SPDXID"]) for n in sorted(loaded(path)) if package(n)]
    sums = "".join(sorted(entry["checksums"][0]["checksumValue"] for entry in files))
    gx["packageVerificationCode"] = {"packageVerificationCodeValue": hashlib.sha1(sums.encode()).hexdigest()}
    for name, how in sorted({**{t: "BUILD_TOOL_OF" for t in TOOLS}, **built_in(build)}.items()):
        if package(name):
            ends = (gx["SPDXID"], package(name)["SPDXID"])
            relations.append((ends[0], how, ends[1]) if how == "STATIC_LINK" else (ends[1], how, ends[0]))
    when = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", datetime.datetime.now().timestamp())), datetime.timezone.utc)
    return {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"gx-{project['version']}",
            "creationInfo": {"created": when.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: gx-sbom"]},
            "packages": [gx, NIXL] + [p for _, p in sorted(packages.items()) if p], "files": files,
            "relationships": [{"spdxElementId": a, "relationshipType": how, "relatedSpdxElement": b} for a, how, b in relations]}


def main(build, to=None):
    build = pathlib.Path(build).resolve()
    doc = document(build)
    digest = hashlib.sha256(json.dumps(doc, sort_keys=True).encode()).hexdigest()
    doc["documentNamespace"] = f"https://spdx.org/spdxdocs/{doc['name']}-{digest}"
    text = json.dumps(doc, indent=1, sort_keys=True) + "\n"
    if to:
        pathlib.Path(to).write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
