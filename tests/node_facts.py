"""Nodes for tests of what is made for their pods: a few facts, the settings that matter."""

from pathlib import Path
from typing import Any

from attrs import evolve

from trio_kubelet import DEFAULT_ROOT
from trio_kubelet.config import Settings
from trio_kubelet.config.gates import FeatureGates
from trio_kubelet.config.model import NodeOptions
from trio_kubelet.runtime.node_facts import NodeFacts


def node_facts(root: Path | str = DEFAULT_ROOT, **facts: Any) -> NodeFacts:
    """A node with these facts and default settings, with its --root-dir at `root`."""
    settings = Settings(options=NodeOptions(root_dir=str(root)))
    return NodeFacts(**{"settings": settings, "memory_capacity_bytes": 1 << 30, **facts})


def configured(node: NodeFacts, **fields: Any) -> NodeFacts:
    """The node with these fields of its KubeletConfiguration."""
    configuration = evolve(node.configuration, **fields)
    return evolve(node, settings=evolve(node.settings, configuration=configuration))


def gated(node: NodeFacts, **gates: bool) -> NodeFacts:
    """The node with these feature gates."""
    effective = FeatureGates({**node.settings.gates, **gates})
    return evolve(node, settings=evolve(node.settings, gates=effective))
