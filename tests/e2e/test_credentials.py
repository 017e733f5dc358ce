"""The agent has no more rights than a node has, and these are enough."""

import re
from datetime import datetime
from itertools import pairwise

from lab.cluster_api import Json
from lab.processes import wait_until
from tests.e2e.cluster import Namespace, is_ready, phase, until_term
from tests.e2e.local import LocalCluster

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
FRESH = 20
WATCHED, PODS = 300, 3
LEASE_RENEWAL_SECONDS = 15


def test_no_pod_fails_while_the_authorizer_learns_of_its_binding(namespace: Namespace) -> None:
    """Each pod comes right after its secret, bound, so that the node asks as early as can be."""
    for number in range(FRESH):
        namespace.create("Secret", f"s-{number}", {"stringData": {"k": "v"}})
        sources = [{"secret": {"name": f"s-{number}"}}]
        mounted = until_term("c", volumeMounts=[{"name": "v", "mountPath": "/v"}])
        namespace.add(
            f"p-{number}",
            mounted,
            nodeName=namespace.node,
            volumes=[{"name": "v", "projected": {"sources": sources}}],
        )
    pods = namespace.wait_all(lambda pods: len(pods) == FRESH and all(map(is_ready, pods)))
    assert {phase(pod) for pod in pods} == {"Running"}


def test_three_hundred_watches_do_not_hold_up_the_lease(
    local_cluster: LocalCluster, namespace: Namespace
) -> None:
    names = [f"n-{number}" for number in range(WATCHED // 2)]
    for name in names:
        namespace.create("Secret", name, {"stringData": {name: "v"}})
        namespace.create("ConfigMap", name, {"data": {f"c-{name}": "v"}})
    sources = [{kind: {"name": name}} for name in names for kind in ("secret", "configMap")]
    share = len(sources) // PODS
    for number in range(PODS):
        own = sources[number * share : (number + 1) * share]
        namespace.add(
            f"reader-{number}",
            until_term("c", volumeMounts=[{"name": "v", "mountPath": "/v"}]),
            volumes=[{"name": "v", "projected": {"sources": own}}],
        )
    namespace.wait_all(lambda pods: len(pods) == PODS and all(map(is_ready, pods)))
    wait_until(
        lambda: _watches(local_cluster) >= WATCHED,
        deadline_seconds=30,
        else_say=lambda: f"{_watches(local_cluster)} watches of secrets and config maps",
    )
    path = f"{LEASES}/{local_cluster.node}"
    renewals = [_renewed(local_cluster.api.get(path))]
    while len(renewals) < 3:
        lease = local_cluster.api.wait_for(
            path,
            lambda lease: _renewed(lease) > renewals[-1],
            deadline_seconds=LEASE_RENEWAL_SECONDS,
        )
        renewals.append(_renewed(lease))
    gaps = [(after - before).total_seconds() for before, after in pairwise(renewals)]
    assert max(gaps) < LEASE_RENEWAL_SECONDS


def _watches(cluster: LocalCluster) -> int:
    """How many watches of secrets and config maps the API server serves."""
    text = cluster.kubectl("get", "--raw", "/metrics")
    lines = re.findall(
        r'^apiserver_longrunning_requests\{[^}]*resource="(?:secrets|configmaps)"[^}]*'
        r'verb="WATCH"[^}]*\} (\d+)',
        text,
        re.MULTILINE,
    )
    return sum(map(int, lines))


def _renewed(lease: Json) -> datetime:
    return datetime.fromisoformat(lease["spec"]["renewTime"])
