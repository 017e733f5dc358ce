"""Images: whether one is there, who may use it, pulls with their credentials and back-offs."""
