from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest

from gpuslice.devices.errors import BadConfiguration
from gpuslice.service.settings import DaemonSettings, Flag, load_settings


@dataclass(frozen=True, kw_only=True)
class Settings(DaemonSettings):
    """A daemon for tests."""

    listen: Annotated[str, Flag("where")]
    share: Annotated[float, Flag("how much")] = 0.5
    elect: Annotated[bool, Flag("whether")] = True
    mode: Annotated[Literal["a", "b"], Flag("which")] = "a"
    files: Annotated[tuple[Path, ...], Flag("many")] = ()


def load(*argv: str, **environ: str) -> Settings:
    return load_settings(Settings, argv, program="test", environ=environ)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("listen: from-file\nshare: 0.25\nlogLevel: debug\nfiles: [/a, /b]\n", encoding="utf-8")
    return path


def test_flags_win_over_the_environment_and_that_over_the_file(config: Path) -> None:
    found = load("--config", str(config), "--share", "0.75", GPUSLICE_LISTEN="from-environment")
    assert (found.listen, found.share, found.log_level, found.files) == (
        "from-environment",
        0.75,
        "debug",
        (Path("/a"), Path("/b")),
    )


def test_flags_have_the_types_of_their_fields() -> None:
    found = load("--listen", "x", "--no-elect", "--mode", "b", "--files", "/a", "--files", "/b", "--metrics-port", "9")
    assert (found.elect, found.mode, found.files, found.metrics_port) == (False, "b", (Path("/a"), Path("/b")), 9)


def test_a_list_in_the_environment_is_parted_by_commas() -> None:
    assert load("--listen", "x", GPUSLICE_FILES="/a,/b").files == (Path("/a"), Path("/b"))


@pytest.mark.parametrize(
    ("verbosity", "level"), [("0", "warning"), ("1", "info"), ("3", "info"), ("4", "debug"), ("9", "debug")]
)
def test_klog_verbosity_overrides_the_level(verbosity: str, level: str) -> None:
    assert load("--listen", "x", "--log-level", "error", "-v", verbosity).effective_log_level == level


@pytest.mark.parametrize(
    ("argv", "environ", "words"),
    [
        pytest.param([], {}, ["--listen", "required", "GPUSLICE_LISTEN"], id="a required setting is missing"),
        pytest.param(["--listen", "x", "--share", "much"], {}, ["--share", "'much'"], id="a flag of the wrong type"),
        pytest.param(["--listen", "x"], {"GPUSLICE_MODE": "c"}, ["GPUSLICE_MODE", "a or b"], id="not a choice"),
        pytest.param(["--listen", "x", "--config", "/nowhere"], {}, ["/nowhere"], id="a file that is not there"),
    ],
)
def test_a_bad_setting_names_source_field_and_remedy(
    argv: list[str], environ: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(BadConfiguration) as caught:
        load(*argv, **environ)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("unknown: 1\n", ["unknown", "known are"], id="a key that is no setting"),
        pytest.param("- a\n", ["not a mapping"], id="not a mapping"),
        pytest.param("a: [\n", ["readable YAML"], id="not YAML"),
    ],
)
def test_a_bad_file_is_explained(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadConfiguration) as caught:
        load("--listen", "x", "--config", str(path))
    assert all(word in str(caught.value) for word in [*words, str(path)])
