"""What the author of one pod can ask for without disturbing anybody."""

from collections.abc import Iterator
from contextlib import contextmanager

from lab.agent import Json, pod_manifest
from tests.hostile.conftest import Victims

CONFIG_ERROR = "CreateContainerConfigError"


@contextmanager
def attack(victims: Victims, manifest: Json | str) -> Iterator[None]:
    """A manifest that is there until the end of the block."""
    with victims.undisturbed():
        victims.agent.write("attack.yaml", manifest)
        yield
    victims.agent.remove("attack.yaml")


def hostile(**fields: object) -> Json:
    return pod_manifest("hostile", {"name": "c", "image": "hostile", **fields})


def test_variables_that_double(victims: Victims) -> None:
    env = [{"name": "V0", "value": "x" * 100}]
    env += [{"name": f"V{n}", "value": f"$(V{n - 1})$(V{n - 1})"} for n in range(1, 41)]
    with attack(victims, hostile(env=env)):
        victims.wait_waiting("hostile", CONFIG_ERROR)


def test_a_command_that_repeats_a_long_variable(victims: Victims) -> None:
    env = [{"name": "V", "value": "x" * 500_000}]
    with attack(victims, hostile(env=env, command=["$(V)" * 1000])):
        victims.wait_waiting("hostile", CONFIG_ERROR)


def test_a_reference_that_is_never_closed(victims: Victims) -> None:
    with attack(victims, hostile(args=["$(" * 100_000])):
        victims.wait_journal("Container started")


def test_a_sub_path_that_repeats_a_long_variable(victims: Victims) -> None:
    mount = {"name": "v", "mountPath": "/v", "subPathExpr": "$(V)" * 1000}
    manifest = hostile(env=[{"name": "V", "value": "x" * 100_000}], volumeMounts=[mount])
    manifest["spec"]["volumes"] = [{"name": "v", "emptyDir": {}}]
    with attack(victims, manifest):
        victims.wait_waiting("hostile", CONFIG_ERROR)


def test_a_probe_whose_command_repeats_a_long_variable(victims: Victims) -> None:
    env = [{"name": "V", "value": "x" * 500_000}]
    probe = {"exec": {"command": ["$(V)" * 1000]}, "periodSeconds": 1}
    with attack(victims, hostile(env=env, readinessProbe=probe)):
        victims.wait_journal("command is too large")


def test_thousands_of_ports_of_the_host(victims: Victims) -> None:
    ports = [{"containerPort": 1 + n, "hostPort": 10_000 + n} for n in range(6000)]
    with attack(victims, hostile(ports=ports)):
        victims.wait_journal("Container started")


def test_aliases_of_long_text(victims: Victims) -> None:
    text = f"text: &t {'x' * 500_000}\nlist: [{', '.join(['*t'] * 5000)}]"
    with attack(victims, text):
        victims.wait_journal("aliases count as what they repeat")
