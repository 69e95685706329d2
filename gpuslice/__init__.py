"""What the gpuslice daemons share."""

__version__ = "0.1.0"
