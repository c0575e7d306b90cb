"""A model that came out of ``torch.compile``: it is sent as it was before, and compiled on each worker.

Lightning puts compiled methods into such a model, which cannot be pickled; what ``torch.compile`` was told can.
"""

from __future__ import annotations

from typing import Any

from torch._dynamo import OptimizedModule

from tunelight.compat.lightning import from_compiled, pl, to_uncompiled

_METHODS = ("forward", "training_step", "validation_step", "test_step", "predict_step")


def take_off(model: Any) -> OptimizedModule | None:
    """Give a compiled model its own methods back; return what compiles it again, None where it is not compiled.

    The object that ``torch.compile`` returned stays usable, and another call of the Trainer with it compiles again.
    Runs on: driver.
    """
    if not isinstance(model, pl.LightningModule) or model._compiler_ctx is None:
        return None
    compiled = OptimizedModule(model, model._compiler_ctx["dynamo_ctx"])
    to_uncompiled(model)
    for name in _METHODS:  # they are attributes of the model now: those of its class need not be
        if vars(model).get(name) == getattr(type(model), name).__get__(model):
            del vars(model)[name]
    return compiled


def compile_again(compiled: OptimizedModule | None) -> None:
    """Compile the model's methods as they were on the driver (None: they were not). Runs on: worker."""
    if compiled is not None:
        from_compiled(compiled)
