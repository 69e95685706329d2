"""Embedded cluster for demos and tests: API server, scheduler loop, kubelet, drivers, trace replay."""
