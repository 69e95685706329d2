"""Watches: what they begin with, what they say, how they end."""

from typing import Any

import pytest

from tests.contract.client import Client
from tests.contract.manifests import config_map


def maps(ns: str) -> str:
    return f"/api/v1/namespaces/{ns}/configmaps"


def now(api: Client, ns: str) -> str:
    version: str = api.get(maps(ns)).meta["resourceVersion"]
    return version


def live(api: Client, ns: str) -> None:
    """One object's life: made in q=1, changed, moved to q=2, moved back, deleted."""
    api.post(maps(ns), config_map("w", labels={"q": "1"}))
    api.patch(f"{maps(ns)}/w", {"data": {"k": "v"}})
    api.patch(f"{maps(ns)}/w", {"metadata": {"labels": {"q": "2"}}})
    api.patch(f"{maps(ns)}/w", {"metadata": {"labels": {"q": "1"}}})
    api.delete(f"{maps(ns)}/w")


def take(api: Client, path: str, count: int) -> list[dict[str, Any]]:
    with api.watch(path) as events:
        return [event for _, event in zip(range(count), events, strict=False)]


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


LIVES = [
    pytest.param("", ["ADDED", "MODIFIED", "MODIFIED", "MODIFIED", "DELETED"], id="all of it"),
    pytest.param(
        "&labelSelector=q%3D1",
        ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"],
        id="leaving the selection is a deletion",
    ),
    pytest.param("&labelSelector=q%3D2", ["ADDED", "DELETED"], id="a visit"),
    pytest.param(
        "&fieldSelector=metadata.name%3Dw", ["ADDED", "MODIFIED", "MODIFIED", "MODIFIED", "DELETED"], id="by name"
    ),
    pytest.param("&fieldSelector=metadata.name%3Dother", [], id="by another name"),
]


@pytest.mark.parametrize(("query", "expected"), LIVES)
def test_a_life_replayed(api: Client, ns: str, query: str, expected: list[str]) -> None:
    since = now(api, ns)
    live(api, ns)
    path = f"{maps(ns)}?watch=1&timeoutSeconds=1&resourceVersion={since}{query}"
    assert types(take(api, path, max(len(expected), 1))) == expected


@pytest.mark.parametrize(("query", "expected"), LIVES)
def test_a_life_as_it_happens(api: Client, ns: str, query: str, expected: list[str]) -> None:
    path = f"{maps(ns)}?watch=1&timeoutSeconds=1&resourceVersion={now(api, ns)}{query}"
    with api.watch(path) as events:
        live(api, ns)
        assert [event["type"] for event in events] == expected


def test_versions_of_events_rise_and_a_deletion_has_its_own(api: Client, ns: str) -> None:
    since = now(api, ns)
    live(api, ns)
    events = take(api, f"{maps(ns)}?watch=1&timeoutSeconds=2&resourceVersion={since}", 5)
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(set(versions))
    assert events[-1]["object"]["data"] == {"a": "1", "k": "v"}
    assert versions[-1] <= int(now(api, ns))


def test_an_object_that_leaves_is_shown_as_it_was_at_the_leaving_version(api: Client, ns: str) -> None:
    since = now(api, ns)
    live(api, ns)
    query = f"watch=1&timeoutSeconds=2&resourceVersion={since}"
    third = take(api, f"{maps(ns)}?{query}", 3)[2]["object"]["metadata"]
    left = take(api, f"{maps(ns)}?{query}&labelSelector=q%3D1", 3)[2]["object"]["metadata"]
    assert left["resourceVersion"] == third["resourceVersion"]
    assert left["labels"] == {"q": "1"}


@pytest.mark.parametrize("version", [pytest.param("", id="unset"), pytest.param("&resourceVersion=0", id="zero")])
def test_a_watch_from_no_version_begins_with_what_is_there(api: Client, ns: str, version: str) -> None:
    for name in ("a", "b"):
        api.post(maps(ns), config_map(name))
    events = take(api, f"{maps(ns)}?watch=1&timeoutSeconds=2{version}", 2)
    assert [(e["type"], e["object"]["metadata"]["name"]) for e in events] == [("ADDED", "a"), ("ADDED", "b")]


def test_events_carry_the_type(api: Client, ns: str) -> None:
    api.post(maps(ns), config_map("a"))
    found = take(api, f"{maps(ns)}?watch=1&timeoutSeconds=2", 1)[0]["object"]
    assert (found["kind"], found["apiVersion"]) == ("ConfigMap", "v1")


def test_initial_events_end_with_a_marked_bookmark(api: Client, ns: str) -> None:
    api.post(maps(ns), config_map("a"))
    query = "allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
    first, mark = take(api, f"{maps(ns)}?watch=1&timeoutSeconds=5&{query}", 2)
    assert (first["type"], mark["type"]) == ("ADDED", "BOOKMARK")
    assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert int(mark["object"]["metadata"]["resourceVersion"]) >= int(first["object"]["metadata"]["resourceVersion"])
    assert (mark["object"]["kind"], mark["object"]["apiVersion"]) == ("ConfigMap", "v1")


def test_a_watch_ends_at_its_timeout(api: Client, ns: str) -> None:
    with api.watch(f"{maps(ns)}?watch=1&timeoutSeconds=1&resourceVersion={now(api, ns)}") as events:
        assert list(events) == []


def test_a_watch_by_path_prefix_still_works(api: Client, ns: str) -> None:
    api.post(maps(ns), config_map("a"))
    path = f"/api/v1/watch/namespaces/{ns}/configmaps?timeoutSeconds=2"
    assert types(take(api, path, 1)) == ["ADDED"]


def test_watch_on_a_named_object_reads_it(api: Client, ns: str) -> None:
    api.post(maps(ns), config_map("a"))
    assert api.get(f"{maps(ns)}/a?watch=1&timeoutSeconds=1").body["kind"] == "ConfigMap"


def test_one_namespace_does_not_hear_another(api: Client, ns: str) -> None:
    since = now(api, ns)
    api.post("/api/v1/namespaces/default/configmaps", config_map(ns))
    api.delete(f"/api/v1/namespaces/default/configmaps/{ns}")
    api.post(maps(ns), config_map("mine"))
    events = take(api, f"{maps(ns)}?watch=1&timeoutSeconds=2&resourceVersion={since}", 1)
    assert events[0]["object"]["metadata"]["name"] == "mine"
