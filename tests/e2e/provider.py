"""Which cluster the end-to-end tests run on, as the environment says."""

from collections.abc import Callable, Mapping

from lab import LabError

ANY, LOCAL, GUEST, KIND = "any", "local", "guest", "kind"
GO = "go"


def chosen_provider(environment: Mapping[str, str], *, has_kind: Callable[[], bool]) -> str:
    """The one that was asked for; else `kind` where the host has it, and `local` elsewhere.

    The Go kubelet is in the agent's place with `local` alone. LabError where the environment asks
    for what there is not, as the tests would run on something else.
    """
    asked = environment.get("TRIO_KUBELET_E2E") or ANY
    agent = environment.get("TRIO_KUBELET_E2E_AGENT") or ""
    if asked not in (ANY, LOCAL, GUEST, KIND):
        raise LabError(f"TRIO_KUBELET_E2E={asked}: there are {LOCAL}, {GUEST} and {KIND}")
    if agent not in ("", GO):
        raise LabError(f"TRIO_KUBELET_E2E_AGENT={agent}: there is {GO}")
    if asked == ANY:
        return KIND if not agent and has_kind() else LOCAL
    if agent and asked != LOCAL:
        raise LabError(
            f"TRIO_KUBELET_E2E_AGENT={agent} is for TRIO_KUBELET_E2E={LOCAL}, not {asked}"
        )
    return asked


def is_docker_in_guest(environment: Mapping[str, str]) -> bool:
    """Whether kind is to have a Docker in a machine; LabError for what there is not."""
    asked = environment.get("TRIO_KUBELET_KIND_DOCKER") or ""
    if asked not in ("", GUEST):
        raise LabError(f"TRIO_KUBELET_KIND_DOCKER={asked}: there is {GUEST}")
    return asked == GUEST
