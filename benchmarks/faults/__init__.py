"""Faults on purpose, each in a real process on a CPU: what was tried, what survived, what was lost (docs/faults.md)."""
