"""Replay of recorded arrivals against the placement code of the extender, without a cluster."""
