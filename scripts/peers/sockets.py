"""The highest throughput of this machine's loopback: iperf3, one stream, in its default blocks and
in blocks of 1 MiB."""

import json
import shutil
import subprocess
import time

from nodes import Failed, free_port, run

SECONDS = 2
WAYS = {"iperf3": [], "iperf3 -l 1M": ["-l", "1M"]}
MISSING = "iperf3 is missing: apt-get install iperf3"


def present():
    return shutil.which("iperf3") is not None


def gb_per_s(way):
    """Received 10^9 bytes a second."""
    port = str(free_port())
    server = subprocess.Popen(
        ["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", port],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        client = ["iperf3", "-c", "127.0.0.1", "-p", port, "-t", str(SECONDS), "-J", *WAYS[way]]
        # The server serves one client, so a probe would take its place: the client itself retries.
        for pause in (0.1, 0.3, 1.0):
            time.sleep(pause)
            with_answer = attempt(client, way)
            if with_answer is not None:
                return with_answer
        raise Failed(f"{way}: its server did not listen on port {port}")
    finally:
        server.terminate()
        server.wait()


def attempt(client, way):
    try:
        answer = json.loads(run(client, way))
    except Failed:
        return None
    return answer["end"]["sum_received"]["bits_per_second"] / 8e9
