"""`gpuslice demo`: the whole path on one machine, every joint real."""
