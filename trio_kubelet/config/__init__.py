"""The agent's settings: flags, the KubeletConfiguration file and its drop-ins, feature gates.

`load(arguments)` turns a command line into `Settings`, or raises `ConfigurationError` with all
that is wrong; `examine` tells also what the agent would only warn of. The rest of the agent reads
`settings.configuration` (as the API has it, every default filled in), `settings.options` (this
node's flags) and `settings.gates`.
"""

from trio_kubelet.config.codec import to_wire
from trio_kubelet.config.model import KubeletConfiguration
from trio_kubelet.config.settings import Settings, examine

__all__ = [
    "KubeletConfiguration",
    "Settings",
    "examine",
    "to_wire",
]
