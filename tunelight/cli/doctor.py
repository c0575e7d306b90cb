"""doctor: check a machine or a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunelight.cli.app import FAILED, command
from tunelight.cli.options import Address, Json
from tunelight.cli.printing import print_json, print_table

if TYPE_CHECKING:
    from tunelight.cluster.doctor import Finding
    from tunelight.cluster.survey import Node, Survey

_MARKS = {"ok": "ok  ", "note": "note", "wrong": "FIX "}


@command("doctor --cluster --address 10.0.0.1:6379")
def doctor(
    json: Json = False,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Check every node of a Ray cluster, and each pair of nodes.")
    ] = False,
    address: Address = None,
) -> None:
    """Check versions, Horovod, GPUs, Ray, ports and disks, with advice. Exit code 1: something is wrong.

    --cluster checks every node's versions, network interfaces, free resources and clock, whether each pair of nodes
    can connect, and the speed of an all-reduce over all nodes.
    """
    if cluster or address is not None:
        from tunelight.cluster.survey import survey  # imports Ray

        found = survey(address)
        fit, where = found.fit, f"The cluster at {found.address}"
        answer: Any = {"fit": fit, **vars(found)}
        findings: Iterable[Finding] = found.findings
    else:
        from tunelight.cluster.doctor import examine

        findings = examine()
        fit, where = not any(finding.verdict == "wrong" for finding in findings), "This machine"
        answer = {"fit": fit, "findings": findings}
    if json:
        print_json(answer)
    else:
        if cluster or address is not None:
            _print_nodes(found)
        _print_findings(findings)
        wrong = sum(finding.verdict == "wrong" for finding in findings)
        typer.echo(f"{where} is fit to run sweeps." if fit else f"{wrong} to fix.")
    if not fit:
        raise typer.Exit(FAILED)


def _print_findings(findings: Iterable[Finding]) -> None:
    for finding in findings:
        typer.echo(f"{_MARKS[finding.verdict]} {finding.name:<18} {finding.found}")
        if finding.advice:
            typer.echo(f"{'':24}{finding.advice}")


def _print_nodes(found: Survey) -> None:
    from tunelight.cluster.survey import VERSIONS  # imports Ray

    print_table(
        ["node", "address", "CPUs free", "GPUs free", "clock", "reaches"],
        [_place(node, len(found.nodes)) for node in found.nodes],
    )
    print_table(["node", *VERSIONS], [_versions(node) for node in found.nodes])


def _place(node: Node, nodes: int) -> list[Any]:
    def free(name: str) -> str:
        return f"{node.free.get(name, 0):g} of {node.total.get(name, 0):g}"

    interface = "" if node.here is None else f" {node.here.interface}"
    clock = None if node.skew_s is None else f"{node.skew_s * 1000:+.0f} ms"
    reaches = None if node.here is None else f"{nodes - 1 - len(node.unreachable)} of {nodes - 1}"
    return [_short(node), f"{node.address}{interface}", free("CPU"), free("GPU"), clock, reaches]


def _versions(node: Node) -> list[Any]:
    from tunelight.cluster.survey import VERSIONS

    return [_short(node), *(None if node.here is None else node.here.versions.get(name) for name in VERSIONS)]


def _short(node: Node) -> str:
    return node.name.split(" ", maxsplit=1)[0]
