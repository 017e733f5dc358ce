"""What the runtime is told: configs of sandboxes and containers, made of a pod and its node."""
