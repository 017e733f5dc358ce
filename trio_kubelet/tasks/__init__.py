"""Tasks, threads and time: several things at once, shared fairly, tried again."""
