"""The only code that talks to NVML: inventory, topology, MIG instances, health events."""
