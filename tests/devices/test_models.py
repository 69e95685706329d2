"""Models match by whole tokens."""

import pytest

from gpuslice.devices.models import model_matches


@pytest.mark.parametrize(
    ("wanted", "model", "matches"),
    [
        pytest.param("A10", "NVIDIA A100-SXM4-80GB", False, id="A10 is not A100"),
        pytest.param("A100", "NVIDIA A100-SXM4-80GB", True, id="the model alone"),
        pytest.param("a100", "NVIDIA-NVIDIA A100-PCIE-40GB", True, id="case and doubled vendor"),
        pytest.param("NVIDIA-NVIDIA A100", "NVIDIA A100-PCIE-40GB", True, id="HAMi's doubled vendor in the wish"),
        pytest.param("A100-SXM4", "NVIDIA A100-SXM4-80GB", True, id="two tokens side by side"),
        pytest.param("A100-80GB", "NVIDIA A100-SXM4-80GB", False, id="tokens that are not neighbours"),
        pytest.param("RTX 3090", "NVIDIA GeForce RTX 3090 Ti", True, id="words"),
        pytest.param("910B4-1", "Ascend910B4", False, id="a longer name"),
        pytest.param("Ascend910B4", "Ascend910B4-1", True, id="B4-1 is a kind of B4 by its words"),
        pytest.param("NVIDIA", "NVIDIA", True, id="only a vendor"),
        pytest.param("", "NVIDIA A100", False, id="nothing matches nothing"),
        pytest.param("-", "NVIDIA A100", False, id="no token at all"),
    ],
)
def test_model_matches(wanted: str, model: str, matches: bool) -> None:
    assert model_matches(wanted, model) is matches
