"""Section `rewards`: the reward functions of GRPO and of evaluation."""

from __future__ import annotations

from pydantic import field_validator, model_validator

from .base import Section, conflict, convergence


class RewardsConfig(Section):
    functions: list[str] = convergence(min_length=1)
    """Names of reward functions, built into ms-swift or registered by `plugin`."""

    weights: list[float] | None = convergence(None)
    """One weight per function; all 1 by default."""

    plugin: str | None = convergence(None)
    """Python file that registers reward functions in `swift.rewards.orms` (`--external_plugins`)."""

    @model_validator(mode="after")
    def one_weight_per_function(self) -> RewardsConfig:
        if self.weights is not None and len(self.weights) != len(self.functions):
            why = f"{len(self.weights)} weights for {len(self.functions)} functions; give one per function"
            raise conflict("weights", self.weights, why, str([1.0] * len(self.functions)))
        return self

    @field_validator("functions")
    @classmethod
    def each_function_once(cls, value: list[str]) -> list[str]:
        if twice := sorted({name for name in value if value.count(name) > 1}):
            why = (
                f"{', '.join(twice)} more than once: the scores of a function have one column and one weight"
            )
            raise conflict("", value, why, str(list(dict.fromkeys(value))))
        return value

    def weight_of(self) -> dict[str, float]:
        """Map each function to its weight."""
        return dict(zip(self.functions, self.weights or [1.0] * len(self.functions), strict=True))
