"""Tests of the budgets' verdicts: python3 -m unittest discover -s scripts/peers."""

import unittest

import budgets
from budgets import KIB, MIB, SIZES, Line


def report(vs_memcpy=0.5, p50_us=0.2, per_s=9e6, gb_per_s=4.0):
    row = {"p50_us": p50_us, "p99_us": 3 * p50_us, "vs_memcpy": vs_memcpy, "gb_per_s": gb_per_s}
    ops = [
        "get warm",
        "get cold",
        "get jumping",
        "get under load",
        "get",
        "put",
        "get batch",
        "put batch",
    ]
    ops += ["put log busy", "put log isolated", "put plan busy", "put plan idle"]
    rates = [("put log", 1), ("put log", 2), ("lookup hit", 1), ("lookup miss", 1)]
    return {
        "ops": [{"op": op, "bytes": size, **row} for op in ops for size in SIZES],
        "rates": [{"op": op, "processes": n, "per_s": per_s} for op, n in rates],
    }


def a_round(**figures):
    table = {size: {"put": 1.0, "get": 1.0} for size in SIZES}
    far = {size: {"put": 200.0, "get": 200.0} for size in SIZES}
    mine = report(**figures)
    batches = {"put_batch": figures.get("p50_us", 0.2), "get_batch": figures.get("p50_us", 0.2)}
    python = {size: {"put": 1.5, "get": 1.5, **batches} for size in SIZES}
    turns = {
        "nkv-shm": table,
        "nkv-python": python,
        "nkv-python-tcp": python,
        "mooncake-dummy": far,
        "mooncake-tcp": far,
        "redis": far,
        "nixl": far,
        "iperf3": 3.0,
        "iperf3 -l 1M": 4.0,
    }
    return {**turns, "nkv-budgets": mine, "nkv-lookups": mine, "nkv-sustained": mine}


class Verdicts(unittest.TestCase):
    def missed(self, rounds, skipped=""):
        return [line.name for line in budgets.missed(budgets.judge(rounds, skipped))]

    def test_figures_within_every_limit_miss_nothing(self):
        self.assertEqual(self.missed([a_round()]), [])

    def test_the_median_over_the_rounds_counts(self):
        bad = a_round(p50_us=0.4)
        self.assertEqual(self.missed([a_round(), bad, a_round()]), [])
        self.assertEqual(self.missed([a_round(), bad, bad]), ["get 4 KiB warm, p50"])

    def test_each_limit_is_of_its_own_size(self):
        names = self.missed([a_round(vs_memcpy=0.75)])
        self.assertIn("put 256 KiB by the log over memcpy", names)
        self.assertNotIn("put 64 KiB by the log over memcpy", names)

    def test_too_few_a_second_and_a_rate_that_is_not_there_are_missed(self):
        self.assertEqual(len(self.missed([a_round(per_s=4e6)])), 2)
        nothing = a_round()
        nothing["nkv-lookups"] = {"ops": [], "rates": []}
        self.assertEqual(len(self.missed([nothing])), 2)

    def test_a_hundredth_of_mooncake_is_asked_at_4_kib_alone(self):
        near = a_round()
        near["mooncake-dummy"] = {size: {"put": 99.0, "get": 1.51} for size in SIZES}
        wanted = [f"{op} 4 KiB: mooncake-dummy over nkv-shm" for op in ("put", "get")]
        python = "Python: get 4 KiB: mooncake-dummy over nkv-python"
        self.assertEqual(self.missed([near]), [*wanted, python])
        near["nixl"] = {size: {"put": 0.1, "get": 0.99 if size == MIB else 1.0} for size in SIZES}
        last = [*wanted, "get 1 MiB: nixl over nkv-shm", python]
        self.assertEqual(self.missed([near]), last)

    def test_what_python_costs_has_a_limit(self):
        slow = a_round()
        slow["nkv-python"][4 * KIB]["put"] = 2.1
        slow["nkv-python"][256 * KIB]["get_batch"] = 0.23
        wanted = ["Python: put 4 KiB, over Rust's"]
        wanted.append("Python: get of 128 of 256 KiB, speed over Rust's")
        self.assertEqual(self.missed([slow]), wanted)

    def test_without_iperf3_its_rows_say_so_and_are_not_missed(self):
        rounds = [a_round(gb_per_s=0.1)]
        self.assertEqual(len(self.missed(rounds)), 12)
        self.assertEqual(self.missed(rounds, "no iperf3"), [])
        lines = budgets.judge(rounds, "no iperf3")
        self.assertEqual(sum("skipped: no iperf3" in line.cells()[2] for line in lines), 24)

    def test_cells_say_limit_figure_and_verdict(self):
        line = Line("x", [0.25, 0.5, 0.75], 0.3, unit="µs")
        self.assertEqual(line.cells(), ["x", "≤ 0.3 µs", "0.5 µs", "**no**"])
        self.assertEqual(
            Line("x", [2e6], 1.2e6, at_most=False, unit="/s").cells()[1:],
            ["≥ 1,200,000 /s", "2,000,000 /s", "yes"],
        )
        self.assertEqual(Line("x", [7.0], None).cells()[1:], ["recorded", "7", "-"])
        self.assertEqual(budgets.label(64 * KIB), "64 KiB")


if __name__ == "__main__":
    unittest.main()
