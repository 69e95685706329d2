"""What every GPU container really has, from five independent witnesses, compared.

The witnesses: the annotation in the API server, the container's environment as the kernel knows it, the limits file as
the container sees it, the kubelet's pod resources, and the kubelet's checkpoint.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from gpuslice.devices.limits import read_limits
from gpuslice.proto.podresources.v1 import api_pb2 as pb
from gpuslice.proto.podresources.v1 import api_pb2_grpc as rpc
from tests.cluster.harness.api import Json
from tests.cluster.harness.cluster import Cluster, allocation_of, is_running
from tests.cluster.harness.node import Node

RESOURCE = "nvidia.com/gpu"
LIMITS = "var/run/gpuslice/limits"
CALL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Witness:
    """What the five witnesses say about one container.

    Attributes:
        pod: NAMESPACE/NAME.
        container: Its name.
        chosen: Slice -> MiB, as the scheduler wrote it.
        environment: Cards in the container's environment, in order.
        limits: Card -> MiB in the limits file.
        pod_resources: Slices that the kubelet lists.
        checkpoint: Slices in the kubelet's record, by the pod's UID.
    """

    pod: str
    container: str
    chosen: Mapping[str, int]
    environment: tuple[str, ...]
    limits: Mapping[str, int | None]
    pod_resources: frozenset[str]
    checkpoint: frozenset[str]

    @property
    def cards(self) -> tuple[str, ...]:
        """The cards that the scheduler chose, in its order."""
        return tuple(slice_name.split("::")[0] for slice_name in self.chosen)

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the container, in words."""
        who = f"{self.pod}/{self.container}"
        wanted = {slice_name.split("::")[0]: mib for slice_name, mib in self.chosen.items()}
        if self.environment != self.cards:
            yield f"{who}: sees cards {self.environment}, the scheduler chose {self.cards}"
        if dict(self.limits) != wanted:
            yield f"{who}: limits {dict(self.limits)}, the scheduler chose {wanted}"
        if self.pod_resources != self.checkpoint:
            yield f"{who}: pod resources {set(self.pod_resources)}, checkpoint {set(self.checkpoint)}"
        if len(self.checkpoint) != len(self.chosen):
            yield f"{who}: holds {len(self.checkpoint)} slices, the scheduler chose {len(self.chosen)}"

    @property
    def steered(self) -> bool:
        """Whether the kubelet holds exactly the scheduler's slices, so that nothing had to be put right later."""
        return self.checkpoint == frozenset(self.chosen)


@dataclass(frozen=True, slots=True)
class Audit:
    """The result over all running containers."""

    witnesses: tuple[Witness, ...]

    @property
    def problems(self) -> list[str]:
        """Everything that must not be."""
        found = [problem for witness in self.witnesses for problem in witness.problems()]
        for name, slices in (("the scheduler", self._chosen()), ("the kubelet", self._held())):
            found += [f"{name} gave slice {item} to {count} containers" for item, count in slices.items() if count > 1]
        return found

    def _chosen(self) -> Counter[str]:
        return Counter(slice_name for witness in self.witnesses for slice_name in witness.chosen)

    def _held(self) -> Counter[str]:
        return Counter(slice_name for witness in self.witnesses for slice_name in witness.checkpoint)

    def summary(self) -> str:
        """Return one line for the test's output."""
        steered = sum(witness.steered for witness in self.witnesses)
        return f"{len(self.witnesses)} containers audited, {steered} with the scheduler's own slices in the checkpoint"


def audit(cluster: Cluster, namespace: str = "default") -> Audit:
    """Ask all witnesses about every running GPU container."""
    listed = {name: pod_resources(node) for name, node in cluster.nodes.items()}
    recorded = {name: checkpoint(node) for name, node in cluster.nodes.items()}
    witnesses = []
    for pod in cluster.admin.list("pods", namespace):
        if pod["metadata"].get("deletionTimestamp") or not is_running(pod):
            continue
        if "gpuslice.io/allocation" not in pod["metadata"].get("annotations", {}):
            continue
        where = pod["spec"]["nodeName"]
        for container, shares in allocation_of(pod).items():
            witnesses.append(_hear(cluster.nodes[where], pod, container, shares, listed[where], recorded[where]))
    return Audit(tuple(witnesses))


def _hear(
    node: Node,
    pod: Json,
    container: str,
    shares: list[Json],
    listed: Mapping[tuple[str, str], frozenset[str]],
    recorded: Mapping[tuple[str, str], frozenset[str]],
) -> Witness:
    meta = pod["metadata"]
    name = f"{meta['namespace']}/{meta['name']}"
    processes = node.container_processes(pod, container)
    return Witness(
        pod=name,
        container=container,
        chosen={share["slice"]: share["memoryMiB"] for share in shares},
        environment=_visible_cards(processes),
        limits=_limits(processes),
        pod_resources=listed.get((name, container), frozenset()),
        checkpoint=recorded.get((meta["uid"], container), frozenset()),
    )


def _visible_cards(processes: list[int]) -> tuple[str, ...]:
    for pid in processes[:1]:
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(b"NVIDIA_VISIBLE_DEVICES="):
                return tuple(entry.partition(b"=")[2].decode().split(","))
    return ()


def _limits(processes: list[int]) -> dict[str, int | None]:
    for pid in processes[:1]:
        return {limit.uuid: limit.memory_mib for limit in read_limits(Path(f"/proc/{pid}/root/{LIMITS}"))}
    return {}


def pod_resources(node: Node) -> dict[tuple[str, str], frozenset[str]]:
    """Return (NAMESPACE/NAME, container) -> slices from the kubelet's own service."""
    options = [("grpc.default_authority", "localhost")]
    with grpc.insecure_channel(f"unix:{node.paths.pod_resources_socket}", options=options) as channel:
        answer = rpc.PodResourcesListerStub(channel).List(pb.ListPodResourcesRequest(), timeout=CALL_SECONDS)
    found: dict[tuple[str, str], frozenset[str]] = {}
    for pod in answer.pod_resources:
        for container in pod.containers:
            ids = {i for devices in container.devices if devices.resource_name == RESOURCE for i in devices.device_ids}
            found[f"{pod.namespace}/{pod.name}", container.name] = frozenset(ids)
    return found


def checkpoint(node: Node) -> dict[tuple[str, str], frozenset[str]]:
    """Return (pod UID, container) -> slices from the kubelet's record."""
    found: dict[tuple[str, str], frozenset[str]] = {}
    for entry in node.checkpoint_entries():
        if entry["ResourceName"] == RESOURCE:
            ids = {identity for group in entry["DeviceIDs"].values() for identity in group}
            found[entry["PodUID"], entry["ContainerName"]] = frozenset(ids)
    return found
