"""From an SFT checkpoint of Qwen3.5 to a GRPO-trained, evaluated, exported model, as Slurm jobs."""

__version__ = "0.1.0"
