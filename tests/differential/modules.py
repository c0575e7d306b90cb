"""Renders the LightningModule of a program: its net, steps, hooks, logged values and optimizers."""

from __future__ import annotations

import textwrap
from typing import Any

from tests.differential.grammar import LOG, Program

TYPED = ".to(self.head.weight.dtype)"
ERRORS = "torchmetrics.MeanSquaredError()"
METRICS = {"collection": f"torchmetrics.MetricCollection([{ERRORS}, torchmetrics.MeanAbsoluteError()])"}
NETS = {
    "lstm": ("torch.nn.LSTM(2, 4, batch_first=True)", 4),
    "encoder": ("torch.nn.TransformerEncoderLayer(2, 1, 8, batch_first=True)", 2),
    "tied": ("torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.ReLU(), torch.nn.Linear(6, 6))", 6),
    "batchnorm": ("torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())", 8),
    "dropout": ("torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.2), torch.nn.ReLU())", 8),
}
"""Backbones, and what they return of a row; all others have a layer of 8."""
MORE = {
    "tied": "self.backbone[2].weight = self.backbone[0].weight",
    "frozen": "self.backbone.requires_grad_(False)",
    "buffer": 'self.register_buffer("seen", torch.zeros(1))',
    "unused": "self.unused = torch.nn.Linear(2, 2)",
    "average": "self.average = copy.deepcopy(self.head).requires_grad_(False)",
}
"""What nets have beside backbone and head."""
INPUTS = {
    "lstm": "self.backbone(x.reshape(-1, 3, 2))[0][:, -1]",
    "encoder": "self.backbone(x.reshape(-1, 3, 2)).mean(1)",
}
"""What a head gets, of other nets than those of layers."""
BACKWARD = {
    "automatic": "",
    "manual": """
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
    """,
    "two optimizers": """
        first, second = self.optimizers()
        first.zero_grad()
        second.zero_grad()
        self.manual_backward(loss)
        first.step()
        if batch_idx % 2 == 0:
            second.step()
    """,
}
GATHERS = {
    "validation_end": """
        self.log("gathered", self.all_gather(torch.stack(self.seen_losses)).mean())
        self.seen_losses = []
    """,
    "train_end": 'self.log("gathered_rank", self.all_gather(torch.tensor(float(self.global_rank))).sum())',
    "collective": """
        total = torch.tensor(self.global_rank + 1.0)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(total)
        self.log("total", total)
    """,
}
ARGUMENTS = {
    "on_train_batch_end": ", outputs, batch, batch_idx",
    "on_validation_batch_end": ", outputs, batch, batch_idx, dataloader_idx=0",
    "on_before_zero_grad": ", optimizer",
    "on_save_checkpoint": ", checkpoint",
    "on_load_checkpoint": ", checkpoint",
}
"""Of hooks, beside the module."""
OPTIMIZERS = {
    "sgd": "torch.optim.SGD(filter(lambda p: p.requires_grad, self.parameters()), lr=self.lr, momentum=0.9)",
    "adamw": "torch.optim.AdamW(filter(lambda p: p.requires_grad, self.parameters()), lr=self.lr / 5)",
    "groups": "torch.optim.SGD([{'params': self.backbone.parameters(), 'lr': self.lr / 2}, "
    "{'params': self.head.parameters()}], lr=self.lr)",
}
SCHEDULES = {
    "step": "torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)",
    "epoch": "torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)",
    "plateau": "torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)",
    "onecycle": "torch.optim.lr_scheduler.OneCycleLR("
    "optimizer, 0.1, total_steps=int(self.trainer.estimated_stepping_batches))",
    "warmup": "torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))",
}


def lines(text: str) -> list[str]:
    """Return the lines of code in a text, which is indented as where it stands."""
    return textwrap.dedent(text).strip("\n ").split("\n") if text.strip() else []


def methods(bodies: dict[str, list[str]]) -> str:
    """Render methods, by their names and arguments, in a class."""
    made = [f"def {name}:\n" + textwrap.indent("\n".join(body), "    ") for name, body in bodies.items()]
    return textwrap.indent("\n\n".join(made), "    ") + "\n"


