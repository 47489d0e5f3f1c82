"""Options of the whole test suite."""

import os

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite the golden files; read the difference")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--update"):
        os.environ["GRPOFLOW_UPDATE_GOLDEN"] = "1"
