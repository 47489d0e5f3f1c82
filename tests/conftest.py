"""Options of the whole test suite."""

import os
import signal

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite the golden files; read the difference")


def pytest_configure(config: pytest.Config) -> None:
    # a shell without job control ignores SIGINT for what it puts in the background, nohup ignores SIGHUP, and
    # all children inherit that: what the tests start could be neither interrupted nor hung up on
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if config.getoption("--update"):
        os.environ["GRPOFLOW_UPDATE_GOLDEN"] = "1"
