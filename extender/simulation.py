"""Full Node objects instead of names: a scheduler without node cache, or the Cluster Autoscaler trying out machines.

A node that the ledger knows is judged by the ledger, so a scheduler without node cache sees what is really promised. A
node that it does not know (a template of a node group, which may carry the annotations of a real machine) is judged as
that machine would be when empty. The ledger is not touched, and every node that fits is in the answer.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import replace

import msgspec

from extender.facts import node_facts
from extender.wire import NodeList, filter_answer
from gpuslice.devices.families import Families
from gpuslice.devices.pods import Node
from gpuslice.devices.requests import PodRequest
from gpuslice.placement import events
from gpuslice.placement.decide import Asker, filter_nodes
from gpuslice.placement.ledger import Ledger
from gpuslice.placement.policies.registry import PolicyDefaults
from gpuslice.placement.rejection import TEXTS, Obstacle

_KEPT_TEMPLATES = 64
_TEMPLATE = "template"


class Simulation:
    """Judges nodes given as objects."""

    def __init__(self, ledger: Ledger, families: Families, defaults: PolicyDefaults) -> None:
        self._ledger = ledger
        self._families = families
        self._defaults = defaults
        self._templates: OrderedDict[Hashable, Ledger] = OrderedDict()
        """One empty machine for each text of the cards annotation."""

    def filter(self, nodes: NodeList, request: PodRequest, asker: Asker) -> bytes:
        """Write an ExtenderFilterResult with the node objects that fit."""
        items = nodes.items or []
        views = [msgspec.json.decode(raw, type=Node) for raw in items]
        reasons = {view.metadata.name: self._obstacle(view, request, asker) for view in views}
        fitting = [
            (raw, view.metadata.name)
            for raw, view in zip(items, views, strict=True)
            if reasons[view.metadata.name] is Obstacle.NONE
        ]
        refused = {name: TEXTS[why] for name, why in reasons.items() if why is not Obstacle.NONE}
        kept = b'{"metadata":{},"items":[' + b",".join(bytes(raw) for raw, _ in fitting) + b"]}"
        names = msgspec.json.encode([name for _, name in fitting])
        return filter_answer(names, msgspec.json.encode(refused)[1:-1], kept)

    def everything(self, nodes: NodeList) -> bytes:
        """Write an answer for a pod that asks for nothing of ours: all nodes fit."""
        items = nodes.items or []
        names = [msgspec.json.decode(raw, type=Node).metadata.name for raw in items]
        kept = b'{"metadata":{},"items":[' + b",".join(map(bytes, items)) + b"]}"
        return filter_answer(msgspec.json.encode(names), b"", kept)

    def nothing(self, nodes: NodeList, reason: str) -> bytes:
        """Write an answer in which no node fits."""
        names = [msgspec.json.decode(raw, type=Node).metadata.name for raw in nodes.items or []]
        return filter_answer(b"[]", msgspec.json.encode(dict.fromkeys(names, reason))[1:-1], b'{"items":[]}')

    def _obstacle(self, node: Node, request: PodRequest, asker: Asker) -> Obstacle:
        name = node.metadata.name
        if name in self._ledger.fleet.row_of:
            return _verdict(self._ledger, name, request, self._defaults, asker)
        return _verdict(self._template(node), _TEMPLATE, request, self._defaults, Asker(cpu_milli=asker.cpu_milli))

    def _template(self, node: Node) -> Ledger:
        facts = node_facts(node, self._families)
        key = (facts.mark, facts.seen.ready)
        known = self._templates.get(key)
        if known is None:
            known = Ledger()
            cards = replace(facts.seen.cards, node=_TEMPLATE)
            known.apply(events.NodeSeen(cards=cards, ready=facts.seen.ready, cpu_milli=facts.seen.cpu_milli))
            self._templates[key] = known
            if len(self._templates) > _KEPT_TEMPLATES:
                self._templates.popitem(last=False)
        return known


def _verdict(ledger: Ledger, name: str, request: PodRequest, defaults: PolicyDefaults, asker: Asker) -> Obstacle:
    return Obstacle(int(filter_nodes(ledger, request, [name], defaults, asker).codes[0]))
