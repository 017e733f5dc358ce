"""The settings of the CPU manager: which go together, and in which words others are refused."""

from datetime import timedelta
from typing import Any

import pytest

from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.config.cpu_policy import (
    STAGES,
    CpuPolicyOptions,
    cpu_policy_options,
    validate_cpu_manager,
)
from trio_kubelet.config.gates import resolve

NO_CPUS = (
    "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater "
    "than zero; set systemReserved, kubeReserved or reservedSystemCPUs"
)
ALPHA = {"CPUManagerPolicyAlphaOptions": True}


def problems(
    options: dict[str, str] | None = None, gates: dict[str, bool] | None = None, **fields: Any
) -> list[str]:
    settings = {"cpu_manager_policy": "static", "reserved_system_cpus": "0", **fields}
    configuration = KubeletConfiguration(cpu_manager_policy_options=options or {}, **settings)
    return list(validate_cpu_manager(configuration, resolve(gates or {}).gates))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"reserved_system_cpus": ""}, [NO_CPUS]),
        ({"reserved_system_cpus": "", "system_reserved": {"cpu": "0", "memory": "1Gi"}}, [NO_CPUS]),
        ({"reserved_system_cpus": "", "system_reserved": {"cpu": "100m"}}, []),
        ({"reserved_system_cpus": "", "kube_reserved": {"cpu": "1"}}, []),
        ({"reserved_system_cpus": "", "kube_reserved": {"cpu": "much"}}, []),
        ({"reserved_system_cpus": "", "cpu_manager_policy": "none"}, []),
        ({"reserved_system_cpus": "0-1"}, []),
    ],
)
def test_the_static_policy_needs_a_reserved_cpu(fields: dict[str, Any], told: list[str]) -> None:
    assert problems(**fields) == told


@pytest.mark.parametrize("milliseconds", [0, 99])
def test_looks_at_all_containers_leave_time_for_other_things(milliseconds: int) -> None:
    period = timedelta(milliseconds=milliseconds)
    (told,) = problems(cpu_manager_reconcile_period=period)
    assert told.endswith("must be at least 100ms")
    assert problems(cpu_manager_reconcile_period=timedelta(milliseconds=100)) == []


@pytest.mark.parametrize(
    ("options", "gates", "told"),
    [
        ({"full-pcpus-only": "true"}, {}, []),
        ({"strict-cpu-reservation": "1", "distribute-cpus-across-numa": "True"}, {}, []),
        ({"align-by-socket": "t", "prefer-align-cpus-by-uncorecache": "f"}, ALPHA, []),
        ({"full-cpus": "true"}, {}, ['unknown CPU Manager Policy option: "full-cpus"']),
        (
            {"full-pcpus-only": "yes"},
            {},
            ['bad value for option "full-pcpus-only": "yes" must be true or false'],
        ),
        (
            {"align-by-socket": "true"},
            {},
            [
                "CPU Manager Policy Alpha-level Options not enabled, "
                'but option "align-by-socket" provided'
            ],
        ),
        (
            {"distribute-cpus-across-numa": "false"},
            {"CPUManagerPolicyBetaOptions": False},
            [
                "CPU Manager Policy Beta-level Options not enabled, "
                'but option "distribute-cpus-across-numa" provided'
            ],
        ),
        (
            {"full-pcpus-only": "true", "distribute-cpus-across-cores": "true"},
            ALPHA,
            [
                "static policy options full-pcpus-only and distribute-cpus-across-cores "
                "can not be used at the same time"
            ],
        ),
        ({"full-pcpus-only": "true", "distribute-cpus-across-cores": "false"}, ALPHA, []),
    ],
)
def test_options_are_checked(
    options: dict[str, str], gates: dict[str, bool], told: list[str]
) -> None:
    assert problems(options, gates) == told


def test_sockets_and_single_numa_nodes_do_not_go_together() -> None:
    told = problems({"align-by-socket": "true"}, ALPHA, topology_manager_policy="single-numa-node")
    assert told == [
        "Topology manager single-numa-node policy is incompatible with "
        "CPUManager align-by-socket option"
    ]


def test_the_policy_none_has_no_options() -> None:
    (told,) = problems({"full-pcpus-only": "true"}, cpu_manager_policy="none")
    assert "the none policy has no options" in told


def test_options_are_read_as_go_reads_them() -> None:
    words = {"full-pcpus-only": "T", "align-by-socket": "0"}
    assert cpu_policy_options(words) == CpuPolicyOptions(full_pcpus_only=True)


@pytest.mark.parametrize("name", STAGES)
def test_each_option_is_switched_on_by_its_own_name(name: str) -> None:
    on = CpuPolicyOptions(**{name.replace("-", "_"): True})
    assert cpu_policy_options({name: "true"}) == on
