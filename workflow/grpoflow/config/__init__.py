"""The typed configuration. Imports nothing heavier than pydantic and PyYAML."""

from .load import ConfigError, Problem, load_experiments, read_yaml
from .root import Config

__all__ = ["Config", "ConfigError", "Problem", "load_experiments", "read_yaml"]