def model(program: Program) -> str:
    net, metric = program["net"], program["metric"]
    made = _net(program)
    init = ["super().__init__()", "self.save_hyperparameters()", "self.lr = lr"]
    if net != "configure_model":
        init += made
    if program["optimization"] != "automatic":
        init.append("self.automatic_optimization = False")
    if metric is not None:
        init += ["import torchmetrics\n", f"self.metric = {METRICS.get(metric, ERRORS)}"]
    if program["appended"]:
        init.append("self.losses = []")
    if program["names"]:
        init.append('self._defaults, self._reductions, self._update_count = {"margin": 0.1}, None, "none"')
        init.append("self._computed, self.reports, self.parts, self.restored = {}, [], None, False")
    bodies = {"__init__(self, lr=0.05)": init}
    if net == "configure_model":
        bodies["configure_model(self)"] = ['if hasattr(self, "head"):', "    return", *made]
    bodies["forward(self, x)"] = [f"return self.head({INPUTS.get(net, 'self.backbone(x)')})"]
    bodies |= _steps(program) | _hooks(program) | {"configure_optimizers(self)": _optimizers(program)}
    return "class Model(pl.LightningModule):\n" + methods(bodies)


def _net(program: Program) -> list[str]:
    net = program["net"]
    backbone, width = NETS.get(net, ("torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU())", 8))
    return [f"self.backbone = {backbone}", f"self.head = torch.nn.Linear({width}, 1)", *lines(MORE.get(net, ""))]


def _steps(program: Program) -> dict[str, list[str]]:
    cast = TYPED if program["precision"] == "64-true" else ".float()"
    loss_of = ["x, y = batch", f"x, y = x{cast}, y{cast}", "return torch.nn.functional.mse_loss(self(x), y)"]
    body = ["loss = self.loss_of(batch)"]
    if program["train_loaders"] is not None:
        body = [
            "parts = [part for part in batch if part is not None]",
            "loss = sum(self.loss_of(part) for part in parts)",
        ]
        body.append("batch = parts[0]")
    if program["net"] == "buffer":
        body.append("self.seen += len(batch[0])")
    body += lines(BACKWARD[program["optimization"]])
    if program["gather"] == "training_step":
        body.append('self.log("gathered_loss", self.all_gather(loss.detach()).mean())')
    if program["appended"]:
        body.append("self.losses.append(loss.detach())")
    if program["metric"] == "collection":
        body.append(f"self.metric.update(self(batch[0]{TYPED}), batch[1]{TYPED})")
        body.append("self.log_dict(self.metric, on_step=False, on_epoch=True)")
    body += [*_calls(program, "training_step"), "return loss"]
    bodies = {"loss_of(self, batch)": loss_of, "training_step(self, batch, batch_idx)": body}
    return bodies | _evaluation_steps(program) if program["val_loaders"] else bodies


def _evaluation_steps(program: Program) -> dict[str, list[str]]:
    given = "(self, batch, batch_idx, dataloader_idx=0)" if program["val_loaders"] > 1 else "(self, batch, batch_idx)"
    body = ["loss = self.loss_of(batch)", 'self.log("val_loss", loss, sync_dist=True)']
    update = f"self.metric.update(self(batch[0]{TYPED}), batch[1]{TYPED})"
    if program["metric"] == "object":
        body += [update, 'self.log("mse", self.metric)']
    if program["metric"] == "state":
        body += ["if batch_idx % 2 == 0:", f"    {update}"]
    if program["gather"] == "validation_step":
        body.append('self.log("gathered", self.all_gather(loss).mean())')
    if program["gather"] == "validation_end":
        body.append("self.seen_losses = [*getattr(self, 'seen_losses', []), loss]")
    bodies = {f"validation_step{given}": body + _calls(program, "validation_step")}
    if program["runs"] == "test":
        bodies[f"test_step{given}"] = ['self.log("test_loss", self.loss_of(batch), sync_dist=True)']
    if program["runs"] == "predict":
        bodies[f"predict_step{given}"] = [f"return self(batch[0]{TYPED})"]
    return bodies


