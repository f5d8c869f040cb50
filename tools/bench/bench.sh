#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Benchmarks beside rivals, interleaved, medians. `./run bench` builds first. All arguments go to bench.py (see --help).
set -euo pipefail
cd "$(dirname "$0")/../.."
exec python3 tools/bench/bench.py "$@"
