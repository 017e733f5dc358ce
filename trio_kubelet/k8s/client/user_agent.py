"""The name under which the agent appears in the API server's logs and audit."""

import platform

from trio_kubelet import KUBERNETES_VERSION, __version__

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm"}
"""Go's names of what `uname -m` says, where they differ."""


def _user_agent() -> str:
    machine = platform.machine()
    system = f"{platform.system().lower()}/{ARCHITECTURES.get(machine, machine)}"
    return f"kubelet/{KUBERNETES_VERSION} ({system}) trio-kubelet/{__version__}"


USER_AGENT = _user_agent()
"""Begins like that of the Go kubelet, so that what filters by it keeps working."""
