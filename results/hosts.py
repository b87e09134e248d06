"""Hosts made of network namespaces on this machine: each has an address and a name, and a shaped link to one switch."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

BURST_BYTES = 250
"""What an idle link may catch up on, per Mbit/s: 2 ms of its rate."""

LAUNCHER = """#!/bin/bash
# Launchers call this as they would ssh: options, a host, a command. Hosts are addresses here.
while [[ "$1" == -* ]]; do shift; done
number=$((${1##*.} - 1))
shift
exec ip netns exec "PREFIX"h$number unshare --uts sh -c "hostname host$number; $*"
"""


class HostsError(Exception):
    """Hosts cannot be made here: says what it takes."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """`count` hosts; `on` runs a command on one of them, `agent` is a script that runs one on any, as ssh does."""

    prefix: str
    count: int
    agent: Path

    @property
    def addresses(self) -> list[str]:
        """What hosts are called by launchers."""
        return [f"10.99.0.{number + 1}" for number in range(self.count)]

    def on(self, number: int) -> tuple[str, ...]:
        """Return what to put before a command so that it runs on a host."""
        named = ("unshare", "--uts", "sh", "-c", f'hostname host{number}; "$@"', "sh")
        return ("ip", "netns", "exec", f"{self.prefix}h{number}", *named)

    def sent_bytes(self) -> list[int]:
        """Return what every host has sent through its link, headers included."""
        return [int(self._read(number, "tx_bytes")) for number in range(self.count)]

    def _read(self, number: int, counter: str) -> str:
        path = f"/sys/class/net/eth0/statistics/{counter}"
        return run("ip", "netns", "exec", f"{self.prefix}h{number}", "cat", path)


def run(*words: str) -> str:
    """Run a command and return what it prints."""
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def _fails(*words: str) -> bool:
    return subprocess.run(words, check=False, capture_output=True).returncode != 0


@contextmanager
def namespace(name: str) -> Iterator[None]:
    """Make a network namespace, and remove it in the end."""
    run("ip", "netns", "add", name)
    try:
        run("ip", "-n", name, "link", "set", "lo", "up")
        yield
    finally:
        run("ip", "netns", "del", name)  # and with it every interface inside


@contextmanager
def hosts(folder: Path, count: int, megabits: int) -> Iterator[Hosts]:
    """Make hosts that are linked at so many Mbit/s; a `HostsError` where that is not permitted."""
    prefix = f"tp{os.getpid()}"
    if shutil.which("tc") is None or _fails("ip", "netns", "add", prefix):
        raise HostsError("hosts of network namespaces need root, and iproute2's ip and tc")
    run("ip", "netns", "del", prefix)
    agent = folder / "agent"
    agent.write_text(LAUNCHER.replace("PREFIX", prefix))
    agent.chmod(0o755)
    network = Hosts(prefix, count, agent)
    with ExitStack() as stack:
        switch = f"{prefix}s"
        stack.enter_context(namespace(switch))
        run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", switch, "link", "set", "bridge", "up")
        for number, address in enumerate(network.addresses):
            host, port = f"{prefix}h{number}", f"port{number}"
            stack.enter_context(namespace(host))
            run("ip", "-n", host, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", switch)
            run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            run("ip", "-n", host, "link", "set", "eth0", "up")
            run("ip", "-n", host, "addr", "add", f"{address}/24", "dev", "eth0")
            for where, link in ((host, "eth0"), (switch, port)):
                shape = ("tbf", "rate", f"{megabits}mbit", "burst", f"{megabits * BURST_BYTES}b", "latency", "50ms")
                run("tc", "-n", where, "qdisc", "add", "dev", link, "root", *shape)
        yield network
