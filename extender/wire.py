"""The extender protocol (k8s.io/kube-scheduler/extender/v1): Go types without JSON tags, so keys are CamelCase.

Node names travel in thousands. They are taken as raw bytes, and answers are cut from tables of fixed-width records, one
for each row of the fleet; the padding is white space, which JSON allows between its tokens.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from gpuslice.devices.pods import Metadata, Pod
from gpuslice.placement.decide import BEST_SCORE

Rows = npt.NDArray[np.int64]
FEW: Final = 256
"""Up to so many nodes, a loop in plain Python is quicker than a dozen calls of numpy."""
_NULL: Final = b"null"
_KEY: Final = b',"NodeNames":'
_TEN: Final = np.frombuffer(b"10", dtype=np.uint8)


class NodeList(msgspec.Struct, frozen=True):
    """v1.NodeList with its items untouched."""

    items: list[msgspec.Raw] | None = None


class ExtenderArgs(msgspec.Struct, frozen=True, rename="pascal"):
    """Body of /filter and /prioritize."""

    pod: Pod | None = None
    nodes: NodeList | None = None
    node_names: msgspec.Raw = msgspec.Raw(_NULL)


class ExtenderBindingArgs(msgspec.Struct, frozen=True):
    """Body of /bind."""

    pod_name: str = msgspec.field(name="PodName")
    pod_namespace: str = msgspec.field(name="PodNamespace")
    pod_uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class MetaPod(msgspec.Struct, frozen=True):
    """A victim by UID."""

    uid: str = msgspec.field(name="UID", default="")


class MetaVictims(msgspec.Struct, frozen=True, rename="pascal"):
    """Victims on one node."""

    pods: tuple[MetaPod, ...] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class VictimPod(msgspec.Struct, frozen=True):
    """A victim given as a whole pod."""

    metadata: Metadata = Metadata()


class Victims(msgspec.Struct, frozen=True, rename="pascal"):
    """Victims on one node, as whole pods."""

    pods: tuple[VictimPod, ...] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)

    def to_meta(self) -> MetaVictims:
        """Keep the UIDs."""
        pods = tuple(MetaPod(pod.metadata.uid) for pod in self.pods or ())
        return MetaVictims(pods, self.num_pdb_violations)


class ExtenderPreemptionArgs(msgspec.Struct, frozen=True, rename="pascal"):
    """Body of /preempt. With nodeCacheCapable the victims come as UIDs, without as pods."""

    pod: Pod | None = None
    node_name_to_victims: dict[str, Victims] | None = None
    node_name_to_meta_victims: dict[str, MetaVictims] | None = None

    def victims(self) -> dict[str, MetaVictims]:
        """Victims by node, in one shape."""
        if self.node_name_to_meta_victims is not None:
            return self.node_name_to_meta_victims
        return {name: victims.to_meta() for name, victims in (self.node_name_to_victims or {}).items()}


class ExtenderPreemptionResult(msgspec.Struct, rename="pascal"):
    """Answer of /preempt."""

    node_name_to_meta_victims: dict[str, MetaVictims]


class ExtenderBindingResult(msgspec.Struct, rename="pascal"):
    """Answer of /bind; an empty error means bound."""

    error: str = ""


args_decoder = msgspec.json.Decoder(ExtenderArgs)
binding_decoder = msgspec.json.Decoder(ExtenderBindingArgs)
preemption_decoder = msgspec.json.Decoder(ExtenderPreemptionArgs)
names_decoder = msgspec.json.Decoder(list[str] | None)


class ArgsReader:
    """Reads ExtenderArgs. The names come last, thousands of them and mostly the same: those are compared, not read."""

    def __init__(self) -> None:
        self._names = _NULL
        """Valid JSON: it was read as such."""

    def read(self, body: bytes) -> ExtenderArgs:
        """Read a body.

        Raises:
            msgspec.MsgspecError: it is not of the expected shape.
        """
        key = len(body) - len(_KEY) - len(self._names) - 1
        if key > 1 and body.startswith(_KEY, key) and body.startswith(self._names, key + len(_KEY)):
            try:
                # As the sender wrote it without names; the key may be that of an inner object, then this is no JSON.
                args = args_decoder.decode(body[:key] + body[-1:])
            except msgspec.DecodeError:
                pass
            else:
                return ExtenderArgs(args.pod, args.nodes, msgspec.Raw(self._names))
        args = args_decoder.decode(body)
        self._names = bytes(args.node_names)
        return args


def error_answer(problem: str) -> bytes:
    """Answer /filter with an error: kube-scheduler retries the pod with a back-off."""
    return msgspec.json.encode({"NodeNames": None, "FailedNodes": {}, "Error": problem})


class NameTable:
    """Every node name of a fleet as JSON, in records of equal width, so that an answer is one gather.

    Records begin with the comma that parts them from the one before; the first comma is blanked out.
    """

    def __init__(self, names: Sequence[str], layout: int) -> None:
        self.layout = layout
        """Version of the fleet's layout that the rows belong to."""
        encoded = [msgspec.json.encode(name) for name in names]
        self.encoded = encoded
        """Each name as JSON."""
        self._items = _records([b"," + name for name in encoded])
        self._keys = _records([b"," + name + b":" for name in encoded])
        self._hosts = _records([b',{"Host":' + name + b',"Score":' for name in encoded], ending=b" 0}")

    def name_list(self, rows: Rows) -> bytes:
        """``["a","b"]``."""
        return b"".join((b"[", _first_blank(self._items.take(rows, axis=0)).data, b"]"))

    def reasons(self, rows: Rows, text: str) -> bytes:
        """``"a":"text","b":"text"`` without braces."""
        suffix = np.frombuffer(msgspec.json.encode(text), dtype=np.uint8)
        width = self._keys.shape[1]
        out = np.empty((len(rows), width + len(suffix)), dtype=np.uint8)
        out[:, :width] = self._keys.take(rows, axis=0)
        out[:, width:] = suffix
        return _first_blank(out).tobytes()

    def priorities(self, rows: Rows, scores: npt.NDArray[np.uint8]) -> bytes:
        """``[{"Host":"a","Score": 7},…]``; scores are 0..10."""
        if len(rows) <= FEW:
            pairs = zip(rows.tolist(), scores.tolist(), strict=True)
            return b"[%b]" % b",".join([b'{"Host":%b,"Score":%d}' % (self.encoded[row], score) for row, score in pairs])
        out = self._hosts.take(rows, axis=0)
        out[:, -2] += scores
        out[scores == BEST_SCORE, -3:-1] = _TEN
        return b"".join((b"[", _first_blank(out).data, b"]"))


def _records(texts: list[bytes], ending: bytes = b"") -> npt.NDArray[np.uint8]:
    width = max((len(text) for text in texts), default=1)
    padded = b"".join(text.ljust(width) + ending for text in texts)
    return np.frombuffer(padded, dtype=np.uint8).reshape(len(texts), width + len(ending))


def _first_blank(records: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    if len(records):
        records[0, 0] = ord(" ")
    return records


def filter_answer(names: bytes, failures: bytes, nodes: bytes = b"null") -> bytes:
    """Put an ExtenderFilterResult together; ``failures`` is the inside of FailedAndUnresolvableNodes."""
    return b"".join(
        (
            b'{"Nodes":',
            nodes,
            b',"NodeNames":',
            names,
            b',"FailedNodes":{},"FailedAndUnresolvableNodes":{',
            failures,
            b'},"Error":""}',
        )
    )
