"""The containers of one pod: the plan of what starts and stops, and what carries it out."""
