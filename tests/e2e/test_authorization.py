"""Who may ask the node's port for what: cell by cell what the Go kubelet answers.

`data/authorization.tsv` has its answers. TRIO_KUBELET_E2E_AGENT=go holds the table against the Go
kubelet itself; with TRIO_KUBELET_E2E_RECORD=1 beside it, it is written anew.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from lab.go_kubelet import GoKubelet
from tests.e2e.authorization import (
    REFUSED,
    UNKNOWN_PATHS,
    Answer,
    Cell,
    answers,
    callers,
    forget,
    read,
    written,
)
from tests.e2e.cluster import Namespace
from tests.e2e.local import AGENT, LocalCluster

TABLE = Path(__file__).parent / "data" / "authorization.tsv"
UNTRUSTED = ("expired", "another authority")
"""Certificates that end the handshake here; the Go kubelet answers 401."""
IN_PODS = ("/exec/", "/attach/", "/run/", "/portForward/")
"""What does something in pods needs the right to create by any method."""
UNKNOWN_TO_ANYBODY = ("nobody", "bad token")
VERBS = {
    "GET": "get",
    "POST": "create",
    "PUT": "update",
    "DELETE": "delete",
    "HEAD": "get",
    "PATCH": "patch",
}


def test_everybody_is_answered_as_by_the_go_kubelet(
    local_cluster: LocalCluster, namespace: Namespace, tmp_path: Path
) -> None:
    plane = local_cluster.control_plane
    try:
        everybody = list(callers(plane, namespace))
        found = answers(local_cluster.server_port, everybody, tmp_path)
    finally:
        forget(plane)
    if os.environ.get("TRIO_KUBELET_E2E_RECORD"):
        TABLE.write_text(written(found))
    table = read(TABLE.read_text())
    expected = table if AGENT is GoKubelet else {cell: here(cell, table) for cell in table}
    wrong = {cell: (found.get(cell), answer) for cell, answer in expected.items()}
    assert {cell: pair for cell, pair in wrong.items() if pair[0] != pair[1]} == {}
    assert found.keys() == expected.keys()


def here(cell: Cell, table: Mapping[Cell, Answer]) -> Answer:
    """What the agent answers where the Go kubelet answers so: docs/differences.md."""
    answer = table[cell]
    if cell.caller in UNTRUSTED:
        return Answer(REFUSED, "")
    if cell.path.startswith(IN_PODS) and answer.status != "401":
        if cell.caller in ("API server", "create proxy"):
            return table[cell._replace(caller="API server")]
        asked = "verb=create, resource=nodes, subresource(s)=[proxy]"
        return Answer("403", "" if cell.method == "HEAD" else f"Forbidden (user=<user>, {asked})")
    if cell.path not in UNKNOWN_PATHS:
        return answer
    verb = VERBS.get(cell.method, "")
    if cell.caller in ("API server", f"{verb} proxy"):
        return answer
    if cell.caller in UNKNOWN_TO_ANYBODY:
        return Answer("401", "" if cell.method == "HEAD" else "Unauthorized")
    asked = f"verb={verb}, resource=nodes, subresource(s)=[proxy]"
    return Answer("403", "" if cell.method == "HEAD" else f"Forbidden (user=<user>, {asked})")
