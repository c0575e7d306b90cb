"""Renders the LightningModule of a program: its net, steps, hooks, logged values and optimizers."""

from __future__ import annotations

from typing import Any

from tests.differential.grammar import LOG, Program

TYPED = ".to(self.head.weight.dtype)"


def _net(program: Program) -> list[str]:
    net = program["net"]
    middle = {"batchnorm": ", torch.nn.BatchNorm1d(8)", "dropout": ", torch.nn.Dropout(0.2)"}.get(net, "")
    if net == "lstm":
        return ["self.backbone = torch.nn.LSTM(2, 4, batch_first=True)", "self.head = torch.nn.Linear(4, 1)"]
    if net == "encoder":
        return [
            "self.backbone = torch.nn.TransformerEncoderLayer(2, 1, 8, batch_first=True)",
            "self.head = torch.nn.Linear(2, 1)",
        ]
    lines = []
    if net == "tied":
        lines += [
            "self.backbone = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.ReLU(), torch.nn.Linear(6, 6))",
            "self.backbone[2].weight = self.backbone[0].weight",
            "self.head = torch.nn.Linear(6, 1)",
        ]
    else:
        lines += [
            f"self.backbone = torch.nn.Sequential(torch.nn.Linear(6, 8){middle}, torch.nn.ReLU())",
            "self.head = torch.nn.Linear(8, 1)",
        ]
    if net == "frozen":
        lines.append("self.backbone.requires_grad_(False)")
    if net == "buffer":
        lines.append('self.register_buffer("seen", torch.zeros(1))')
    if net == "unused":
        lines.append("self.unused = torch.nn.Linear(2, 2)")
    if net == "average":
        lines.append("self.average = copy.deepcopy(self.head).requires_grad_(False)")
    return lines


def model(program: Program) -> str:
    net = program["net"]
    lines = ["class Model(pl.LightningModule):", "    def __init__(self, lr=0.05):", "        super().__init__()"]
    lines += ["        self.save_hyperparameters()", "        self.lr = lr"]
    if net != "configure_model":
        lines += [f"        {line}" for line in _net(program)]
    if program["optimization"] != "automatic":
        lines.append("        self.automatic_optimization = False")
    metric = program["metric"]
    if metric is not None:
        lines.append("        import torchmetrics\n")
        made = "torchmetrics.MeanSquaredError()"
        if metric == "collection":
            made = "torchmetrics.MetricCollection([torchmetrics.MeanSquaredError(), torchmetrics.MeanAbsoluteError()])"
        lines.append(f"        self.metric = {made}")
    if program["appended"]:
        lines.append("        self.losses = []")
    if program["names"]:
        lines.append('        self._defaults, self._reductions, self._update_count = {"margin": 0.1}, None, "none"')
        lines.append("        self._computed, self.reports, self.parts, self.restored = {}, [], None, False")
    if net == "configure_model":
        lines += ["", "    def configure_model(self):", '        if hasattr(self, "head"):', "            return"]
        lines += [f"        {line}" for line in _net(program)]
    lines += ["", "    def forward(self, x):"]
    if net == "lstm":
        lines.append("        return self.head(self.backbone(x.reshape(-1, 3, 2))[0][:, -1])")
    elif net == "encoder":
        lines.append("        return self.head(self.backbone(x.reshape(-1, 3, 2)).mean(1))")
    else:
        lines.append("        return self.head(self.backbone(x))")
    lines += _steps(program)
    lines += _hooks(program)
    lines += _optimizers(program)
    return "\n".join(lines) + "\n"


