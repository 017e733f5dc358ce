"""The kernel and systemd: files, mounts, sockets, its own process."""
