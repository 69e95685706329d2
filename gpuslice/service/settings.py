"""Settings of a daemon from flags, environment and a file, in this order of precedence.

A daemon describes itself by one frozen dataclass; each field becomes a flag (``core_policy`` -> ``--core-policy``), an
environment variable (``GPUSLICE_CORE_POLICY``) and a key of the ``--config`` YAML file (``corePolicy``).
pydantic-settings would do the same for 15 MiB more in every node daemon; msgspec converts and checks here.
"""

import argparse
import dataclasses
import os
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
import yaml

from gpuslice.devices.errors import BadConfiguration

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    S = TypeVar("S", bound=DataclassInstance)
else:
    S = TypeVar("S")

ENVIRONMENT_PREFIX = "GPUSLICE_"


@dataclasses.dataclass(frozen=True, slots=True)
class Flag:
    """Says in a field's ``Annotated`` type what the setting means, and its one-letter flag if it has one."""

    help: str
    short: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DaemonSettings:
    """What every daemon of ours understands; each adds its own fields in a subclass."""

    kubeconfig: Annotated[
        Path | None, Flag("kubeconfig FILE; else $KUBECONFIG, the service account, ~/.kube/config")
    ] = None
    context: Annotated[str | None, Flag("context of the kubeconfig")] = None
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Flag("least severity that is logged")] = "info"
    log_format: Annotated[Literal["json", "text"], Flag("json for machines, text for people")] = "json"
    v: Annotated[int | None, Flag("klog verbosity: 0 warnings, 1-3 info, 4+ debug; overrides --log-level", "-v")] = None
    metrics_host: Annotated[str, Flag("address of /livez /readyz /metrics")] = "0.0.0.0"
    metrics_port: Annotated[int, Flag("port of /livez /readyz /metrics; 0 picks a free one")] = 0
    ports_file: Annotated[Path | None, Flag("write the chosen ports as JSON to FILE once listening")] = None

    @property
    def effective_log_level(self) -> str:
        """The log level after the klog flag had its say."""
        if self.v is None:
            return self.log_level
        return "warning" if self.v <= 0 else "info" if self.v < 4 else "debug"


def load_settings(
    kind: type[S],
    argv: Sequence[str] | None = None,
    *,
    program: str,
    environ: Mapping[str, str] = os.environ,
) -> S:
    """Read the settings of a daemon.

    ``--help`` and unknown flags end the process as argparse does (0 and 2).

    Raises:
        BadConfiguration: a value is missing or of the wrong type; names where it came from and the field.
    """
    parser = _parser(kind, program)
    flags = {name: value for name, value in vars(parser.parse_args(argv)).items() if value is not None}
    file = flags.pop("config", None) or environ.get(f"{ENVIRONMENT_PREFIX}CONFIG")
    layers = [
        (str(file), _read_file(Path(file), kind) if file else {}),
        ("environment", _read_environment(environ, kind)),
        ("command line", flags),
    ]
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for source, layer in layers:
        for name, value in layer.items():
            values[name] = _convert(source, name, value, hints[name])
    for field in dataclasses.fields(kind):
        if (
            field.name not in values
            and field.default is dataclasses.MISSING
            and field.default_factory is dataclasses.MISSING
        ):
            raise BadConfiguration(program, _flag(field.name), "is required", f"pass it or set {_variable(field.name)}")
    return kind(**values)


def _parser(kind: "type[DataclassInstance]", program: str) -> argparse.ArgumentParser:
    description = (kind.__doc__ or "").strip().splitlines()[0]
    parser = argparse.ArgumentParser(prog=program, description=description, allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", help="YAML file with the same settings in camelCase")
    for field in dataclasses.fields(kind):
        hint, flag = _described(kind, field.name)
        text = flag.help.replace("%", "%%")
        if field.default not in (dataclasses.MISSING, None, ()):
            text += f" (default: {field.default})"
        names = [_flag(field.name)] if flag.short is None else sorted({flag.short, _flag(field.name)})
        if _is_bool(hint):
            parser.add_argument(*names, dest=field.name, default=None, action=argparse.BooleanOptionalAction, help=text)
        elif _is_list(hint):
            help_text = f"{text}; may be repeated"
            parser.add_argument(*names, dest=field.name, action="append", metavar="VALUE", help=help_text)
        else:
            choices = typing.get_args(hint) if typing.get_origin(hint) is Literal else None
            metavar = None if choices else "VALUE"
            parser.add_argument(*names, dest=field.name, choices=choices, metavar=metavar, help=text)
    return parser


def _described(kind: "type[DataclassInstance]", name: str) -> tuple[Any, Flag]:
    """Split ``Annotated[type, Flag(…)]``."""
    hint = typing.get_type_hints(kind, include_extras=True)[name]
    if typing.get_origin(hint) is not Annotated:
        return hint, Flag("")
    inner, *extras = typing.get_args(hint)
    return inner, next((extra for extra in extras if isinstance(extra, Flag)), Flag(""))


def _read_file(path: Path, kind: "type[DataclassInstance]") -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadConfiguration(str(path), "file", str(error), "give a readable YAML file") from error
    if document is None:
        return {}
    known = {_camel(field.name): field.name for field in dataclasses.fields(kind)}
    if not isinstance(document, dict):
        raise BadConfiguration(str(path), "file", "is not a mapping", f"use keys such as {', '.join(list(known)[:3])}")
    for key in document:
        if key not in known:
            raise BadConfiguration(str(path), str(key), "is not a setting", f"known are {', '.join(sorted(known))}")
    return {known[key]: value for key, value in document.items() if value is not None}


def _read_environment(environ: Mapping[str, str], kind: "type[DataclassInstance]") -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    found: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        value = environ.get(_variable(field.name), "")
        if value != "":
            found[field.name] = value.split(",") if _is_list(hints[field.name]) else value
    return found


def _convert(source: str, name: str, value: object, hint: Any) -> Any:  # noqa: ANN401  as typed as the field
    try:
        return msgspec.convert(value, hint, strict=False, dec_hook=_decode)
    except msgspec.ValidationError as error:
        shown = (
            _flag(name) if source == "command line" else _variable(name) if source == "environment" else _camel(name)
        )
        raise BadConfiguration(source, shown, f"{value!r}: {error}", f"give a {_type_name(hint)}") from error


def _decode(kind: type, value: object) -> object:
    if issubclass(kind, Path) and isinstance(value, str):
        return Path(value)
    raise msgspec.ValidationError(f"expected {kind.__name__}")


def _type_name(hint: Any) -> str:  # noqa: ANN401
    if typing.get_origin(hint) is Literal:
        return " or ".join(str(choice) for choice in typing.get_args(hint))
    names = [
        getattr(part, "__name__", str(part)) for part in typing.get_args(hint) or (hint,) if part is not types.NoneType
    ]
    return " or ".join(names)


def _is_bool(hint: Any) -> bool:  # noqa: ANN401
    return hint is bool or bool in typing.get_args(hint)


def _is_list(hint: Any) -> bool:  # noqa: ANN401
    return typing.get_origin(hint) is tuple


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}" if len(name) > 1 else f"-{name}"


def _variable(name: str) -> str:
    return f"{ENVIRONMENT_PREFIX}{name.upper()}"


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
