import io
import json
import logging

import pytest
import structlog

from gpuslice.service.logs import configure_logging


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture(autouse=True)
def _restore() -> object:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


def test_an_event_is_one_line_of_json(stream: io.StringIO) -> None:
    configure_logging("info", "json", stream=stream, cache=False)
    structlog.get_logger("x").info("bound", pod="ns/a", slices=["GPU-a::0"], odd=object)
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["pod"], line["slices"]) == ("bound", "info", "ns/a", ["GPU-a::0"])


def test_the_standard_library_speaks_the_same_format(stream: io.StringIO) -> None:
    configure_logging("info", "json", stream=stream, cache=False)
    logging.getLogger("uvicorn.error").warning("odd %s", "request")
    (line,) = lines(stream)
    assert (line["event"], line["level"]) == ("odd request", "warning")


def test_an_exception_is_told_with_its_traceback(stream: io.StringIO) -> None:
    configure_logging("info", "json", stream=stream, cache=False)
    try:
        raise ValueError("broken")
    except ValueError:
        structlog.get_logger("x").exception("failed")
    (line,) = lines(stream)
    assert "ValueError: broken" in str(line["exception"])


@pytest.mark.parametrize(
    ("level", "seen"),
    [
        pytest.param("debug", ["debug", "info", "warning"], id="debug shows all"),
        pytest.param("info", ["info", "warning"], id="info hides details"),
        pytest.param("warning", ["warning"], id="warning hides decisions"),
    ],
)
def test_levels(level: str, seen: list[str], stream: io.StringIO) -> None:
    configure_logging(level, "json", stream=stream, cache=False)
    logger = structlog.get_logger("x")
    for name in ("debug", "info", "warning"):
        getattr(logger, name)("said")
    assert [line["level"] for line in lines(stream)] == seen


def test_text_is_for_people(stream: io.StringIO) -> None:
    configure_logging("info", "text", stream=stream, cache=False)
    structlog.get_logger("x").info("bound", pod="ns/a")
    assert "bound" in stream.getvalue()
    assert "pod=ns/a" in stream.getvalue()
