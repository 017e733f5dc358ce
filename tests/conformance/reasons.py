"""Why specs fail on this agent, by a part of their names: what docs/conformance.md says of each."""

REASONS: dict[str, str] = {}
