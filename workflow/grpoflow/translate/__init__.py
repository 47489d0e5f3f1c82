"""Launch scripts of ms-swift, read without executing them: as a configuration, or for the other backend."""

from .main import main
from .report import Note, Translation
from .to_command import translate_command
from .to_config import translate_to_config

__all__ = ["Note", "Translation", "main", "translate_command", "translate_to_config"]