def _hooks(program: Program) -> dict[str, list[str]]:
    gather = program["gather"]
    bodies: dict[str, list[str]] = {}

    def add(hook: str, *texts: str) -> None:
        bodies.setdefault(hook, []).extend(line for text in texts for line in lines(text))

    if gather in GATHERS:
        add("on_validation_epoch_end" if gather == "validation_end" else "on_train_epoch_end", GATHERS[gather])
    if program["metric"] == "state":
        add("on_validation_epoch_end", 'self.log("mse", self.metric.compute())', "self.metric.reset()")
    if program["appended"]:
        add("on_train_epoch_end", 'self.log("mean_loss", torch.stack(self.losses).mean(), sync_dist=True)')
        add("on_train_epoch_end", 'self.log("steps_seen", float(len(self.losses)))', "self.losses.clear()")
    if program["optimization"] != "automatic" and program["schedule"] == "epoch":
        add("on_train_epoch_end", "self.lr_schedulers().step()")
    if program["net"] == "average":
        add("on_train_batch_end", "for kept, new in zip(self.average.parameters(), self.head.parameters()):")
        bodies["on_train_batch_end"].append("    kept.lerp_(new.detach(), 0.5)")
    if program["saves"]:
        add("on_save_checkpoint", 'checkpoint["own"] = {"step": self.global_step, "epoch": self.current_epoch}')
        add("on_load_checkpoint", 'self.loaded = checkpoint["own"]')
    for hook in LOG["hook"]:
        if not hook.endswith("_step") and (calls := _calls(program, hook)):
            add(hook, *calls)
    return {f"{hook}(self{ARGUMENTS.get(hook, '')})": body for hook, body in bodies.items()}


def _calls(program: Program, hook: str) -> list[str]:
    """Return the calls to self.log in a hook, in the order of the program."""
    return [_call(call, number) for number, call in enumerate(program["logs"]) if call["hook"] == hook]


def _call(call: dict[str, Any], number: int) -> str:
    in_step = call["hook"].endswith("_step")
    value = {
        "loss": "loss.detach()" if in_step else "float(self.current_epoch + 1)",
        "batch": "float(batch_idx)",
        "rank": "float(self.global_rank)",
        "sometimes": "loss.detach()",
    }[call["value"]]
    if call["hook"] == "on_train_start":  # which a restart calls again
        value = "1.0"
    name = f"'log_{number}'"
    if call["value"] == "sometimes":
        name = f"'log_{number}_even' if batch_idx % 2 == 0 else 'log_{number}_odd'"
    options = []
    for part, choices in LOG.items():
        if part in ("hook", "value", "sync_dist") or call[part] == choices[0]:
            continue
        given = "len(batch[0])" if (part, call[part]) == ("batch_size", "rows") else repr(call[part])
        options.append(f"{part}={given}")
    if call["sync_dist"]:
        options.append("sync_dist=True")
    return f"self.log({', '.join([name, value, *options])})"


def _optimizers(program: Program) -> list[str]:
    schedule = program["schedule"]
    if program["optimization"] == "two optimizers":
        stepped = "[first, second], [torch.optim.lr_scheduler.StepLR(first, 1, 0.5)]"
        return [
            "first = torch.optim.SGD(self.backbone.parameters(), lr=self.lr)",
            "second = torch.optim.Adam(self.head.parameters(), lr=self.lr / 5)",
            f"return {stepped if schedule == 'epoch' else 'first, second'}",
        ]
    made = [f"optimizer = {OPTIMIZERS[program['optimizer']]}"]
    if schedule is None:
        return [*made, "return optimizer"]
    options = f'"interval": "{"epoch" if schedule in ("epoch", "plateau") else "step"}"'
    if schedule == "plateau":
        options += f', "monitor": "{monitor(program)}"'
    returned = f'return {{"optimizer": optimizer, "lr_scheduler": {{"scheduler": scheduler, {options}}}}}'
    return [*made, f"scheduler = {SCHEDULES[schedule]}", returned]


def monitor(program: Program) -> str:
    """Return the name of the value that callbacks watch."""
    return "val_loss/dataloader_idx_0" if program["val_loaders"] > 1 else "val_loss"
