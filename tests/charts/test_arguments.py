"""Every flag that the chart passes is one that the daemon knows."""

import pytest

from deviceplugin.settings import PluginSettings
from extender.settings import ExtenderSettings
from gpuslice.service.settings import DaemonSettings, load_settings
from tests.charts.rendering import variants
from tests.charts.test_manifests import containers
from webhook.settings import WebhookSettings

DAEMONS: dict[str, type[DaemonSettings]] = {
    "extender": ExtenderSettings,
    "webhook": WebhookSettings,
    "device-plugin": PluginSettings,
}


def started(name: str) -> dict[str, list[str]]:
    """Return the arguments of each of our daemons in a variant, by subcommand."""
    commands = {tuple(container["command"]): container["args"] for _, container in containers(name)}
    return {command[1]: arguments for command, arguments in commands.items() if command[0] == "gpuslice"}


@pytest.mark.parametrize("name", variants())
def test_the_daemons_understand_their_command_lines(name: str) -> None:
    found = started(name)
    assert found
    for daemon, arguments in found.items():
        settings = load_settings(DAEMONS[daemon], arguments, program=f"gpuslice {daemon}")
        assert settings.metrics_port > 0, "probes and scrapes go to a fixed port"


def test_the_default_chart_starts_all_three() -> None:
    assert set(started("default")) == set(DAEMONS)


def test_the_extender_follows_the_lease_that_its_scheduler_holds() -> None:
    settings = load_settings(ExtenderSettings, started("default")["extender"], program="gpuslice extender")
    assert settings.follow_lease
    assert settings.lease_name == "gpuslice-scheduler"


def test_bindings_end_before_the_scheduler_gives_them_up() -> None:
    settings = load_settings(ExtenderSettings, started("default")["extender"], program="gpuslice extender")
    assert settings.bind_timeout_seconds < 5


def test_probes_reach_the_daemons_from_outside_their_pod() -> None:
    for daemon, arguments in started("default").items():
        settings = load_settings(DAEMONS[daemon], arguments, program=f"gpuslice {daemon}")
        assert settings.metrics_host in {"0.0.0.0", "::"}, daemon
