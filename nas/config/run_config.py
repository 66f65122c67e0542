"""The configuration that a run folder was made with."""

from collections.abc import Mapping
from pathlib import Path

from derive.yaml_file import read_yaml
from nas.config.options import config_from_values
from nas.config.sections import Config
from supernet.errors import SettingError, UserError


def load_run_config(folder: Path) -> Config:
    """The configuration of a run folder, from its `config.yaml`."""
    path = folder / "config.yaml"
    if not path.exists():
        raise UserError(f"{folder}: not a run folder: it has no config.yaml")
    config = config_from_values(read_yaml(path), Config(), source=str(path))
    try:
        config.check()
    except SettingError as error:
        raise SettingError(f"{path}: {error.path}", str(error).removeprefix(f"{error.path}: ")) from None
    return config


def run_choices(folder: Path) -> Config:
    """The section `derive` of a run folder's `config.yaml`, with the defaults of all others."""
    path = folder / "config.yaml"
    if not path.exists():
        raise UserError(f"{folder}: not a run folder: it has no config.yaml")
    values = read_yaml(path)
    section = values.get("derive") if isinstance(values, Mapping) else None
    return config_from_values({"derive": section or {}}, Config(), source=str(path))
