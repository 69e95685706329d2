"""The store: a watch's events, replayed or live, always add up to what a list shows."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from simulator.apiserver import selectors
from simulator.apiserver.store import Change, Entry, Store, Subscription

MAPS = ("", "configmaps")
SELECTOR = selectors.Selector(selectors.parse_labels("q=1"))

steps = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["1", "2", "gone"])), max_size=30)


def run(store: Store, name: str, label: str) -> None:
    """Put an object with this label, or remove it."""
    present = store.get(MAPS, "n", name)
    if label != "gone":
        store.put(MAPS, {"metadata": {"name": name, "namespace": "n", "labels": {"q": label}}})
    elif present is not None:
        store.remove(MAPS, present.decode())


class View:
    """What a client knows that believes every event."""

    def __init__(self, selector: selectors.Selector) -> None:
        self.known: dict[str, int] = {}
        self.versions: list[int] = []
        self.subscription = Subscription("", selector, self.hear)

    def hear(self, type_: str, entry: Entry, change: Change) -> None:
        assert (entry.name in self.known) is (type_ != "ADDED")
        assert entry.decode()["metadata"]["resourceVersion"] == str(change.revision)
        self.versions.append(change.revision)
        if type_ == "DELETED":
            del self.known[entry.name]
        else:
            self.known[entry.name] = entry.revision


def shown(store: Store, selector: selectors.Selector, at: int | None = None) -> dict[str, int]:
    return {entry.name: entry.revision for entry in store.collection(MAPS).select("", selector, at=at)}


@given(steps)
def test_live_and_replayed_watches_see_what_lists_show(rows: list[tuple[str, str]]) -> None:
    store = Store()
    for selector in (selectors.EVERYTHING, SELECTOR):
        live = View(selector)
        live.known = shown(store, selector)
        began = store.revision
        store.collection(MAPS).subscribe(live.subscription)
        for row in rows:
            run(store, *row)
        replayed = View(selector)
        replayed.known = shown(store, selector, began)
        for change in store.collection(MAPS).since(began):
            replayed.subscription.offer(change)
        assert live.known == replayed.known == shown(store, selector)
        assert live.versions == replayed.versions == sorted(set(live.versions))


@given(steps)
def test_every_moment_can_be_listed_again(rows: list[tuple[str, str]]) -> None:
    store = Store()
    moments: list[tuple[int, dict[str, int]]] = []
    for row in rows:
        run(store, *row)
        moments.append((store.revision, shown(store, selectors.EVERYTHING)))
    assert all(shown(store, selectors.EVERYTHING, at) == then for at, then in moments)


def test_an_index_by_node_follows_the_pod() -> None:
    store = Store()
    here = selectors.Selector((), (selectors.FieldRequirement("spec.nodeName", True, "n1"),))

    def on_node() -> list[str]:
        return [entry.name for entry in store.collection(("", "pods")).select("", here)]

    pod: dict[str, Any] = {"metadata": {"name": "a", "namespace": "n"}, "spec": {}}
    store.put(("", "pods"), pod)
    before = on_node()
    store.put(("", "pods"), pod | {"spec": {"nodeName": "n1"}})
    after = on_node()
    store.remove(("", "pods"), pod | {"spec": {"nodeName": "n1"}})
    assert (before, after, on_node()) == ([], ["a"], [])
