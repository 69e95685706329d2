"""Apply manifests as a user would, and follow the pods until each has come as far as it will."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.errors import ApiError
from gpuslice.cluster.resources import PODS
from gpuslice.devices.allocation import PodAllocation
from gpuslice.devices.annotations import ALLOCATION, decode_allocation
from gpuslice.devices.errors import BadConfiguration
from simulator.demo.control_plane import ControlPlane

SETTLED_SECONDS = 20.0
POLL_SECONDS = 0.05
REFUSED_SECONDS = 0.5
"""A refusal that stands for so long is final: a pod for which there is room after all is tried again sooner."""
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Applied:
    """One manifest: the pod as stored, or why admission refused it."""

    source: str
    name: str
    uid: str = ""
    refusal: str = ""


def read_manifests(files: Sequence[Path]) -> list[tuple[str, Object]]:
    """Read every pod of the files (or folders of ``*.yaml``).

    Raises:
        BadConfiguration: A file is unreadable, or holds something else than pods.
    """
    found: list[tuple[str, Object]] = []
    for path in [inner for file in files for inner in (sorted(file.glob("*.yaml")) if file.is_dir() else [file])]:
        try:
            documents = [document for document in yaml.safe_load_all(path.read_text()) if document]
        except OSError as error:
            raise BadConfiguration(str(path), "file", str(error.strerror), "give a YAML file of pods") from error
        except (UnicodeDecodeError, yaml.YAMLError) as error:
            said = " ".join(str(error).split())
            raise BadConfiguration(str(path), "manifest", said, "give a readable YAML file of pods") from error
        for document in documents:
            if not isinstance(document, dict) or document.get("kind") != "Pod":
                kind = document.get("kind") if isinstance(document, dict) else type(document).__name__
                raise BadConfiguration(
                    str(path), "kind", f"{kind} is not Pod", "the demo runs pods; extract the template"
                )
            found.append((path.name, document))
    if not found:
        raise BadConfiguration(", ".join(map(str, files)), "manifest", "holds no pod", "give YAML files of pods")
    return found


async def apply(user: KubeClient, manifests: Iterable[tuple[str, Object]]) -> list[Applied]:
    """Create the pods one after the other, as `kubectl apply` does."""
    applied: list[Applied] = []
    for source, manifest in manifests:
        metadata = manifest.get("metadata") or {}
        name = str(metadata.get("name") or metadata.get("generateName") or "")
        try:
            namespace = str(metadata.get("namespace") or "default")
            stored = msgspec.json.decode(await user.create(PODS, manifest, namespace=namespace))
            applied.append(Applied(source, stored["metadata"]["name"], stored["metadata"]["uid"]))
        except ApiError as error:
            applied.append(Applied(source, name, refusal=error.message))
    return applied


async def settle(plane: ControlPlane, applied: Sequence[Applied], *, seconds: float = SETTLED_SECONDS) -> list[Object]:
    """Wait until every stored pod runs, has ended, or is refused by the scheduler for good; return them as they are."""
    uids = {pod.uid for pod in applied if pod.uid}
    looks = 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                pods = _stored(plane, uids)
                looks = looks + 1 if all(_is_settled(pod) for pod in pods) else 0
                if looks and (
                    looks * POLL_SECONDS > REFUSED_SECONDS or all(pod["spec"].get("nodeName") for pod in pods)
                ):
                    return pods
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        return _stored(plane, uids)


def _stored(plane: ControlPlane, uids: set[str]) -> list[Object]:
    return [pod for pod in plane.server.list("v1", "Pod") if pod["metadata"]["uid"] in uids]


def _is_settled(pod: Mapping[str, Any]) -> bool:
    status = pod.get("status", {})
    if pod["spec"].get("nodeName"):
        return status.get("phase") in ("Running", "Succeeded", "Failed")
    return refusal_of(pod) != ""


def refusal_of(pod: Mapping[str, Any]) -> str:
    """Return why the scheduler found no node; empty when it has not said so."""
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", ""))
    return ""


def allocation_of(pod: Mapping[str, Any]) -> PodAllocation | None:
    """Return the decision on the pod, if there is one."""
    metadata = pod["metadata"]
    text = (metadata.get("annotations") or {}).get(ALLOCATION)
    return decode_allocation(f"{metadata['namespace']}/{metadata['name']}", text) if text else None
