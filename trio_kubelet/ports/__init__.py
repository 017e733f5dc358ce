"""The agent's sockets and ports, and the routes of each."""
