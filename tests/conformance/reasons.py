"""Why specs fail on this agent, by a part of their names: what docs/conformance.md says of each."""

from collections.abc import Mapping

REASONS: Mapping[str, str] = {
    "PrivilegedPod": "it adds a dummy network device, which the kernel of the machine that this "
    "ran on does not have; the Go kubelet fails it there, too",
}
