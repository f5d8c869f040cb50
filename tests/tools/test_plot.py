#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gxperf plot, from documents to the input of gnuplot: which results become which line, ratios, axes, quoting, refusals.
Needs no gnuplot. test_cli_options.py runs the command."""
import importlib.util
import json
import pathlib
import types
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2] / "tools/gxperf/plot.py"
spec = importlib.util.spec_from_file_location("gxperf_plot", SOURCE)
plot = importlib.util.module_from_spec(spec)
spec.loader.exec_module(plot)


def opened(**how):
    base = dict(x=None, y=None, rival=None, only=None, title=None, log_y=False)
    return plot.Plot(types.SimpleNamespace(**{**base, **how}))


def row(op, size_b, gb_s, **more):
    return {"op": op, "size_b": size_b, "GB_s": gb_s, **more}


def doc(*results, command="unpack"):
    return {"command": command, "results": list(results)}


# As tests/bench/bench.py writes them.
BENCH = {"command": ["bench.py"], "rows": [
    {"name": "gx put 4K, shm, verified", "unit": "GB/s", "values": [9, 7, 8]},
    {"name": "gx put 1M, shm, verified", "unit": "GB/s", "values": [12]},
    {"name": "gx put 64M, shm, verified", "unit": "GB/s", "values": [], "error": "it failed"},
    {"name": "UCX put 4K, posix", "unit": "GB/s", "values": [3, 7, 2]},
    {"name": "testpmd memif, 1500-byte frames", "unit": "GB/s", "values": [3]},
    {"name": "gx lat 64, shm", "unit": "us", "values": [0.5]}, 7, None],
    "ratios": [{"gx": "gx put 4K, shm, verified", "rival": "UCX put 4K, posix", "values": [3, 1, 4]},
               {"gx": "gx put 1M, shm, verified", "rival": "testpmd memif, 1500-byte frames", "values": [4]}]}


class Lines(unittest.TestCase):
    def draws(self, docs, *words, **how):
        """The script holds these words; those behind a '!' it does not hold."""
        p = opened(**how)
        for name, one in docs.items() if "results" not in docs and "rows" not in docs else [("one", docs)]:
            p.add(one, name)
        text = p.script("a.svg", "a.png")
        for word in words:
            (self.assertNotIn if word[0] == "!" else self.assertIn)(word.lstrip("!"), text)
        return text

    def refuses(self, one, *words, **how):
        p = opened(**how)
        with self.assertRaises(plot.Bad) as bad:
            p.add(one, "x")
            p.script("a.svg", "a.png")
        for word in words:
            self.assertIn(word, str(bad.exception))

    def test_a_line_for_each_op(self):
        self.draws(doc(row("b", 8192, 3.5), row("a", 4096, 1), row("b", 4096, 2)),
                   "$line0 << EOD\n4096 2\n8192 3.5\nEOD\n", "$line1 << EOD\n4096 1\nEOD\n", "title 'b'", "title 'a'",
                   "set xtics ('4K' 4096, '8K' 8192)", "set xrange [3900.95238:8601.6]", "set ylabel 'GB/s'",
                   "set output 'a.svg'", "set output 'a.png'", "!$all", "set yrange [0:*]")

    def test_sms_tell_lines_apart(self):
        self.draws(doc(row("k", 1, 3, sms=4), row("k", 1, 1, sms=16), row("l", 1, 1, sms=16)),
                   "title 'k, 4 SMs'", "title 'k, 16 SMs'", "title 'l'")

    def test_null_is_left_out(self):
        self.draws(doc({"op": "a", "size_b": 64, "p50_us": None}, {"op": "a", "size_b": 0, "p50_us": 5},
                       {"op": "a", "size_b": 65, "p50_us": 7}),
                   "$line0 << EOD\n65 7\nEOD\n", "set xtics ('65' 65)", y="p50_us")

    def test_several_results_of_one_x(self):
        self.draws(doc(row("a", 64, 9), row("a", 64, 1), row("a", 64, 2)),
                   "$line0 << EOD\n64 2\nEOD\n", "$all0 << EOD\n64 1\n64 2\n64 9\nEOD\n")

    def test_several_files(self):
        text = self.draws({"f": doc(row("a", 2, 9)), "it's": doc(row("a", 2, 8), row("ab", 2, 8))},
                          "title 'f: a'", "title 'it''s: a'", "!s: ab'", only="a")
        self.assertEqual(text.count("linespoints"), 2)
        self.assertEqual(plot.quoted("p\n'.png"), "'p?''.png'")

    def test_only_these(self):
        one = doc(row("a", 2, 8), row("ab", 2, 6), row("c", 2, 2))
        self.draws(one, "title 'ab'", "!title 'a'", "!title 'c'", only="ab,x")
        self.draws(one, "$line0 << EOD\n2 3\nEOD\n", "title 'ab'", "!$line1", only="ab", rival="c")

    def test_overlap_shows_the_slowdown(self):
        self.draws(doc({"op": "ce", "blocks": 16, "slowdown": 1.02}, command="overlap"),
                   "$line0 << EOD\n16 1.02\n", "set ylabel 'slowdown", "set xlabel 'thread blocks", "set format x", x="blocks")

    def test_latency_when_there_is_no_rate(self):
        self.draws(doc({"op": "lat", "size_b": 64, "GB_s": None, "p50_us": 3}),
                   "$line0 << EOD\n64 3\nEOD\n", "set ylabel 'microseconds, median'")

    def test_tics_do_not_touch(self):
        sizes = plot.sizes([1 << 10, 1025] + [1 << n for n in range(11, 41)])
        self.assertIn("'1K' 1024, '8K'", sizes[0])
        self.assertNotIn("1025", sizes[0])
        self.assertEqual(plot.sizes([5 << 40])[0], f"set xtics ('5T' {5 << 40}) nomirror")

    def test_bench_by_size(self):
        self.draws(BENCH, "$line0 << EOD\n4096 8\n1048576 12\nEOD\n", "$all0 << EOD\n4096 7\n4096 8\n",
                   "title 'gx put, shm, verified'", "title 'UCX put, posix'", "set ylabel 'GB/s'", "!lat", "!testpmd")
        self.draws(BENCH, "$line0 << EOD\n64 0.5\nEOD\n", "title 'gx lat, shm'", "!gx put", y="p50_us")

    def test_bench_ratios(self):
        """Those that it has computed round by round: 3, 1, 4 and not 8 / 3."""
        self.draws(BENCH, "$line0 << EOD\n4096 3\nEOD\n", "title 'gx put, shm, verified'",
                   "set ylabel 'GB/s, ratio to UCX put, posix'", "!$line1", rival="UCX put, posix")
        self.draws(BENCH, "$line0 << EOD\n4096 3\nEOD\n", "$line1 << EOD\n1048576 4\nEOD\n",
                   "title 'gx put, shm, verified / UCX put, posix'",
                   "title 'gx put, shm, verified / testpmd memif, 1500-byte frames'", y="ratio")
        self.refuses(BENCH, "nobody", rival="nobody")

    def test_bench_gpu_by_cores(self):
        self.draws({"rows": [{"name": "put to GPU, unpack d2d, 1 cores a side", "values": [5, 6, 7]},
                             {"name": "put to GPU, unpack d2d, 4 cores a side", "values": [20]}]},
                   "$line0 << EOD\n1 6\n4 20\nEOD\n", "set xlabel 'cores a side'",
                   "title 'put to GPU, unpack d2d, cores a side'", x="cores")

    def test_refuses(self):
        self.refuses({"rows": []}, '"results"', "tests/bench/bench.py")
        self.refuses({"results": 7}, '"results"')
        self.refuses({"results": [7, None, [], {"op": 1}]}, '"size_b"')
        self.refuses(doc(row("a", 2, True)), '"GB_s"')
        self.refuses(doc(row("a", 2, float("nan"))), '"GB_s"')
        self.refuses(doc(row("a", 2, 8)), "share", y="share")
        self.refuses(doc(*(row(f"a{i}", 2, 8) for i in range(65))), "--only")
        for text in ("[", "[]\n{}", '{"op": 1}\n[]'):
            with self.assertRaises(plot.Bad):
                plot.parse(text)

    def test_lines_of_json(self):
        got = plot.parse("".join(json.dumps({"command": "put", **row("a", 4, i)}) + "\n" for i in (1, 2)) + '{"command": "put"}\n')
        self.assertEqual((got["command"], [r["GB_s"] for r in got["results"]]), ("put", [1, 2]))

    def test_ratio_to_a_rival(self):
        one = doc(row("gx", 4, 9), row("gx", 8, 9), row("nccl", 4, 2), row("nccl", 4, 4))
        self.draws(one, "$line0 << EOD\n4 3\nEOD\n", "ratio to nccl", "!$line1", rival="nccl")
        self.refuses(one, "nothing to draw", "ucx", rival="ucx")
        self.refuses(doc(row("gx", 4, 9), row("nccl", 4, 0)), "nothing to draw", rival="nccl")

    def test_same_bytes_again(self):
        how = {"title": "`date` 'x'", "log_y": True}
        one = doc(row("gx", 4, 9), row("gx", 8, 0))
        text = self.draws(one, "set title '`date` ''x''' noenhanced", "set logscale y 10", "!\n8 0\n", "!yrange", **how)
        self.assertEqual(text, self.draws(one, **how))


if __name__ == "__main__":
    unittest.main()
