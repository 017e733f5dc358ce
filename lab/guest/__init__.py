"""Guests: machines with systemd and cgroup v2 alone, as users' nodes have them.

`images` finds the image, or builds it from Debian packages, once (`recipe`, `build`, `kernels`);
`guest` boots it, runs commands in it and ends it; `network` joins several. A guest's kernel is
user-mode Linux: an ordinary program, which `keeper` runs and `line` talks to (`commands` is the
other end, in the guest). Nothing is left when its owner ends, however it ends.
"""
