"""The exact argument list and environment of every external program."""
