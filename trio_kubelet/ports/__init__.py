"""The agent's sockets and ports, and what each answers."""
