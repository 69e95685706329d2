"""The vocabulary: cards, nodes, requests, allocations, units, annotation formats, device families, errors."""
