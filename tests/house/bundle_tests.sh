#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the test programs of a bundle, where there is no meson. `./run bundle` copies this to bundle/run-tests, and writes
# tests/list: NAME PROGRAM ARGUMENT... a line.
# usage: run-tests [NAME...]     names of tests; all when none is given
set -uo pipefail
cd "$(dirname "$0")" || exit 1

passed=0 failed=0 skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# test_run NAME PROGRAM ARGUMENT...
test_run()
{
	local name=$1
	shift
	GX_TOOLS=$PWD timeout "${GX_TEST_TIMEOUT:-300}" "tests/$1" "${@:2}" </dev/null >"$log" 2>&1
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
}

while read -r -a line; do
	[[ $# -eq 0 || " $* " == *" ${line[0]} "* ]] && test_run "${line[@]}"
done <tests/list
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ $((passed + skipped)) -gt 0 ]
