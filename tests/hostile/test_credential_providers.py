"""What the programs of image credential providers can do: the pods that need none go on.

They are the administrator's, but an image's name, which any pod has, makes them run.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from lab.agent import LabAgent, is_running, pod_manifest
from lab.processes import wait_until
from tests.hostile.victims import DEADLINE_SECONDS, Victims

PODS = 10
VERSION = "credentialprovider.kubelet.k8s.io/v1"
ANSWER = {"apiVersion": VERSION, "kind": "CredentialProviderResponse", "cacheKeyType": "Image"}
ENTRIES = {**ANSWER, "auth": {f"{number}.test": {} for number in range(100_000)}}
FEWER_ENTRIES = {**ANSWER, "auth": {f"r{number}": {} for number in range(18_000)}}
"""As many as the bytes of an answer have room for."""
CHILDREN = 50

PROGRAMS: Mapping[str, tuple[str, str]] = {
    "hangs": ("echo >asked-$0; sleep 1000", ""),
    "writes": ("exec yes", "its answer has more than 262144 bytes"),
    "complains": ("exec yes >&2", "it wrote more than 1048576 bytes to its standard error"),
    "knows": ("cat entries", "its answer has more than 262144 bytes"),
    "knows-less": ("cat fewer-entries", "returned more than 1000 logins"),
    "forks": (
        f"for n in $(seq {CHILDREN}); do sleep 1000 & echo $! >>children; done; echo no",
        "error decoding credential provider plugin",
    ),
}
"""What each program does in the folder of programs, and what the log says of it."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs; each is for the registry of its name."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "entries").write_text(json.dumps(ENTRIES))
    (folder / "fewer-entries").write_text(json.dumps(FEWER_ENTRIES, separators=(",", ":")))
    for name, (script, _) in PROGRAMS.items():
        (folder / name).write_text(f"#!/bin/sh\ncd {folder}\n{script}\n".replace("$0", name))
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def victims(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victims]:
    folder = tmp_path_factory.mktemp("providers")
    config = folder / "providers.json"
    providers = [
        {
            "name": name,
            "apiVersion": VERSION,
            "matchImages": [f"{name}.test"],
            "defaultCacheDuration": "0s",
        }
        for name in PROGRAMS
    ]
    config.write_text(
        json.dumps(
            {
                "apiVersion": "kubelet.config.k8s.io/v1",
                "kind": "CredentialProviderConfig",
                "providers": providers,
            }
        )
    )
    flags = (
        f"--image-credential-provider-config={config}",
        f"--image-credential-provider-bin-dir={programs}",
    )
    with LabAgent(folder, flags=flags) as agent:
        yield Victims.of(agent, {"name": "c", "image": "good"})


@pytest.mark.parametrize("name", PROGRAMS)
def test_pods_for_whose_images_a_program_is_asked(
    victims: Victims, programs: Path, name: str
) -> None:
    agent, (_, words) = victims.agent, PROGRAMS[name]
    names = [f"hostile-{name}-{number}" for number in range(PODS)]
    with victims.undisturbed():
        for number, pod in enumerate(names):
            container = {"name": "c", "image": f"{name}.test/{number}"}
            agent.write(f"{pod}.json", pod_manifest(pod, container))
        wait_until(
            lambda: (
                words in agent.log.read_text() if words else (programs / f"asked-{name}").exists()
            ),
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"the program did nothing: {agent.last_words()}",
        )
        other = f"other-than-{name}"
        agent.write(f"{other}.json", pod_manifest(other, {"name": "c", "image": f"{other}:1"}))
        victims.wait_pod(other, is_running)
    for pod in (*names, other):
        agent.remove(f"{pod}.json")
    agent.wait_for(lambda pods: all(pod.startswith("good-") for pod in pods))
    wait_until(
        lambda: not living_children(programs),
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: f"children are left: {living_children(programs)}",
    )


def living_children(programs: Path) -> list[str]:
    """The processes that programs have left."""
    noted = programs / "children"
    ids = noted.read_text().split() if noted.exists() else []
    return [each for each in ids if Path("/proc", each).exists()]
