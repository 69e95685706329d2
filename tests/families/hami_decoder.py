"""An independent reader of HAMi's grammar, written from the published format and from nothing of ours.

A device is ``UUID,TYPE,MEM,CORES``, devices end with ``:``, containers end with ``;``. It works on one text with a
cursor, where our writer joins parts, so that both cannot share a slip.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    uuid: str
    type: str
    memory: int
    cores: int


def read_devices(text: str) -> list[list[Device]]:
    """Return the devices of each container."""
    containers: list[list[Device]] = [[]]
    at = 0
    while at < len(text):
        if text[at] == ";":
            containers.append([])
            at += 1
            continue
        end = text.index(":", at)
        uuid, kind, memory, cores = text[at:end].split(",")
        containers[-1].append(Device(uuid, kind, int(memory), int(cores)))
        at = end + 1
    assert containers[-1] == [], "the text must end with ';'"
    return containers[:-1]
