"""The example driver of dynamic resource allocation that others publish, on a real API server.

`nox -s dra_example` builds it; where it is not built the test is skipped, for that takes minutes.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab import dra_example_driver
from lab.cluster_api import Json
from lab.orphans import marked
from lab.processes import wait_until
from tests.e2e.cluster import DEADLINE_SECONDS, Namespace, container, until_term
from tests.e2e.local import LocalCluster

GROUP = "/apis/resource.k8s.io/v1"
DRIVER = "gpu.example.com"
GPUS = 2


@contextmanager
def example_driver(cluster: LocalCluster) -> Iterator[None]:
    """The driver as a process, which is killed at the end."""
    root = cluster.agent.root
    options = {
        "node-name": cluster.node,
        "num-devices": GPUS,
        "cdi-root": cluster.containerd.cdi_specifications,
        "kubelet-registrar-directory-path": root / "plugins_registry",
        "kubelet-plugins-directory-path": root / "plugins",
        "kubeconfig": cluster.control_plane.folder / "admin.conf",
    }
    command = [str(dra_example_driver.program())]
    command += [f"--{name}={value}" for name, value in options.items()]
    with subprocess.Popen(command, env=marked(os.environ)) as process:
        try:
            yield
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def device_class(local_cluster: LocalCluster) -> Iterator[None]:
    """The class of the driver's devices."""
    api, path = local_cluster.api, f"{GROUP}/deviceclasses"
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    api.create(path, {"metadata": {"name": DRIVER}, "spec": {"selectors": [selector]}})
    yield
    api.delete(f"{path}/{DRIVER}")


def published(cluster: LocalCluster) -> int:
    """The number of devices that the scheduler knows of."""
    slices: list[Json] = cluster.api.get(f"{GROUP}/resourceslices")["items"]
    ours = (each["spec"] for each in slices if each["spec"]["driver"] == DRIVER)
    return sum(len(spec["devices"]) for spec in ours)


def given(namespace: Namespace, name: str) -> set[str]:
    """What the driver gave a pod's container: variables of its devices."""
    return {line for line in namespace.kubectl("logs", name).split() if line.startswith("GPU")}


def gpu_files(cluster: LocalCluster) -> set[str]:
    """What the driver keeps of prepared claims for the runtime."""
    folder: Path = cluster.containerd.cdi_specifications
    return {path.name for path in folder.glob("*") if "claim" in path.name}


@pytest.mark.skipif(not dra_example_driver.is_built(), reason="`nox -s dra_example` builds it")
def test_claims_of_a_driver_of_others_are_prepared_and_undone(
    local_cluster: LocalCluster, namespace: Namespace, device_class: None
) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}
    namespace.api.create(
        f"{GROUP}/namespaces/{namespace.name}/resourceclaimtemplates",
        {"metadata": {"name": "t"}, "spec": {"spec": {"devices": {"requests": [request]}}}},
    )
    claims = {"resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}]}
    user = until_term("c", "env", resources={"claims": [{"name": "c"}]})
    with example_driver(local_cluster):
        wait_until(
            lambda: published(local_cluster) == GPUS,
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"{published(local_cluster)} devices are published",
        )
        for name in ("first", "second"):
            namespace.run(name, user, **claims)
        first, second = given(namespace, "first"), given(namespace, "second")
        assert first
        assert second
        assert first != second
    namespace.api.delete(namespace.path("Pod", "first"))
    # Killed, it leaves its sockets behind.
    namespace.wait_event("first", "FailedSync", "unprepare dynamic resources")
    assert container(namespace.pod("second"))["restartCount"] == 0
    with example_driver(local_cluster):
        for name in ("first", "second"):
            namespace.api.delete(namespace.path("Pod", name))
            namespace.wait_gone(name)
        assert gpu_files(local_cluster) == set()
        namespace.run("third", user, **claims)
        assert given(namespace, "third")
        namespace.api.delete(namespace.path("Pod", "third"))
        namespace.wait_gone("third")
