"""Errors that cross package boundaries.

GpusliceError                  (catch this at the edge of a daemon)
├── BadQuantity                a resource quantity is not exactly what the field allows
├── BadAnnotation              someone wrote an annotation we cannot read
├── BadConfiguration           a setting, file or flag of ours is wrong
├── StaleWrite                 the object changed since we read it; retry from a fresh read
└── DeviceGone                 a card we promised is no longer on the node

"The pod does not fit" is an answer, not an error: see gpuslice.placement. "The pod is not valid" is a list of
:class:`gpuslice.devices.requests.Problem`, because a person wants all of them at once.
"""


class GpusliceError(Exception):
    """Base of every error this project raises on purpose."""


class BadQuantity(GpusliceError):
    """A Kubernetes quantity cannot stand in this field. ``problem`` says why, ``remedy`` what to write instead."""

    def __init__(self, text: str, problem: str, remedy: str) -> None:
        super().__init__(f"{text[:40]!r} {problem}; {remedy}")
        self.text = text
        self.problem = problem
        self.remedy = remedy


class BadAnnotation(GpusliceError):
    """An annotation on a node or pod does not follow the published format."""

    def __init__(self, owner: str, key: str, value: str, problem: str) -> None:
        super().__init__(f"{owner}: annotation {key!r} is unreadable: {problem} (value {value[:80]!r})")
        self.owner = owner
        self.key = key
        self.value = value
        self.problem = problem


class BadConfiguration(GpusliceError):
    """A flag, environment variable or file of ours is wrong. The daemon says so and does not start half-configured."""

    def __init__(self, source: str, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{source}: {field}: {problem}; {remedy}")
        self.source = source
        self.field = field
        self.problem = problem
        self.remedy = remedy


class StaleWrite(GpusliceError):
    """Another writer changed the object first. The caller re-reads and decides again."""


class DeviceGone(GpusliceError):
    """A card named in an allocation is not among the node's cards."""

    def __init__(self, node: str, uuid: str) -> None:
        super().__init__(f"node {node} has no card {uuid}; delete the pod so that it is scheduled anew")
        self.node = node
        self.uuid = uuid
