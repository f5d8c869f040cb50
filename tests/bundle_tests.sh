#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the test programs of a bundle, where there is no meson. `./run bundle` copies this to bundle/run-tests.
# usage: run-tests [NAME...]     names of programs in tests/; all when none is given
set -uo pipefail
cd "$(dirname "$0")" || exit 1

passed=0 failed=0 skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
[ $# -gt 0 ] || set -- $(cd tests && ls)
for name in "$@"; do
	GX_TOOLS=$PWD timeout "${GX_TEST_TIMEOUT:-300}" "tests/$name" >"$log" 2>&1
	case $? in
	0)
		passed=$((passed + 1))
		echo "ok      $name"
		;;
	77)
		skipped=$((skipped + 1))
		echo "skipped $name: $(tail -n 1 "$log")"
		;;
	*)
		failed=$((failed + 1))
		echo "FAILED  $name"
		tail -n 20 "$log"
		;;
	esac
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
