"""For which kubelets a row holds. `rig` takes these as its parameter; without one a row holds for both."""

import pytest

_REAL = [pytest.mark.cluster, pytest.mark.timeout(600)]
BOTH = ["stub", pytest.param("real", marks=_REAL)]
BOTH_SLOWLY = ["stub", pytest.param("real", marks=[*_REAL, pytest.mark.slow])]
"""For rows in which the real kubelet lets time pass: its next look at a pod or at a status is after ten seconds."""
