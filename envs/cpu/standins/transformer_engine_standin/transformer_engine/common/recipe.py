"""Names of the fp8 recipes, of which none can be used: base classes in megatron-core.

megatron/core/extensions/transformer_engine.py:2191.
"""


class Recipe:
    pass


class Format:
    E4M3 = "e4m3"
    HYBRID = "hybrid"


class DelayedScaling(Recipe):
    def __init__(self, *_args: object, **_kwargs: object) -> None:
        raise NotImplementedError("CPU stand-in of Transformer Engine: no fp8")


class Float8CurrentScaling(DelayedScaling):
    pass


class MXFP8BlockScaling(DelayedScaling):
    pass
