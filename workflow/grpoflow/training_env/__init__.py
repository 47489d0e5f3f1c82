"""Modules that run under the training environment's Python (torch, transformers, ms-swift).

They are started as programs by `grpoflow.stages.inside` and import nothing of the orchestrator's packages.
"""
