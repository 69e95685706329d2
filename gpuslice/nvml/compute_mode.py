"""Who may compute on a card. Blocking; runs on the NVML thread. Changing it needs root."""

import pynvml


def set_compute_mode(uuid: str, *, one_process: bool) -> None:
    """Let one process alone make contexts on a card (EXCLUSIVE_PROCESS), or anybody again (DEFAULT).

    An MPS server is one process for all its clients: with one process allowed, nobody gets past the server.

    Raises:
        pynvml.NVMLError: The card is gone, cannot do it (a MIG instance cannot), or we may not.
    """
    mode = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS if one_process else pynvml.NVML_COMPUTEMODE_DEFAULT
    pynvml.nvmlDeviceSetComputeMode(pynvml.nvmlDeviceGetHandleByUUID(uuid), mode)
