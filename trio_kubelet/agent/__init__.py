"""The agent as a whole: how it starts, what it is made of, how it ends."""
