"""Options of the whole test suite."""

import os
import signal

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite the golden files; read the difference")


def pytest_configure(config: pytest.Config) -> None:
    # a shell without job control starts what is put in the background with SIGINT ignored, and its children
    # inherit that: nothing could be interrupted
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--update"):
        os.environ["GRPOFLOW_UPDATE_GOLDEN"] = "1"
