"""Models from ``torch.compile``: they are sent without compiled methods, and compiled again on each worker.

Lightning puts compiled methods into such a model, which cannot be pickled; the arguments of ``torch.compile`` can.
"""

from __future__ import annotations

from typing import Any

from torch._dynamo import OptimizedModule

from tunelight.compat.lightning import from_compiled, pl, to_uncompiled

_METHODS = ("forward", "training_step", "validation_step", "test_step", "predict_step")


def take_off(model: Any) -> OptimizedModule | None:
    """Restore a compiled model's own methods; return an object that compiles it again, or None. Runs on: driver."""
    if not isinstance(model, pl.LightningModule) or model._compiler_ctx is None:
        return None
    compiled = OptimizedModule(model, model._compiler_ctx["dynamo_ctx"])
    to_uncompiled(model)
    for name in _METHODS:  # now attributes of the model: redundant for methods of its class
        if vars(model).get(name) == getattr(type(model), name).__get__(model):
            del vars(model)[name]
    return compiled


def compile_again(compiled: OptimizedModule | None) -> None:
    """Compile the model's methods as on the driver (None: they were not compiled). Runs on: worker."""
    if compiled is not None:
        from_compiled(compiled)
