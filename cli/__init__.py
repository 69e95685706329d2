"""The `gpuslice` command."""
