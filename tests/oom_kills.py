"""How many containers the tests let the kernel kill for their memory.

Each run kills a few; `nox -s oom_kills` kills 200 on each version of containerd and of cgroups.
"""

import os

AT_LEAST = int(os.environ.get("TRIO_KUBELET_OOM_KILLS", "1"))


def rounds(kills_each: int) -> range:
    """The numbers of the rounds in which so many containers are killed."""
    return range(-(-AT_LEAST // kills_each))
