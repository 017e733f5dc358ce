"""Writes docs/settings.md out of the tables of what the agent acts on.

python -m trio_kubelet.config.support_page >docs/settings.md
"""

from collections.abc import Iterable, Iterator, Mapping

from trio_kubelet.config import field_support, gate_support
from trio_kubelet.config.codec import to_wire
from trio_kubelet.config.flag_table import COLLECTOR_FLAGS, OPTION_FLAGS
from trio_kubelet.config.gate_table import KNOWN_GATES
from trio_kubelet.config.model import KubeletConfiguration

INTRODUCTION = """# What the agent does with settings and feature gates

All fields of KubeletConfiguration, all flags and all feature gates of Kubernetes 1.36 are read \
and checked. Those that the agent does not act on yet are below; all others it acts on, or they \
have no effect in the Go kubelet either.

What is set to other than its default, or than what the agent does, is named in one warning at \
the start. A default is not: **bold** are the fields and gates whose defaults promise what is not \
there yet.

Written by `python -m trio_kubelet.config.support_page`.
"""

PROMISING_DEFAULTS = frozenset(
    """
    imageGCHighThresholdPercent imageGCLowThresholdPercent containerLogMaxFiles
    containerLogMaxSize evictionHard volumePluginDir
    """.split()  # noqa: SIM905 - names in prose form, as in the tables
)
"""Fields that do something in a Go kubelet though nobody sets them."""


def page() -> str:
    """The whole page."""
    return "\n".join((INTRODUCTION, *_fields(), "", *_flags(), "", *_gates())) + "\n"


def _fields() -> Iterator[str]:
    yield "## Fields\n"
    yield "| waits for | fields |"
    yield "|---|---|"
    waiting = {capability: set(names) for capability, names in field_support.NOT_YET.items()}
    for name, (capability, _) in field_support.PARTLY.items():
        waiting[capability].add(name)
    yield from _rows(waiting, PROMISING_DEFAULTS)
    yield ""
    yield (
        "From `evictionHard` follows what pods may ask for, from it, `evictionSoft` and "
        "`evictionMinimumReclaim` which pressures the node shows and which pods it admits, but "
        "no pod is evicted; thresholds of the signals `containerfs.*` have no effect, in the Go "
        "kubelet neither; of "
        "`enforceNodeAllocatable` only `pods` and `none` are acted on; TLS below 1.2 is not "
        "spoken, whatever `tlsMinVersion` allows."
    )
    yield ""
    yield "| field | the agent acts as with |"
    yield "|---|---|"
    defaults = to_wire(KubeletConfiguration())
    for name, value in sorted(field_support.FIXED.items()):
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        yield f"| {_name(name, bold=defaults.get(name) != value)} | `{shown}` |"


def _flags() -> Iterator[str]:
    yield "## Flags that are no fields\n"
    yield "| waits for | flags |"
    yield "|---|---|"
    names = {flag.option: f"--{flag.name}" for flag in OPTION_FLAGS}
    waiting = {
        capability: [names[option] for option in options if option in names]
        or [f"--{flag.name}" for flag in COLLECTOR_FLAGS]
        for capability, options in field_support.OPTIONS_NOT_YET.items()
    }
    yield from _rows(waiting, ())


def _gates() -> Iterator[str]:
    on = {name for name, gate in KNOWN_GATES.items() if gate.default}
    yield "## Feature gates\n"
    yield f"Asked for: {_listed(gate_support.ACTED_ON, ())}.\n"
    off = {name for name in gate_support.AS_IF_ON if name not in on}
    yield f"As if on, whatever is set: {_listed(gate_support.AS_IF_ON, off)}.\n"
    yield "As if off, whatever is set:\n"
    yield "| belongs to | gates |"
    yield "|---|---|"
    yield from _rows(gate_support.AS_IF_OFF, on)
    yield ""
    yield (
        "All others concern the control plane, kube-proxy, Windows or the libraries of the Go "
        "kubelet. They are accepted, because a cluster may share its gates, and have no effect."
    )


def _rows(waiting: Mapping[str, Iterable[str]], bold: Iterable[str]) -> Iterator[str]:
    for capability, names in waiting.items():
        yield f"| {capability} | {_listed(names, bold)} |"


def _listed(names: Iterable[str], bold: Iterable[str]) -> str:
    marked = frozenset(bold)
    return ", ".join(_name(name, bold=name in marked) for name in sorted(names))


def _name(name: str, *, bold: bool) -> str:
    return f"**`{name}`**" if bold else f"`{name}`"


if __name__ == "__main__":
    print(page(), end="")
