#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A release of the version that meson.build names: checks, a commit that dates it, in build-release-files/ the sources,
# Debian packages, bundle, wheel, bill of materials and checksums, and a tag.
#   tools/release/release.sh [--dry-run]
#     --dry-run  the checks alone; says of the rest what it would do
# The same commit makes the same files, with the same compiler and libraries. Pushing the tag is the maintainer's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly OUT=build-release-files
dry=no wrong=0
[[ ${1:-} != --dry-run ]] || { dry=yes; shift; }
[[ $# -eq 0 ]] || { sed -n '3,8p' "$0" >&2; exit 2; }

say() { printf 'release: %s\n' "$*"; }
bad() { say "not ready: $*"; wrong=1; }

# step WORDS...: done, or in a dry run said.
step()
{
	if [[ $dry == yes ]]; then
		say "would: $*"
	else
		say "$*"
		"$@"
	fi
}

version=$(sed -n "s/^  version: '\(.*\)',/\1/p" meson.build)
minor=${version%.*}
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || { say "no version in meson.build"; exit 1; }
say "version $version"

# --- checks: one version everywhere, headers frozen, nothing left in the tree --------------------------------

grep -q "^version = \"$version\"\$" pyproject.toml || bad "pyproject.toml has another version"
[[ $(sed -n '1s/^gx (\(.*\)) .*/\1/p' debian/changelog) == "$version" ]] || bad "debian/changelog has another version"
[[ $(sed -n '1s/^.*) \(.*\);.*/\1/p' debian/changelog) != UNRELEASED ]] || bad "debian/changelog says UNRELEASED"
# Addresses of .example reach nobody (RFC 2606): Debian's tools want one, and a release wants one that is read.
! grep -q '^Maintainer: .*[@.]example>$' debian/control || bad "debian/control: the Maintainer's address is a placeholder; set it there and in debian/changelog"
dated=$(sed -n "s/^## \(Unreleased\|$version - [0-9-]*\)\$/\1/p" CHANGELOG.md | head -n 1)
[[ -n $dated ]] || bad "CHANGELOG.md has no heading '## Unreleased' or '## $version - DATE'"
soversion=$(sed -n "s/^gx_soversion = '\(.*\)'/\1/p" meson.build)
grep -q "^Package: libgx$soversion\$" debian/control || bad "debian/control has no package libgx$soversion"
for header in include/gx/*.h; do
	[[ ${header##*/} == log.h ]] || cmp -s "$header" "tests/api/abi/$minor/gx/${header##*/}" ||
		bad "$header is not frozen in tests/api/abi/$minor"
done
git rev-parse -q --verify "refs/tags/v$version" >/dev/null && bad "there is a tag v$version"
[[ -z $(git status --porcelain) ]] || bad "the tree has changes that are not committed"
if [[ $wrong -ne 0 ]]; then
	[[ $dry == yes ]] || exit 1
fi

# --- what is made ---------------------------------------------------------------------------------------------

# A commit, so that what is tested and built is what is tagged.
changelog()
{
	sed -i "s/^## Unreleased\$/## $version - $(date -u +%F)/" CHANGELOG.md
	sed -i "0,/^ -- /s/^\( -- .*>  \).*/\1$(LC_ALL=C date -u -R)/" debian/changelog
	git commit -q -m "release: gx $version" CHANGELOG.md debian/changelog
}

# Names and times of the archive are those of the commit.
sources()
{
	git archive --format=tar --prefix="gx-$version/" HEAD | xz -9 --threads=1 >"$OUT/gx-$version.tar.xz"
}

bundled()
{
	./run bundle
	tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -cJf "$OUT/gx-$version-bundle-$(uname -m).tar.xz" bundle
}

# Its tools are PyPI's.
wheel() { ./run wheel && cp build-wheel/*.whl "$OUT/"; }
packages() { ./run packages && cp build-packages/*.deb build-packages/*.changes build-packages/*.buildinfo "$OUT/"; }
bill() { python3 tools/release/sbom.py build "$OUT/gx-$version.spdx.json"; }
sums() { (cd "$OUT" && sha256sum -- * >SHA256SUMS); }

[[ $dated != Unreleased ]] || step changelog
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
step ./run tests --full
step mkdir "$OUT"
step sources
step packages
step bundled
step wheel
step bill
step sums
step git tag -a "v$version" -m "gx $version" # last: what is tagged is built and tested
[[ $dry == yes ]] || say "done: $OUT/. Push the tag: git push origin v$version"
exit "$wrong"
