"""Controllers' pods: they run, roll, scale, retry and go as users expect it."""

import uuid

from lab.cluster_api import Json
from tests.e2e.cluster import (
    Cluster,
    Namespace,
    container,
    is_ready,
    phase,
    shell,
    template,
    until_term,
    workload,
)


def test_a_deployment_of_twenty_is_rolled_and_scaled(namespace: Namespace) -> None:
    web = until_term("c", env=[{"name": "RELEASE", "value": "1"}])
    rolling = {"rollingUpdate": {"maxSurge": 5, "maxUnavailable": 5}}
    namespace.create("Deployment", "web", workload("web", web, replicas=20, strategy=rolling))
    namespace.kubectl("rollout", "status", "deployment/web", "--timeout=90s")
    assert len(namespace.pods("web")) == 20

    namespace.kubectl("set", "env", "deployment/web", "RELEASE=2")
    namespace.kubectl("rollout", "status", "deployment/web", "--timeout=90s")
    pods = namespace.wait_all(lambda pods: len(pods) == 20, "web")
    assert {_release(pod) for pod in pods} == {"2"}

    namespace.kubectl("scale", "deployment/web", "--replicas=3")
    pods = namespace.wait_all(lambda pods: len(pods) == 3, "web")
    assert all(map(is_ready, pods))
    namespace.kubectl("scale", "deployment/web", "--replicas=0")
    namespace.wait_all(lambda pods: not pods, "web")


def test_a_job_is_retried_until_its_pod_succeeds(namespace: Namespace) -> None:
    # Each pod leaves a mark in a folder of the host: the third of them finds two. Another run, at
    # the same time or one that was broken off, may have used the same namespace.
    folder = f"/tmp/{namespace.name}-{uuid.uuid4()}"
    script = 'echo x >>/shared/tries; [ "$(wc -l </shared/tries)" -ge 3 ]'
    mount = [{"name": "shared", "mountPath": "/shared"}]
    volume = {"name": "shared", "hostPath": {"path": folder, "type": "DirectoryOrCreate"}}
    pod = template(
        "tries",
        shell("c", f"trap 'rm -r /shared/*' 0; {script} || {{ trap - 0; exit 7; }}"),
        restartPolicy="Never",
        volumes=[volume],
    )
    pod["spec"]["containers"][0]["volumeMounts"] = mount
    namespace.create("Job", "tries", {"spec": {"backoffLimit": 4, "template": pod}})
    namespace.kubectl("wait", "--for=condition=Complete", "job/tries", "--timeout=110s")
    pods = namespace.pods("tries")
    assert sorted(map(phase, pods)) == ["Failed", "Failed", "Succeeded"]
    failed = [pod for pod in pods if phase(pod) == "Failed"]
    assert {container(pod)["state"]["terminated"]["exitCode"] for pod in failed} == {7}


def test_a_job_that_only_fails_is_given_up(namespace: Namespace) -> None:
    pod = template("fails", shell("c", "exit 3"), restartPolicy="Never")
    namespace.create("Job", "fails", {"spec": {"backoffLimit": 0, "template": pod}})
    namespace.kubectl("wait", "--for=condition=Failed", "job/fails", "--timeout=60s")
    status = namespace.api.get(namespace.path("Job", "fails"))["status"]
    assert status["failed"] == 1
    assert {each["type"]: each["reason"] for each in status["conditions"]}["Failed"] == (
        "BackoffLimitExceeded"
    )


def test_pods_of_a_stateful_set_come_in_order_and_keep_their_names(namespace: Namespace) -> None:
    body = workload("db", until_term("c", "hostname >/dev/termination-log"), replicas=3)
    body["spec"]["serviceName"] = "db"
    namespace.create("StatefulSet", "db", body)
    pods = namespace.wait_all(lambda pods: len(pods) == 3 and all(map(is_ready, pods)), "db")
    by_name = {pod["metadata"]["name"]: pod for pod in pods}
    assert set(by_name) == {"db-0", "db-1", "db-2"}
    started = [by_name[f"db-{number}"]["status"]["startTime"] for number in range(3)]
    assert started == sorted(started)
    assert by_name["db-1"]["spec"]["hostname"] == "db-1"

    namespace.kubectl("delete", "pod", "db-1")
    again = namespace.wait(
        "db-1",
        lambda pod: is_ready(pod) and pod["metadata"]["uid"] != by_name["db-1"]["metadata"]["uid"],
    )
    assert again["metadata"]["name"] == "db-1"


def test_a_daemon_set_has_its_pod_on_the_node(cluster: Cluster, namespace: Namespace) -> None:
    namespace.create("DaemonSet", "each", workload("each", until_term("c")))
    (pod,) = namespace.wait_all(lambda pods: len(pods) == 1 and is_ready(pods[0]), "each")
    assert pod["spec"]["nodeName"] == cluster.node
    namespace.kubectl("set", "env", "daemonset/each", "RELEASE=2")
    namespace.kubectl("rollout", "status", "daemonset/each", "--timeout=60s")
    (newer,) = namespace.wait_all(lambda pods: len(pods) == 1 and is_ready(pods[0]), "each")
    assert newer["metadata"]["uid"] != pod["metadata"]["uid"]


def _release(pod: Json) -> str:
    value: str = pod["spec"]["containers"][0]["env"][0]["value"]
    return value
