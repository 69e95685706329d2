"""Pods from the published OpenAPI schema: any field may be there, also ones that we have never heard of."""

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate

Json = dict[str, Any]
VERSION = "v1.34.0"
GPU_SHAPES: tuple[Json, ...] = (
    {"nvidia.com/gpu": "1"},
    {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k", "nvidia.com/gpucores": "30"},
    {"nvidia.com/gpumem": "16Gi"},
    {"nvidia.com/gpu": "2", "nvidia.com/gpumem-percentage": "50"},
    {"amd.com/gpu": "1", "amd.com/gpumem": "4096"},
    {"huawei.com/Ascend910C": "1"},
    {"iluvatar.ai/BI-V150-vgpu": "1", "iluvatar.ai/BI-V150.vMem": "64"},
    {"metax-tech.com/sgpu": "1", "metax-tech.com/vmemory": "4"},
    {"aws.amazon.com/neuroncore": "1"},
)
STEERING: tuple[Json, ...] = (
    {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
    {"name": "CUDA_DEVICE_SM_LIMIT", "value": "100"},
    {"name": "LD_PRELOAD", "value": "/usr/local/gpuslice/libvgpu.so"},
)


@cache
def definitions() -> Json:
    """Return the schema's definitions by name."""
    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema" / f"{VERSION}-local"
    loaded: Json = json.loads((folder / "_definitions.json").read_text())["$defs"]
    return loaded


class PodGenerator:
    """Draws pods. Deterministic for a seed; ``fill`` is the chance that an optional field is present."""

    def __init__(self, seed: int, fill: float) -> None:
        self._random = random.Random(seed)
        self._fill = fill

    def pod(self, *, wants_devices: bool) -> Json:
        """Return a pod with 1 to 4 containers, some of which ask for devices if the pod shall."""
        pod = self._object("io.k8s.api.core.v1.Pod", depth=0)
        pod["apiVersion"], pod["kind"] = "v1", "Pod"
        metadata = pod.setdefault("metadata", {})
        metadata["name"] = "p"
        metadata["annotations"] = {"sidecar.istio.io/status": json.dumps({"containers": ["istio-proxy"]}), "a/b": "~1"}
        if self._random.random() < 0.3:
            del metadata["annotations"]
        spec = pod.setdefault("spec", {})
        spec["schedulerName"] = self._random.choice(["default-scheduler", "gpuslice-scheduler"])
        for forbidden in ("nodeName", "hostPID"):
            spec.pop(forbidden, None)
        spec["containers"] = [self._container(f"c{i}") for i in range(self._random.randint(1, 3))]
        if self._random.random() < 0.5:
            spec["initContainers"] = [self._container("istio-init")]
        else:
            spec.pop("initContainers", None)
        spec.pop("ephemeralContainers", None)
        for volume in spec.get("volumes", []):
            volume.pop("hostPath", None)
        if wants_devices:
            everyone = spec["containers"] + spec.get("initContainers", [])
            for container in self._random.sample(everyone, self._random.randint(1, len(everyone))):
                self._ask(container)
        spec["fieldOfTheFuture"] = {"x": [1, None, 1.5, "ü"]}
        return pod

    def _ask(self, container: Json) -> None:
        shape = dict(self._random.choice(GPU_SHAPES))
        resources = container.setdefault("resources", {})
        resources["limits"] = {"cpu": "1", **shape}
        resources.pop("requests", None)
        if self._random.random() < 0.5:
            resources["requests"] = {"memory": "1Gi", **shape}

    def _container(self, name: str) -> Json:
        container = self._object("io.k8s.api.core.v1.Container", depth=1)
        container["name"] = name
        container["resources"] = {"limits": {"memory": "1Gi"}}
        container["futureKnob"] = True
        security = container.get("securityContext")
        if security is not None:
            security.pop("privileged", None)
        for mount in container.get("volumeMounts", []):
            mount["mountPath"] = "/data"
        if self._random.random() < 0.7:
            env = container.setdefault("env", [])
            for variable in self._random.sample(STEERING, self._random.randint(0, len(STEERING))):
                env.insert(self._random.randint(0, len(env)), dict(variable))
        return container

    def _object(self, name: str, depth: int) -> Json:
        schema = definitions()[name]
        required = set(schema.get("required", []))
        result: Json = {}
        for key, sub in schema.get("properties", {}).items():
            if key in required or self._random.random() < self._fill:
                result[key] = self._value(sub, depth + 1)
        return result

    def _value(self, schema: Json, depth: int) -> Any:
        if "$ref" in schema:
            return self._reference(schema["$ref"].rsplit("/", 1)[-1], depth)
        if "oneOf" in schema:
            return self._value(self._random.choice(schema["oneOf"]), depth)
        kinds = schema.get("type", "object")
        kind = kinds[0] if isinstance(kinds, list) else kinds
        if kind == "array":
            count = self._random.randint(0, 2) if depth < 8 else 0
            return [self._value(schema["items"], depth + 1) for _ in range(count)]
        if kind == "object":
            inner = schema.get("additionalProperties")
            return {self._text(): self._value(inner, depth + 1) for _ in range(2)} if isinstance(inner, dict) else {}
        if "enum" in schema:
            return self._random.choice([value for value in schema["enum"] if value is not None])
        return {
            "string": self._text,
            "integer": lambda: self._random.randint(0, 2**31),
            "boolean": lambda: self._random.random() < 0.5,
            "number": self._random.random,
        }[kind]()

    def _reference(self, name: str, depth: int) -> Any:
        schema = definitions()[name]
        if name.endswith(".Quantity"):
            return self._random.choice(["1", "500m", "1Gi", "3k", "0.5", "1e3"])
        if name.endswith((".Time", ".MicroTime")):
            return "2026-11-29T20:00:00Z"
        if "properties" not in schema:
            return self._value(schema, depth)
        return self._object(name, depth) if depth < 8 else {}

    def _text(self) -> str:
        return self._random.choice(["a", "b.c/d", "~0/~1", "ünïcode", "", "x" * 40, '"quoted"', "1Gi", "line\nbreak"])


def many_pods(count: int, *, wants_devices: bool) -> list[Json]:
    """Return pods of many shapes; the first has every field of the API."""
    fills = [1.0, 0.5, 0.2, 0.05]
    return [PodGenerator(seed, fills[seed % 4]).pod(wants_devices=wants_devices) for seed in range(count)]
