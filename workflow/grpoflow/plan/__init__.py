"""Pure arithmetic of a GRPO job: batch, layout, placement, memory, throughput, storage.

Inputs are small frozen dataclasses; nothing here reads a file, a cluster or an environment variable. Every
check returns all problems at once as :class:`grpoflow.plan.problem.Problem`.
"""
