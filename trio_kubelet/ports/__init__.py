"""Where the agent can be asked: its sockets and ports, and what each of them serves."""
