"""doctor: check a machine or a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tunelight.cli import options
from tunelight.cli.app import FAILED, command
from tunelight.cli.printing import print_json, print_table

if TYPE_CHECKING:
    from tunelight.cluster.survey import Node, Survey

_MARKS = {"ok": "ok  ", "note": "note", "wrong": "FIX "}


@command("doctor --cluster --address 10.0.0.1:6379")
def doctor(
    json: options.Json = False,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Check every node of a Ray cluster, and each pair of nodes.")
    ] = False,
    address: options.Address = None,
) -> None:
    """Check versions, Horovod, GPUs, Ray, ports and disks, with advice. Exit code 1: something is wrong.

    --cluster checks every node's versions, network interfaces, free resources and clock, whether each pair of nodes
    can connect, and the speed of an all-reduce over all nodes.
    """
    surveyed: Survey | None = None
    if cluster or address is not None:
        from tunelight.cluster.survey import survey  # imports Ray

        surveyed = survey(address)
        answer, where = vars(surveyed), f"The cluster at {surveyed.address}"
    else:
        from tunelight.cluster.doctor import examine

        answer, where = {"findings": examine()}, "This machine"
    findings = answer["findings"]
    wrong = sum(finding.verdict == "wrong" for finding in findings)
    if json:
        print_json({"fit": not wrong, **answer})
    else:
        if surveyed is not None:
            _print_nodes(surveyed.nodes)
        for finding in findings:
            typer.echo(f"{_MARKS[finding.verdict]} {finding.name:<18} {finding.found}")
            if finding.advice:
                typer.echo(f"{'':24}{finding.advice}")
        typer.echo(f"{wrong} to fix." if wrong else f"{where} is fit to run sweeps.")
    if wrong:
        raise typer.Exit(FAILED)


def _print_nodes(nodes: Sequence[Node]) -> None:
    from tunelight.cluster.survey import VERSIONS  # imports Ray

    places, versions = [], []
    for node in nodes:
        name, interface, reaches = node.name.split(" ", maxsplit=1)[0], "", None
        if node.here is not None:
            interface = f" {node.here.interface}"
            reaches = f"{len(nodes) - 1 - len(node.unreachable)} of {len(nodes) - 1}"
        free = [f"{node.free.get(kind, 0):g} of {node.total.get(kind, 0):g}" for kind in ("CPU", "GPU")]
        clock = None if node.skew_s is None else f"{node.skew_s * 1000:+.0f} ms"
        places.append([name, f"{node.address}{interface}", *free, clock, reaches])
        versions.append([name, *(node.here and node.here.versions.get(package) for package in VERSIONS)])
    print_table(["node", "address", "CPUs free", "GPUs free", "clock", "reaches"], places)
    print_table(["node", *VERSIONS], versions)
