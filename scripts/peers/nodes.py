"""Nodes and load runs of nkv for a benchmark: starts a node of one rank, runs `nkv-load` against
it, reads its JSON. It depends on no peer and checks no limit."""

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import time

JOB = f"bench-{os.getpid()}"
TURN_S = 180
READY_S = 60
DRAIN_S = 20


class Failed(Exception):
    """A mode that could not be measured; the message says which and why."""


def run(command, what):
    # A session of its own: if it ends early, every server that it started is ended too.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=TURN_S)
    except subprocess.TimeoutExpired as late:
        raise Failed(f"{what}: not done after {TURN_S} s") from late
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode != 0:
        tail = "\n".join((output + errors).splitlines()[-15:])
        raise Failed(f"{what}: exit {process.returncode}\n{tail}")
    return output


def load(binaries, what, flags, node=()):
    """The JSON of `nkv-load FLAGS`: against a node started with the flags `node`, or embedded where
    that is None."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        report = os.path.join(folder, "report.json")
        command = [os.path.join(binaries, "nkv-load"), *flags, "--json", report]
        if node is not None:
            command += [
                "--job",
                JOB,
                "--connect",
                stack.enter_context(one_rank(binaries, folder, node)),
            ]
        run(command, what)
        with open(report, encoding="utf-8") as file:
            return json.load(file)


@contextlib.contextmanager
def one_rank(binaries, folder, flags):
    """A node of one rank with these flags; gives its control address."""
    command = [
        os.path.join(binaries, "nkv-node"),
        "--rank",
        "0",
        "--world-size",
        "1",
        "--master-addr",
        "127.0.0.1",
    ]
    command += ["--port", str(free_port()), "--job", JOB, "--http", "127.0.0.1:0", *flags]
    log = os.path.join(folder, "node.log")
    with open(log, "wb") as errors:
        node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
    try:
        yield control_address(node, log)
    finally:
        node.terminate()
        try:
            node.wait(DRAIN_S)
        except subprocess.TimeoutExpired:
            node.kill()
            node.wait()


def control_address(node, log):
    """The address in the node's ready line, which it prints once it serves."""
    deadline = time.monotonic() + READY_S
    text = b""
    with selectors.DefaultSelector() as selector:
        selector.register(node.stdout, selectors.EVENT_READ)
        while time.monotonic() < deadline and selector.select(deadline - time.monotonic()):
            part = os.read(node.stdout.fileno(), 65536)
            text += part
            ready = [
                line
                for line in text.decode().splitlines(True)
                if line.startswith("nkv-node ready ")
            ]
            if ready and ready[0].endswith("\n"):
                return dict(field.split("=", 1) for field in ready[0].split()[2:])["control"]
            if not part:
                break
    with open(log, encoding="utf-8", errors="replace") as file:
        raise Failed(
            f"nkv-node did not become ready within {READY_S} s:\n{''.join(file.readlines()[-15:])}"
        )


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