def _steps(program: Program) -> list[str]:
    lines = ["", "    def loss_of(self, batch):", "        x, y = batch"]
    lines.append(
        "        x, y = x.to(self.head.weight.dtype), y.to(self.head.weight.dtype)"
        if program["precision"] == "64-true"
        else "        x, y = x.float(), y.float()"
    )
    lines += ["        return torch.nn.functional.mse_loss(self(x), y)"]
    lines += ["", "    def training_step(self, batch, batch_idx):"]
    if program["train_loaders"] is not None:
        lines += [
            "        parts = [part for part in batch if part is not None]",
            "        loss = sum(self.loss_of(part) for part in parts)",
            "        batch = parts[0]",
        ]
    else:
        lines.append("        loss = self.loss_of(batch)")
    if program["net"] == "buffer":
        lines.append("        self.seen += len(batch[0])")
    if program["optimization"] == "manual":
        lines += [
            "        optimizer = self.optimizers()",
            "        optimizer.zero_grad()",
            "        self.manual_backward(loss)",
            "        optimizer.step()",
        ]
    elif program["optimization"] == "two optimizers":
        lines += [
            "        first, second = self.optimizers()",
            "        first.zero_grad()",
            "        second.zero_grad()",
            "        self.manual_backward(loss)",
            "        first.step()",
            "        if batch_idx % 2 == 0:",
            "            second.step()",
        ]
    if program["gather"] == "training_step":
        lines.append('        self.log("gathered_loss", self.all_gather(loss.detach()).mean())')
    if program["appended"]:
        lines.append("        self.losses.append(loss.detach())")
    if program["metric"] == "collection":
        lines += [
            f"        self.metric.update(self(batch[0]{TYPED}), batch[1]{TYPED})",
            "        self.log_dict(self.metric, on_step=False, on_epoch=True)",
        ]
    lines += _calls(program, "training_step")
    lines.append("        return loss")
    if program["val_loaders"]:
        lines += _evaluation_steps(program)
    return lines


def _evaluation_steps(program: Program) -> list[str]:
    more = ", dataloader_idx=0" if program["val_loaders"] > 1 else ""
    lines = ["", f"    def validation_step(self, batch, batch_idx{more}):", "        loss = self.loss_of(batch)"]
    lines.append('        self.log("val_loss", loss, sync_dist=True)')
    if program["metric"] in ("object", "state"):
        update = f"self.metric.update(self(batch[0]{TYPED}), batch[1]{TYPED})"
        if program["metric"] == "object":
            lines += [f"        {update}", '        self.log("mse", self.metric)']
        else:
            lines += ["        if batch_idx % 2 == 0:", f"            {update}"]
    if program["gather"] == "validation_step":
        lines.append('        self.log("gathered", self.all_gather(loss).mean())')
    if program["gather"] == "validation_end":
        lines.append("        self.seen_losses = [*getattr(self, 'seen_losses', []), loss]")
    lines += _calls(program, "validation_step")
    if program["runs"] == "test":
        lines += [
            "",
            f"    def test_step(self, batch, batch_idx{more}):",
            '        self.log("test_loss", self.loss_of(batch), sync_dist=True)',
        ]
    if program["runs"] == "predict":
        lines += [
            "",
            f"    def predict_step(self, batch, batch_idx{more}):",
            "        return self(batch[0].to(self.head.weight.dtype))",
        ]
    return lines


def _hooks(program: Program) -> list[str]:
    bodies: dict[str, list[str]] = {}
    if program["gather"] == "validation_end":
        bodies["on_validation_epoch_end"] = [
            'self.log("gathered", self.all_gather(torch.stack(self.seen_losses)).mean())',
            "self.seen_losses = []",
        ]
    if program["gather"] == "train_end":
        bodies["on_train_epoch_end"] = [
            'self.log("gathered_rank", self.all_gather(torch.tensor(float(self.global_rank))).sum())'
        ]
    if program["gather"] == "collective":
        bodies["on_train_epoch_end"] = [
            "total = torch.tensor(self.global_rank + 1.0)",
            "if torch.distributed.is_initialized():",
            "    torch.distributed.all_reduce(total)",
            'self.log("total", total)',
        ]
    if program["metric"] == "state":
        bodies.setdefault("on_validation_epoch_end", []).extend(
            ['self.log("mse", self.metric.compute())', "self.metric.reset()"]
        )
    if program["appended"]:
        bodies.setdefault("on_train_epoch_end", []).extend(
            [
                'self.log("mean_loss", torch.stack(self.losses).mean(), sync_dist=True)',
                'self.log("steps_seen", float(len(self.losses)))',
                "self.losses.clear()",
            ]
        )
    if program["optimization"] != "automatic" and program["schedule"] == "epoch":
        bodies.setdefault("on_train_epoch_end", []).append("self.lr_schedulers().step()")
    if program["net"] == "average":
        bodies["on_train_batch_end"] = [
            "for kept, new in zip(self.average.parameters(), self.head.parameters()):",
            "    kept.lerp_(new.detach(), 0.5)",
        ]
    if program["saves"]:
        bodies["on_save_checkpoint"] = ['checkpoint["own"] = {"step": self.global_step, "epoch": self.current_epoch}']
        bodies["on_load_checkpoint"] = ['self.loaded = checkpoint["own"]']
    for hook in LOG["hook"]:
        if not hook.endswith("_step") and (calls := _calls(program, hook)):
            bodies.setdefault(hook, []).extend(line.strip() for line in calls)
    lines = []
    more = ", dataloader_idx=0"
    arguments = {
        "on_train_batch_end": ", outputs, batch, batch_idx",
        "on_validation_batch_end": f", outputs, batch, batch_idx{more}",
        "on_before_zero_grad": ", optimizer",
        "on_save_checkpoint": ", checkpoint",
        "on_load_checkpoint": ", checkpoint",
    }
    for hook, body in bodies.items():
        lines += ["", f"    def {hook}(self{arguments.get(hook, '')}):", *(f"        {line}" for line in body)]
    return lines


