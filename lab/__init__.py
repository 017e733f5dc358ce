"""A laboratory: private container runtimes for the quickstart, the tests and the benchmarks.

`packages` unpacks Debian packages into a cache folder, without installing them; `tools` picks
from them, or from what is installed, the programs that one runtime needs; `containerd` runs
them with its own root, state, socket, bridge and subnet, and leaves nothing behind; `images`
makes the images to run, `registry` serves them, `agent` is trio-kubelet on top, `quickstart` shows
it all. `control_plane` is what such an agent can be a node of. Standard library only (the
quickstart's tables and the control plane aside), so that it works before anything is installed.
A containerd that the machine has is used, but never touched: nothing is shared with it but the
program files.
"""


class LabError(Exception):
    """The lab cannot do what was asked; the message is one line for the person who asked."""


class UnavailableError(LabError):
    """What was asked for cannot be had on this system, or from its mirrors."""
