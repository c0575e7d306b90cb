"""This machine's network: interfaces and addresses, free ports, and whether another node can be reached."""

from __future__ import annotations

import errno
import os
import socket

import psutil

from tunelight.errors import GangError

REACH_LIMIT_S = 10.0
"""How long a rank tries to connect to another one."""


def interface_name(address: str) -> str | None:
    """Return the network interface that holds ``address`` (``lo`` for 127.0.0.1), or None."""
    return next((name for name, held in addresses().items() if address in held), None)


def addresses() -> dict[str, tuple[str, ...]]:
    """Return this machine's IP addresses by network interface."""
    kinds = (socket.AF_INET, socket.AF_INET6)
    return {
        name: tuple(entry.address.partition("%")[0] for entry in entries if entry.family in kinds)
        for name, entries in psutil.net_if_addrs().items()
    }


def no_such_address(address: str) -> str:
    """Return the error for an address that this node does not have, with those that it has."""
    listed = "; ".join(f"{name}: {', '.join(held)}" for name, held in addresses().items() if held)
    return (
        f"{os.uname().nodename} is {address} to Ray, an address that none of its network interfaces has ({listed}), so "
        "its gang cannot meet there. Start Ray on that node with --node-ip-address= one of these, which the other "
        "nodes reach."
    )


def reach(host: str, port: int, limit_s: float = REACH_LIMIT_S) -> str | None:
    """Return why ``host`` cannot be reached at ``port`` within ``limit_s`` seconds; None where it can."""
    try:
        socket.create_connection((host, port), timeout=limit_s).close()
    except OSError as error:
        return "no answer, as of a port that a firewall blocks" if isinstance(error, TimeoutError) else str(error)
    return None


def listening(address: str) -> socket.socket:
    """Return a socket that listens on ``address`` alone. Raises: GangError if the machine has no such address."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, 0))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise GangError(no_such_address(address), "exception") from error
        raise
    return listener


def unreachable(who: str, whom: str, host: str, port: int, why: str) -> str:
    """Return the error for a rank that cannot reach another one."""
    return (
        f"{who} cannot reach {whom} at {host}, port {port}: {why}. Gangs meet at ports that the system chooses: let "
        "the nodes reach one another at every port."
    )
