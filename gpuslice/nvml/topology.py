"""Links between the cards of a machine, as one matrix of gpuslice.devices.inventory.Link values.

Two cards behind NVSwitches have as many lanes between them as the poorer of the two has to its switches; the remote
end of such a link is a switch, not a card. Otherwise direct NVLinks are counted by the peer's PCI address, and what
is left is the nearest common PCIe ancestor, as `nvidia-smi topo -m` shows it.
"""

from collections import Counter
from collections.abc import Sequence

import pynvml

from gpuslice.devices.inventory import Link

_ANCESTORS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: Link.SAME_BOARD,
    pynvml.NVML_TOPOLOGY_SINGLE: Link.SINGLE_SWITCH,
    pynvml.NVML_TOPOLOGY_MULTIPLE: Link.MULTIPLE_SWITCHES,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: Link.HOST_BRIDGE,
    pynvml.NVML_TOPOLOGY_NODE: Link.SAME_NUMA,
    pynvml.NVML_TOPOLOGY_SYSTEM: Link.CROSS_SOCKET,
}
_SWITCH = "switch"


def bus_address(text: str) -> str:
    """Return a PCI address the way sysfs writes it: NVML pads the domain to eight digits."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}" if rest else text.lower()


def read_links(handles: Sequence[object], bus_ids: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Read the matrix; symmetric, 0 on the diagonal and where NVML does not say. Empty for fewer than two cards."""
    if len(handles) < 2:
        return ()
    lanes = [_lanes(handle) for handle in handles]
    matrix = [[0] * len(handles) for _ in handles]
    for i in range(len(handles)):
        for j in range(i + 1, len(handles)):
            # Both ends must agree: a link that is up on one side only carries nothing.
            direct = min(lanes[i][bus_ids[j]], lanes[j][bus_ids[i]])
            count = direct + min(lanes[i][_SWITCH], lanes[j][_SWITCH])
            value = count * int(Link.NVLINK) if count else _ancestor(handles[i], handles[j])
            matrix[i][j] = matrix[j][i] = value
    return tuple(tuple(row) for row in matrix)


def _lanes(handle: object) -> Counter[str]:
    """Count the active NVLinks of a card by what is at their other end."""
    found: Counter[str] = Counter()
    for link in range(int(pynvml.NVML_NVLINK_MAX_LINKS)):
        try:
            if not pynvml.nvmlDeviceGetNvLinkState(handle, link):
                continue
            found[_remote(handle, link)] += 1
        except pynvml.NVMLError as error:
            if error.value in {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}:
                break
    return found


def _remote(handle: object, link: int) -> str:
    try:
        kind = pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
    except pynvml.NVMLError:
        kind = pynvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN
    if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
        return _SWITCH
    remote = pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId
    return bus_address(remote.decode() if isinstance(remote, bytes) else remote)


def _ancestor(first: object, second: object) -> int:
    try:
        level = pynvml.nvmlDeviceGetTopologyCommonAncestor(first, second)
    except pynvml.NVMLError:
        return int(Link.UNKNOWN)
    return int(_ANCESTORS.get(level, Link.UNKNOWN))