def _calls(program: Program, hook: str) -> list[str]:
    """Return the calls to self.log in a hook, in the order of the program."""
    lines = []
    for number, call in enumerate(program["logs"]):
        if call["hook"] == hook:
            lines += [f"        {line}" for line in _call(call, number)]
    return lines


def _call(call: dict[str, Any], number: int) -> list[str]:
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
        if part in ("hook", "value") or call[part] == choices[0]:
            continue
        given = repr(call[part])
        if part == "batch_size" and given == "'rows'":
            given = "len(batch[0])"
        options.append(f"{part}={given}")
    if call["sync_dist"]:
        options.append("sync_dist=True")
    options = [option for option in options if option != "sync_dist=False"]
    return [f"self.log({', '.join([name, value, *options])})"]


def _optimizers(program: Program) -> list[str]:
    lines = ["", "    def configure_optimizers(self):"]
    schedule = program["schedule"]
    if program["optimization"] == "two optimizers":
        lines += [
            "        first = torch.optim.SGD(self.backbone.parameters(), lr=self.lr)",
            "        second = torch.optim.Adam(self.head.parameters(), lr=self.lr / 5)",
        ]
        if schedule == "epoch":
            return [*lines, "        return [first, second], [torch.optim.lr_scheduler.StepLR(first, 1, 0.5)]"]
        return [*lines, "        return first, second"]
    parameters = "filter(lambda p: p.requires_grad, self.parameters())"
    made = {
        "sgd": f"torch.optim.SGD({parameters}, lr=self.lr, momentum=0.9)",
        "adamw": f"torch.optim.AdamW({parameters}, lr=self.lr / 5)",
        "groups": "torch.optim.SGD([{'params': self.backbone.parameters(), 'lr': self.lr / 2}, "
        "{'params': self.head.parameters()}], lr=self.lr)",
    }[program["optimizer"]]
    lines.append(f"        optimizer = {made}")
    scheduler = {
        "step": "torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)",
        "epoch": "torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)",
        "plateau": "torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)",
        "onecycle": "torch.optim.lr_scheduler.OneCycleLR("
        "optimizer, 0.1, total_steps=int(self.trainer.estimated_stepping_batches))",
        "warmup": "torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))",
    }.get(schedule)
    if scheduler is None:
        return [*lines, "        return optimizer"]
    interval = "epoch" if schedule in ("epoch", "plateau") else "step"
    options = f'"interval": "{interval}"'
    if schedule == "plateau":
        options += f', "monitor": "{monitor(program)}"'
    return [
        *lines,
        f"        scheduler = {scheduler}",
        f'        return {{"optimizer": optimizer, "lr_scheduler": {{"scheduler": scheduler, {options}}}}}',
    ]


def monitor(program: Program) -> str:
    """Return the name of the value that callbacks watch."""
    return "val_loss/dataloader_idx_0" if program["val_loaders"] > 1 else "val_loss"
