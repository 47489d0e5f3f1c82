"""Jobs and processes: on Slurm or on this machine."""
