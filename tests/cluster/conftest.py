"""One real cluster for the whole session; every test leaves it without pods and with all daemons running."""

from collections.abc import Iterator

import pytest

from tests.cluster.harness.cluster import Cluster


@pytest.fixture(scope="session")
def whole_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Start the cluster at the first test that needs it."""
    cluster = Cluster()
    failed_before = request.session.testsfailed
    started = False
    try:
        cluster.start()
        started = True
        yield cluster
    finally:
        failed = not started or request.session.testsfailed > failed_before
        cluster.stop(failed=failed)
        if failed:
            print(f"\nlogs of the test cluster are in {cluster.folder}")


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    """Return the running cluster and clear its pods after the test."""
    yield whole_cluster
    whole_cluster.delete_all_pods()
