"""Removing what is not needed any more: dead containers, sandboxes, logs."""
