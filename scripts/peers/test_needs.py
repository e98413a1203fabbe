"""Tests of what the benchmark looks for before it measures."""

import os
import unittest
from unittest import mock

import needs


class Needs(unittest.TestCase):
    def test_too_little_memory_is_said_with_both_numbers(self):
        with mock.patch.object(needs, "available_bytes", return_value=3 * needs.GIB):
            lines = [line for line in needs.memory() if "of memory" in line]
        self.assertEqual(lines, ["12 GiB of memory; 3.0 are available"])

    def test_a_program_that_is_not_there_is_said_with_where_it_comes_from(self):
        with mock.patch.dict(os.environ, PATH="/nowhere"):
            lines = list(needs.programs())
        self.assertIn("redis-server: apt-get install redis-server", lines)
        self.assertEqual(len(lines), len(needs.PROGRAMS))

    def test_packages_that_cannot_be_loaded_are_said_with_the_last_line(self):
        failed = mock.Mock(returncode=1, stdout="", stderr="a\nmooncake_client lacks libnuma.so\n")
        with mock.patch.object(needs.subprocess, "run", return_value=failed):
            lines = list(needs.packages())
        self.assertEqual(lines, ["the peers' packages: mooncake_client lacks libnuma.so"])


if __name__ == "__main__":
    unittest.main()
