#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The release script's dry run: it checks, names each thing that it would make, and changes nothing; and the bill of materials of
this build is a document of SPDX 2.3.

usage: test_release.py BUILD SOURCE     Exit status 77 without git.
Where pyspdxtools is installed (spdx-tools of PyPI) it judges the document, too.
"""
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

STEPS = ("./run tests --full", "sources", "packages", "bundled", "wheel", "bill", "sums", "git tag")
ALWAYS = ("has another version", "has no package", "no version")  # never right, release or not
KINDS = {"DESCRIBES", "CONTAINS", "DYNAMIC_LINK", "STATIC_LINK", "BUILD_DEPENDENCY_OF", "BUILD_TOOL_OF", "TEST_DEPENDENCY_OF"}
# What the specification wants of each: {member: pattern}
DOCUMENT = {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": r"gx-\d+\.\d+\.\d+",
            "documentNamespace": r"https://[^# ]+"}
PACKAGE = {"SPDXID": r"SPDXRef-[a-zA-Z0-9.-]+", "name": ".+", "versionInfo": ".+", "downloadLocation": "NOASSERTION|git.+",
           "licenseConcluded": ".+", "licenseDeclared": ".+", "copyrightText": ".+"}
FILE = {"SPDXID": r"SPDXRef-[a-zA-Z0-9.-]+", "fileName": r"\./.+", "licenseConcluded": ".+", "copyrightText": ".+"}


def lacks(what, members):
    """[what is not as it must be]"""
    return [f"{what.get('name', what.get('fileName'))}: {k} is {what.get(k)}" for k, pattern in members.items() if not re.fullmatch(pattern, str(what.get(k)))]


def judged(doc):
    wrong = lacks(doc, DOCUMENT) + [w for p in doc["packages"] for w in lacks(p, PACKAGE)] + [w for f in doc["files"] for w in lacks(f, FILE)]
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", doc["creationInfo"]["created"]) or not doc["creationInfo"]["creators"]:
        wrong.append("creationInfo")
    ids = [x["SPDXID"] for x in [doc] + doc["packages"] + doc["files"]]
    wrong += [f"{i} is there twice" for i in set(ids) if ids.count(i) > 1]
    for r in doc["relationships"]:
        if r["relationshipType"] not in KINDS or r["spdxElementId"] not in ids or r["relatedSpdxElement"] not in ids:
            wrong.append(f"relationship {r}")
    sums = sorted(c["checksumValue"] for f in doc["files"] for c in f["checksums"] if c["algorithm"] == "SHA1")
    code = hashlib.sha1("".join(sums).encode()).hexdigest()
    if doc["packages"][0].get("packageVerificationCode") != {"packageVerificationCodeValue": code}:
        wrong.append("the verification code is not that of the files")
    return wrong


def bites(doc):
    """A document that is not right is seen."""
    for change in ({"spdxVersion": "SPDX-2.2"}, {"relationships": [{"spdxElementId": "SPDXRef-a", "relationshipType": "CONTAINS", "relatedSpdxElement": "SPDXRef-b"}]},
                   {"files": doc["files"][1:]}, {"packages": doc["packages"] + doc["packages"][-1:]}):
        if not judged({**doc, **change}):
            sys.exit(f"nothing is said of {str(change)[:200]}")


def main(build, source):
    source = pathlib.Path(source).resolve()
    if not shutil.which("git") or subprocess.run(["git", "-C", source, "rev-parse"], capture_output=True, check=False).returncode:
        print("no git here")
        return 77
    before = subprocess.run(["git", "-C", source, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
    ran = subprocess.run([source / "tools/release/release.sh", "--dry-run"], capture_output=True, text=True, timeout=60, check=False)
    wrong = [f"dry run: {ran.stderr}"] if ran.returncode not in (0, 1) else []
    wrong += [f"it would not: {s}" for s in STEPS if f"would: {s}" not in ran.stdout] + [w for w in ran.stdout.splitlines() if any(a in w for a in ALWAYS)]
    if subprocess.run(["git", "-C", source, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout != before:
        wrong.append("the dry run has changed the tree")
    with tempfile.TemporaryDirectory() as tmp:
        path = pathlib.Path(tmp) / "gx.spdx.json"
        subprocess.run([source / "tools/release/sbom.py", build, path], check=True, timeout=120)
        doc = json.loads(path.read_text())
        if shutil.which("pyspdxtools"):
            said = subprocess.run(["pyspdxtools", "-i", path], capture_output=True, text=True, timeout=120, check=False)
            wrong += [said.stderr] if said.returncode else []
    bites(doc)
    wrong += judged(doc)
    names = {p["name"] for p in doc["packages"]}
    if shutil.which("dpkg-query") and not {"libc6", "libssl3", "liburing2"} <= names:
        wrong.append(f"libraries are missing: {sorted(names)}")
    if len(doc["files"]) < 3:
        wrong.append(f"files are missing: {doc['files']}")
    print(*wrong, f"{len(doc['packages'])} packages, {len(doc['files'])} files, {len(doc['relationships'])} relationships: {len(wrong)} failures", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
