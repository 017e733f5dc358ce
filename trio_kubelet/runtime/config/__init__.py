"""Configs for the runtime: those of sandboxes and containers, made of a pod and its node."""
