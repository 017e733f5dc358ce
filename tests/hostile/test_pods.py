"""What the author of one pod can ask for without disturbing anybody."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lab.agent import Json, LabAgent, is_running, pod_manifest
from lab.processes import wait_until
from tests.hostile.conftest import log_of
from tests.hostile.victims import DEADLINE_SECONDS, Victims

CONFIG_ERROR = "CreateContainerConfigError"


def hostile(**fields: object) -> Json:
    return pod_manifest("hostile", {"name": "c", "image": "hostile", **fields})


def test_variables_that_double(victims: Victims) -> None:
    env = [{"name": "V0", "value": "x" * 100}]
    env += [{"name": f"V{n}", "value": f"$(V{n - 1})$(V{n - 1})"} for n in range(1, 41)]
    with victims.beside(hostile(env=env)):
        victims.wait_waiting("hostile", CONFIG_ERROR)


def test_a_command_that_repeats_a_long_variable(victims: Victims) -> None:
    env = [{"name": "V", "value": "x" * 500_000}]
    with victims.beside(hostile(env=env, command=["$(V)" * 1000])):
        victims.wait_waiting("hostile", CONFIG_ERROR)


def test_a_reference_that_is_never_closed(victims: Victims) -> None:
    with victims.beside(hostile(args=["$(" * 100_000])):
        victims.wait_journal("Container started")


def test_a_sub_path_that_repeats_a_long_variable(victims: Victims) -> None:
    mount = {"name": "v", "mountPath": "/v", "subPathExpr": "$(V)" * 1000}
    manifest = hostile(env=[{"name": "V", "value": "x" * 100_000}], volumeMounts=[mount])
    manifest["spec"]["volumes"] = [{"name": "v", "emptyDir": {}}]
    with victims.beside(manifest):
        victims.wait_waiting("hostile", CONFIG_ERROR)


def test_a_probe_whose_command_repeats_a_long_variable(victims: Victims) -> None:
    env = [{"name": "V", "value": "x" * 500_000}]
    probe = {"exec": {"command": ["$(V)" * 1000]}, "periodSeconds": 1}
    with victims.beside(hostile(env=env, readinessProbe=probe)):
        victims.wait_journal("command is too large")


def test_thousands_of_ports_of_the_host(victims: Victims) -> None:
    ports = [{"containerPort": 1 + n, "hostPort": 10_000 + n} for n in range(4096)]
    with victims.beside(hostile(ports=ports)):
        victims.wait_journal("Container started")


def test_aliases_of_long_text(victims: Victims) -> None:
    text = f"text: &t {'x' * 500_000}\nlist: [{', '.join(['*t'] * 5000)}]"
    with victims.beside(text):
        victims.wait_journal("aliases count as what they repeat")


def many(count: int, make: Callable[[int], Json]) -> list[Json]:
    return [make(number) for number in range(count)]


def mounts(count: int) -> list[Json]:
    return many(count, lambda n: {"name": "v", "mountPath": f"/v/{n}", "subPath": str(n)})


def images(prefix: str, count: int) -> list[Json]:
    return many(count, lambda n: {"name": f"{prefix}{n}", "image": f"many-{n}"})


def resources(count: int, start: int = 0) -> Json:
    amounts = {f"a.b/c{number}": "0" for number in range(start, start + count)}
    return {"requests": amounts, "limits": amounts}


def with_mounts(count: int) -> Json:
    return pod_manifest(
        "hostile",
        {"name": "c", "image": "c", "volumeMounts": mounts(count)},
        volumes=[{"name": "v", "emptyDir": {}}],
    )


MANY: dict[str, Json] = {
    "variables": hostile(env=many(25_000, lambda n: {"name": f"E{n}", "value": "x"})),
    "arguments": hostile(args=["x"] * 100_000),
    "capabilities": hostile(
        securityContext={"capabilities": {"add": [f"C{n}" for n in range(60_000)]}}
    ),
    "containers": pod_manifest("hostile", *images("c", 500)),
    "init-containers": pod_manifest(
        "hostile", {"name": "c", "image": "c"}, initContainers=images("i", 499)
    ),
    "long-names-of-images": pod_manifest(
        "hostile", *many(400, lambda n: {"name": f"c{n}", "image": f"{n}-" + "a" * 4000})
    ),
    "resources": pod_manifest(
        "hostile", *({**each, "resources": resources(8)} for each in images("r", 500))
    ),
    "mounts": with_mounts(4096),
    "ports": hostile(ports=many(4096, lambda n: {"containerPort": 1 + n})),
    "groups": pod_manifest(
        "hostile",
        {"name": "c", "image": "c"},
        securityContext={"supplementalGroups": list(range(100_000))},
    ),
    "host-aliases": pod_manifest(
        "hostile",
        {"name": "c", "image": "c"},
        # As many as an object of the API server has room for.
        hostAliases=many(40_000, lambda n: {"ip": "10.0.0.1", "hostnames": [f"h{n}"]}),
    ),
    "gates": pod_manifest(
        "hostile",
        {"name": "c", "image": "c"},
        readinessGates=many(20_000, lambda n: {"conditionType": f"a.b/c{n}"}),
    ),
}


@pytest.mark.parametrize("name", MANY)
def test_many_of_what_a_pod_can_have(victims: Victims, name: str) -> None:
    with victims.beside(MANY[name]):
        victims.wait_journal("Container started")


@pytest.mark.parametrize("length", [4097, 700_000])
def test_an_image_with_a_name_that_is_too_long(victims: Victims, length: int) -> None:
    manifest = pod_manifest("hostile", {"name": "c", "image": "a" * length})
    with victims.beside(manifest):
        victims.wait_waiting("hostile", "InvalidImageName")


ONE = {"name": "c", "image": "c"}
TOO_MANY: dict[str, tuple[str, Json]] = {
    "containers": ("TooManyContainers", pod_manifest("hostile", *images("more", 4000))),
    "init-containers": (
        "TooManyContainers",
        pod_manifest("hostile", ONE, initContainers=images("more", 4000)),
    ),
    "mounts": ("TooManyVolumeMounts", with_mounts(20_000)),
    "volumes": (
        "TooManyVolumes",
        pod_manifest(
            "hostile", ONE, volumes=many(30_000, lambda n: {"name": f"v{n}", "emptyDir": {}})
        ),
    ),
    "ports": (
        "TooManyPorts",
        hostile(ports=many(40_000, lambda n: {"containerPort": 1 + n})),
    ),
    "resources": ("TooManyResources", hostile(resources=resources(40_000))),
    "resources-in-parts": (
        "TooManyResources",
        pod_manifest(
            "hostile",
            *many(500, lambda n: {"name": f"c{n}", "image": "c", "resources": resources(40, n)}),
        ),
    ),
}


@pytest.mark.parametrize("name", TOO_MANY)
def test_more_than_a_pod_may_have(victims: Victims, name: str) -> None:
    reason, manifest = TOO_MANY[name]
    with victims.beside(manifest):
        victims.wait_pod("hostile", lambda pod: pod["status"].get("reason") == reason)


def test_hooks_that_are_long_in_the_lists_of_the_runtime(tmp_path: Path) -> None:
    """Each `<` is six bytes in them, no list may have more than 16 MiB, and all need lists."""
    hook = {"preStop": {"exec": {"command": ["<" * 900_000]}}}
    names = [f"hostile-{number}" for number in range(4)]
    settings = {"featureGates": {"EventedPLEG": False}}
    with LabAgent(tmp_path, settings=settings) as agent:
        victims = Victims.of(agent, ONE)
        with victims.undisturbed():
            for name in names:
                agent.write(f"{name}.json", pod_manifest(name, {**ONE, "lifecycle": hook}))
            for name in names:
                victims.wait_pod(name, is_running)
            victims.wait_relist()


def test_thousands_of_pods_in_a_manifest(victims: Victims) -> None:
    pods = many(
        3000, lambda n: {"metadata": {"name": f"hostile-{n}"}, "spec": {"containers": [ONE]}}
    )
    with victims.undisturbed():
        victims.agent.write("attack.yaml", {"apiVersion": "v1", "kind": "PodList", "items": pods})
        victims.wait_rejected(2500)
        victims.agent.remove("attack.yaml")
        victims.agent.wait_for(lambda pods: not any(name.startswith("hostile") for name in pods))


def downward(count: int) -> Json:
    """A pod whose annotations are asked for again and again."""
    whole = {"fieldRef": {"fieldPath": "metadata.annotations"}}
    items = many(count, lambda n: {"path": f"f{n}", **whole})
    manifest = pod_manifest(
        "hostile",
        {"name": "c", "image": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]},
        volumes=[{"name": "v", "downwardAPI": {"items": items}}],
    )
    manifest["metadata"]["annotations"] = {"a/b": "\u200b" * 80_000}
    return manifest


def test_annotations_in_thousands_of_files(victims: Victims) -> None:
    with victims.beside(downward(5000)):
        victims.wait_journal("the files of the volume have more than 8388608 bytes")


def test_thousands_of_volumes_that_cannot_be_mounted(victims: Victims) -> None:
    names = [f"v{n}" for n in range(4096)]
    mounted = [{"name": name, "mountPath": f"/{name}"} for name in names]
    manifest = pod_manifest(
        "hostile",
        {"name": "c", "image": "c", "volumeMounts": mounted},
        volumes=[{"name": name, "hostPath": {"path": "/no", "type": "File"}} for name in names],
    )
    with victims.beside(manifest):
        victims.wait_journal("more volumes failed")


FILES = 50_000


def test_thousands_of_files_of_a_pod(victims: Victims) -> None:
    """In a volume and beside its log: they are counted, looked at for rotation, and removed."""
    mount = {"name": "v", "mountPath": "/v"}
    manifest = pod_manifest(
        "hostile",
        {"name": "c", "image": "c", "volumeMounts": [mount]},
        volumes=[{"name": "v", "emptyDir": {}}],
    )
    agent = victims.agent
    with victims.undisturbed():
        agent.write("attack.yaml", manifest)
        victims.wait_pod("hostile", is_running)
        log, _ = log_of(agent, "hostile")
        pods = agent.pods()
        uid = next(pods[name]["metadata"]["uid"] for name in pods if name.startswith("hostile"))
        volume = agent.root / "pods" / uid / "volumes" / "kubernetes.io~empty-dir" / "v"
        for number in range(FILES):
            (volume / str(number)).touch()
            (log.parent / f"0.log.{number}").touch()
        agent.read("/stats/summary")
        agent.remove("attack.yaml")
        wait_until(
            lambda: not volume.exists() and not log.parent.exists(),
            deadline_seconds=2 * DEADLINE_SECONDS,
            else_say=lambda: f"files are left: {volume.exists()}, {log.parent.exists()}",
        )
