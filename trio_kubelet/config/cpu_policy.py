"""`cpuManagerPolicyOptions`: the options of the static CPU manager policy, and what they rule out.

Options have stages of their own, which gates show or hide: `CPUManagerPolicyBetaOptions` and
`CPUManagerPolicyAlphaOptions`.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta

from attrs import fields, frozen

from trio_kubelet.config.codec import format_duration
from trio_kubelet.config.gates import FeatureGates, Stage
from trio_kubelet.config.model import KubeletConfiguration
from trio_kubelet.k8s.quantity import Quantity

NONE, STATIC = "none", "static"

TRUE_WORDS = frozenset({"1", "t", "T", "TRUE", "true", "True"})
FALSE_WORDS = frozenset({"0", "f", "F", "FALSE", "false", "False"})

STAGES: Mapping[str, Stage] = {
    "align-by-socket": Stage.ALPHA,
    "distribute-cpus-across-cores": Stage.ALPHA,
    "distribute-cpus-across-numa": Stage.BETA,
    "full-pcpus-only": Stage.GA,
    "prefer-align-cpus-by-uncorecache": Stage.BETA,
    "strict-cpu-reservation": Stage.GA,
}
STAGE_GATES = {
    Stage.ALPHA: ("Alpha", "CPUManagerPolicyAlphaOptions"),
    Stage.BETA: ("Beta", "CPUManagerPolicyBetaOptions"),
}
INCOMPATIBLE = (
    ("full-pcpus-only", "distribute-cpus-across-cores"),
    ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"),
    ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"),
)

SHORTEST_PERIOD = timedelta(milliseconds=100)
"""Between two looks at all containers; changes are acted on at once."""

_FIELD = "cpuManagerPolicyOptions (--cpu-manager-policy-options)"


@frozen(kw_only=True)
class CpuPolicyOptions:
    """The options, by their names with `_` for `-`."""

    align_by_socket: bool = False
    distribute_cpus_across_cores: bool = False
    distribute_cpus_across_numa: bool = False
    full_pcpus_only: bool = False
    prefer_align_cpus_by_uncorecache: bool = False
    strict_cpu_reservation: bool = False


def cpu_policy_options(words: Mapping[str, str]) -> CpuPolicyOptions:
    """The options that the words of a configuration switch on, which was found valid."""
    names = {field.name: field.name.replace("_", "-") for field in fields(CpuPolicyOptions)}
    return CpuPolicyOptions(
        **{attribute: words.get(name, "") in TRUE_WORDS for attribute, name in names.items()}
    )


def validate_cpu_manager(configuration: KubeletConfiguration, gates: FeatureGates) -> Iterator[str]:
    """Yield what is wrong with policy, options and reserved CPUs, one line each."""
    options = configuration.cpu_manager_policy_options
    if configuration.cpu_manager_policy != STATIC:
        if options:
            yield f"{_FIELD}: the none policy has no options, set cpuManagerPolicy to static"
        return
    if configuration.cpu_manager_reconcile_period < SHORTEST_PERIOD:
        yield (
            "cpuManagerReconcilePeriod (--cpu-manager-reconcile-period) "
            f"{format_duration(configuration.cpu_manager_reconcile_period)} must be at least "
            f"{format_duration(SHORTEST_PERIOD)}"
        )
    if not _reserves_cpus(configuration):
        yield (
            "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be "
            "greater than zero; set systemReserved, kubeReserved or reservedSystemCPUs"
        )
    yield from (problem for each in options.items() for problem in _option(*each, gates))
    is_on = {name for name, word in options.items() if word in TRUE_WORDS}
    for one, other in INCOMPATIBLE:
        if is_on >= {one, other}:
            yield f"static policy options {one} and {other} can not be used at the same time"
    if "align-by-socket" in is_on and configuration.topology_manager_policy == "single-numa-node":
        yield (
            "Topology manager single-numa-node policy is incompatible with "
            "CPUManager align-by-socket option"
        )


def _option(name: str, word: str, gates: FeatureGates) -> Iterator[str]:
    if name not in STAGES:
        yield f'unknown CPU Manager Policy option: "{name}"'
        return
    stage, gate = STAGE_GATES.get(STAGES[name], ("", ""))
    if gate and not gates[gate]:
        yield f'CPU Manager Policy {stage}-level Options not enabled, but option "{name}" provided'
    if word not in TRUE_WORDS | FALSE_WORDS:
        yield f'bad value for option "{name}": "{word}" must be true or false'


def _reserves_cpus(configuration: KubeletConfiguration) -> bool:
    """True if CPUs are kept from pods. An amount that is none is told of by another rule."""
    if configuration.reserved_system_cpus:
        return True
    for amounts in (configuration.system_reserved, configuration.kube_reserved):
        try:
            if Quantity(amounts.get("cpu", "0")) > Quantity(0):
                return True
        except ValueError:
            return True
    return False
