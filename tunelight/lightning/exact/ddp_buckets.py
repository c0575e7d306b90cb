"""One backward pass for DDP's sake, before a recovered trial's first step.

DDP lays its buckets out anew after the first step that it has seen. Among three ranks or more the layout decides in
which order gloo adds numbers up, so that a recovered run's first step would differ in the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from tunelight.compat.lightning import ClosureResult
from tunelight.lightning.exact.evaluation import ExactEvaluation


def warm_ddp_buckets(strategy: ExactEvaluation, step: Callable[[], Any]) -> None:
    """Run a training step and its backward pass on every rank, and undo all that they did. Runs on: worker.

    The caller keeps random generators as they were.
    """
    model, trainer = strategy.model, strategy._trainer()
    if not isinstance(model, DistributedDataParallel) or strategy.world_size < 3:
        return
    results = trainer._results
    known, batch_size = set(results), results.batch_size
    connector = trainer._logger_connector
    hook, sync = connector._current_fx, (model.require_backward_grad_sync, model.require_forward_param_sync)
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    model.require_backward_grad_sync = True  # this may be a batch that others are added to
    try:
        with strategy._without_trace(trainer.fit_loop):
            loss = ClosureResult.from_training_step_output(step()).closure_loss
            assert loss is not None  # Lightning refuses to skip a step in a gang
            with torch.enable_grad():
                loss.backward()
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        model.require_backward_grad_sync, model.require_forward_param_sync = sync
        for key in set(results) - known:
            del results[key]
        results.batch_size, connector._current_fx = batch_size, hook
