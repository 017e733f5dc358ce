"""`topologyManagerPolicyOptions`: the options of the topology manager."""

from collections.abc import Iterator, Mapping

from trio_kubelet.config.cpu_policy import FALSE_WORDS, TRUE_WORDS
from trio_kubelet.config.gates import FeatureGates
from trio_kubelet.config.model import KubeletConfiguration

NONE, BEST_EFFORT, RESTRICTED, SINGLE_NUMA_NODE = (
    "none",
    "best-effort",
    "restricted",
    "single-numa-node",
)
PREFER_CLOSEST = "prefer-closest-numa-nodes"
MAX_NODES = "max-allowable-numa-nodes"
DEFAULT_MAX_NODES = 8

MOST_NODES = 12
"""NUMA nodes that can be dealt with at all: each one more doubles the sets that are looked at."""


def prefers_closest_nodes(words: Mapping[str, str]) -> bool:
    """True if nodes that are near to one another are better than others of the same number."""
    return words.get(PREFER_CLOSEST, "") in TRUE_WORDS


def max_numa_nodes(words: Mapping[str, str]) -> int:
    """The number of NUMA nodes up to which a machine is dealt with."""
    return int(words.get(MAX_NODES, DEFAULT_MAX_NODES))


def validate_topology_manager(
    configuration: KubeletConfiguration, gates: FeatureGates
) -> Iterator[str]:
    """Yield what is wrong with the options, one line each."""
    options = configuration.topology_manager_policy_options
    if options and not gates["TopologyManagerPolicyOptions"]:
        yield (
            "topologyManagerPolicyOptions (--topology-manager-policy-options) requires feature "
            "gate TopologyManagerPolicyOptions"
        )
    for name, word in options.items():
        if name == PREFER_CLOSEST:
            if word not in TRUE_WORDS | FALSE_WORDS:
                yield f'bad value for option "{name}": "{word}" must be true or false'
        elif name != MAX_NODES:
            yield f'unknown Topology Manager Policy option: "{name}"'
        elif not (word.isascii() and word.isdigit() and len(word) <= 4):
            yield f'bad value for option "{name}": "{word}" must be a number'
        elif int(word) < DEFAULT_MAX_NODES:
            yield f"the minimum value of {name} must not be less than {DEFAULT_MAX_NODES}"
        elif int(word) > MOST_NODES:
            yield f'option "{name}" must not be more than {MOST_NODES}'
