"""What a pod counts for on a card, as the node adds it up."""

from dataclasses import replace

from deviceplugin.tenants import Need, Tenant
from gpuslice.devices.allocation import SliceShare
from gpuslice.devices.requests import Role


def test_an_init_container_that_has_ended_counts_no_more() -> None:
    def need(name: str, role: Role, memory_mib: int) -> Need:
        return Need(name, role, "nvidia.com/gpu", 1, (SliceShare("GPU-a::0", memory_mib, 10),))

    starting = Tenant("u", "default", "p", (need("i", Role.INIT, 8000), need("c", Role.APP, 4000)))
    assert starting.share_of("GPU-a") == (8000, 10)
    assert replace(starting, initialized=True).share_of("GPU-a") == (4000, 10)
