"""Renders a program of the grammar as the source of a module that a person can read and run."""

from __future__ import annotations

from tests.differential.grammar import FEATURES, Program, digest, reached
from tests.differential.modules import model, monitor

NAMES = "BatchSampler, DataLoader, IterableDataset, Sampler, SequentialSampler, TensorDataset, WeightedRandomSampler"


def render(program: Program, package: str = "pytorch_lightning") -> str:
    """Return the module's source. ``main(make_trainer, folder)`` trains, and returns what its runs returned."""
    lightning = "lightning.pytorch" if package == "lightning" else package
    beyond = sorted(name for name in reached(program) if not name.startswith("log."))
    parts = [
        f'"""Program {digest(program)}: {", ".join(beyond) or "the plainest"}."""\n',
        "import copy\nimport itertools\n",
        f"import torch\nfrom torch.utils.data import {NAMES}\nimport {lightning} as pl\n",
        *_data(program),
        model(program),
        *_callbacks(program),
        _main(program),
    ]
    return "\n\n".join(parts)


# --- data ------------------------------------------------------------------------------------------------


def _data(program: Program) -> list[str]:
    parts = [
        """def points(count, seed):
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, x.sum(1, keepdim=True) + 0.5)
"""
    ]
    kinds = {program["train_data"], program["val_data"]}
    if "iterable" in kinds:
        parts.append(
            """class Stream(IterableDataset):
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter([self.data[index] for index in range(len(self.data))])
"""
        )
    if "splitting" in kinds:
        parts.append(
            """class Splitting(IterableDataset):
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        rank, world = 0, 1
        if torch.distributed.is_initialized():
            rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        return itertools.islice((self.data[index] for index in range(len(self.data))), rank, None, world)
"""
        )
    if program["sampler"] == "own":
        parts.append(
            """class Backwards(Sampler):
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter(range(len(self.data) - 1, -1, -1))

    def __len__(self):
        return len(self.data)
"""
        )
    parts.append(_loaders(program))
    if program["data_as"] != "loaders":
        parts.append(_data_module(program))
    return parts


def _dataset(kind: str, count: int, batch: int, seed: int) -> str:
    if kind == "splitting":  # as many batches on each rank
        return f"Splitting(points({max(2 * batch, count - count % (2 * batch))}, {seed}))"
    made = f"points({count}, {seed})"
    return f"Stream({made})" if kind == "iterable" else made


def _loaders(program: Program) -> str:
    batch, workers = program["batch_size"], program["loader_workers"]
    options = []
    if workers:
        options.append("num_workers=1")
    if workers == "persistent":
        options.append("persistent_workers=True")
    train = [f"batch_size={batch}", *options, *(["drop_last=True"] if program["drop_last"] else [])]
    sampler = program["sampler"]
    if sampler == "shuffle":
        train.append("shuffle=True")
    elif sampler == "weighted":
        train.append("sampler=WeightedRandomSampler([1.0 + i % 3 for i in range(len(data))], len(data))")
    elif sampler == "own":
        train.append("sampler=Backwards(data)")
    elif sampler == "batches":
        train = [
            f"batch_sampler=BatchSampler(SequentialSampler(data), {batch}, {program['drop_last']})",
            *options,
        ]
    lines = ["def train_loader():"]
    size = program["train_size"]
    several = program["train_loaders"]
    lines.append(f"    data = {_dataset(program['train_data'], size, batch, 1)}")
    lines.append(f"    first = DataLoader(data, {', '.join(train)})")
    if several is None:
        lines.append("    return first\n")
    else:
        lines.append(f"    data = {_dataset(program['train_data'], max(2 * batch, size // 2), batch, 2)}")
        lines.append(f"    second = DataLoader(data, {', '.join(train)})")
        if several == "list":
            lines.append("    return [first, second]\n")
        else:
            lines.append(f"    return pl.utilities.CombinedLoader([first, second], mode={several!r})\n")
    lines += ["", "def val_loader():"]
    made = [
        f"DataLoader({_dataset(program['val_data'], program['val_size'] - 2 * number, batch, 3 + number)}, "
        f"batch_size={batch}{''.join(', ' + option for option in options)})"
        for number in range(program["val_loaders"])
    ]
    lines.append(f"    return {made[0] if len(made) == 1 else '[' + ', '.join(made) + ']'}\n")
    return "\n".join(lines)


def _data_module(program: Program) -> str:
    lines = ["class Data(pl.LightningDataModule):"]
    if program["data_as"] == "module class":
        lines += [
            "    def __init__(self, more=0):",
            "        super().__init__()",
            "        self.save_hyperparameters()",
            "        self.ready = []",
            "",
            "    def setup(self, stage):",
            "        self.ready.append(stage)",
            "",
        ]
    lines += ["    def train_dataloader(self):", "        return train_loader()"]
    if program["val_loaders"]:
        for name in ("val", "test", "predict"):
            lines += ["", f"    def {name}_dataloader(self):", "        return val_loader()"]
    return "\n".join(lines) + "\n"


# --- callbacks and the program -----------------------------------------------------------------------------


def _callbacks(program: Program) -> list[str]:
    parts = []
    if program["stateful"]:
        parts.append(
            """class Counting(pl.Callback):
    def __init__(self):
        self.batches = 0

    def on_train_batch_end(self, *args):
        self.batches += 1

    def state_dict(self):
        return {"batches": self.batches}

    def load_state_dict(self, state):
        self.batches = state["batches"]
"""
        )
    if program["finetuning"] == "own":
        parts.append(
            """class Finetuning(pl.callbacks.BaseFinetuning):
    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.backbone)

    def finetune_function(self, pl_module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.backbone, optimizer, lr=0.01)
"""
        )
    if program["inner"] is not None:
        run = {"fit": "fit(model, data, data)", "validate": "validate(model, data, verbose=False)"}[program["inner"]]
        parts.append(
            f"""class Probe(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 1)

    def loss_of(self, batch):
        return torch.nn.functional.mse_loss(self.layer(torch.nn.functional.dropout(batch[0], 0.2)), batch[1])

    def training_step(self, batch, batch_idx):
        return self.loss_of(batch)

    def validation_step(self, batch, batch_idx):
        self.log("loss", self.loss_of(batch), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Within(pl.Callback):
    def on_train_epoch_start(self, trainer, pl_module):
        model, data = Probe(), DataLoader(points(12, 9), 4)
        inner = pl.Trainer(
            max_epochs=1, accelerator="cpu", devices=trainer.num_devices, strategy=type(trainer.strategy)(),
            num_sanity_val_steps=0, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )
        inner.{run}
        self.log("probe", inner.callback_metrics["loss"], sync_dist=True)
"""
        )
    if program["names"]:
        parts.append(
            """class Named(pl.Callback):
    def __init__(self):
        self.reports, self._early_exit, self.inner, self.own, self.my_hooks = [], "no", None, {}, ()

    def on_validation_end(self, trainer, pl_module):
        self.reports.append(trainer.current_epoch)
"""
        )
    return parts


def _checkpoints(program: Program) -> list[str]:
    watched = f'monitor="{monitor(program)}"'
    kinds = {
        "monitor": [watched],
        "top": [f'{watched}, save_top_k=2, filename="{{epoch}}-{{step}}"'],
        "last": ["save_last=True"],
        "steps": ["every_n_train_steps=2, save_top_k=-1"],
        "train_end": ["save_on_train_epoch_end=True, save_weights_only=True"],
        "two": [watched, 'every_n_epochs=1, save_top_k=-1, filename="each-{epoch}"'],
    }
    return [f"pl.callbacks.ModelCheckpoint({one})" for one in kinds.get(program["checkpoint"], [])]


def _callback_list(program: Program) -> list[str]:
    made = []
    watched = f'"{monitor(program)}"'
    if program["early_stopping"] == "patient":
        made.append(f"pl.callbacks.EarlyStopping({watched}, patience=0, min_delta=0.2)")
    if program["early_stopping"] == "threshold":
        made.append(f"pl.callbacks.EarlyStopping({watched}, stopping_threshold=1.0, check_on_train_epoch_end=True)")
    made += _checkpoints(program)
    options = {
        "weights": {
            "ema": "pl.callbacks.EMAWeightAveraging(decay=0.8)",
            "swa": "pl.callbacks.StochasticWeightAveraging(swa_lrs=0.02, swa_epoch_start=1, annealing_epochs=1)",
        },
        "finetuning": {"own": "Finetuning()", "backbone": "pl.callbacks.BackboneFinetuning(1, lambda epoch: 1.5)"},
        "tuner": {
            "lr": "pl.callbacks.LearningRateFinder(num_training_steps=6)",
            "batch size": "pl.callbacks.BatchSizeFinder(max_trials=1)",
        },
        "accumulate": {"schedule": "pl.callbacks.GradientAccumulationScheduler({0: 1, 1: 2})"},
    }
    made += [found for feature, kinds in options.items() if (found := kinds.get(program[feature])) is not None]
    if program["lr_monitor"] is not None:
        made.append(f"pl.callbacks.LearningRateMonitor({program['lr_monitor']!r})")
    if program["pruning"]:
        made.append('pl.callbacks.ModelPruning("l1_unstructured", amount=0.25)')
    if program["stateful"]:
        made.append("Counting()")
    if program["names"]:
        made.append("Named()")
    if program["inner"] is not None:
        made.append("Within()")
    if program["limit"] == "max_time":
        made.append('pl.callbacks.Timer("00:00:10:00")')
    return made


def _main(program: Program) -> str:
    settings = [f"max_epochs={program['max_epochs']}"]
    if program["limit"] == "max_steps":
        settings.append("max_steps=3")
    if program["limit"] == "min_epochs":
        settings.append(f"min_epochs={program['max_epochs']}")
    if isinstance(program["accumulate"], int) and program["accumulate"] > 1:
        settings.append(f"accumulate_grad_batches={program['accumulate']}")
    if program["clip"] is not None:
        settings.append(f"gradient_clip_val=0.3, gradient_clip_algorithm={program['clip']!r}")
    named = {
        "val_check_interval": "val_check_interval",
        "check_val_every": "check_val_every_n_epoch",
        "limit_train": "limit_train_batches",
        "limit_val": "limit_val_batches",
        "overfit_batches": "overfit_batches",
        "precision": "precision",
        "log_every": "log_every_n_steps",
        "use_distributed_sampler": "use_distributed_sampler",
        "detect_anomaly": "detect_anomaly",
        "deterministic": "deterministic",
        "reload": "reload_dataloaders_every_n_epochs",
    }
    settings += [f"{name}={program[key]!r}" for key, name in named.items() if program[key] != FEATURES[key][0]]
    settings.append(f"num_sanity_val_steps={program['sanity']}")
    if program["val_check_interval"] == 2 and program["train_data"] != "map":
        settings.append("check_val_every_n_epoch=None")
    loggers = {
        "csv": ["pl.loggers.CSVLogger(folder)"],
        "tensorboard": ["pl.loggers.TensorBoardLogger(folder)"],
        "both": ["pl.loggers.TensorBoardLogger(folder)", "pl.loggers.CSVLogger(folder)"],
    }.get(program["logger"], [])
    if loggers:
        settings.append(f"logger=[{', '.join(loggers)}]")
    if program["checkpoint"] is None:
        settings.append("enable_checkpointing=False")
    if program["async_checkpoints"]:
        settings.append("plugins=[pl.plugins.io.AsyncCheckpointIO()]")
    if program["net"] == "unused":
        settings.append("find_unused_parameters=True")
    made = _callback_list(program)
    lines = ["def settings(folder):"]
    lines.append(f"    return dict(callbacks=[{', '.join(made)}], {', '.join(settings)})\n")
    lines += ["", "def main(make_trainer, folder):", "    pl.seed_everything(7)", "    model = Model()"]
    lines += [f"    {line}" for line in _runs(program)]
    if program["data_as"] != "loaders":
        lines += ["", "", "def made(lr):  # as `model` of tunelight.run, with Data and the settings"]
        lines += ["    pl.seed_everything(7)", "    return Model(lr)", ""]
    lines += ["", 'if __name__ == "__main__":']
    lines += [
        "    print(main(lambda **settings: pl.Trainer(accelerator='cpu', devices=2, strategy='ddp', **settings), '.'))"
    ]
    return "\n".join(lines) + "\n"


def _runs(program: Program) -> list[str]:
    if program["data_as"] == "loaders":
        fit = "train_loader(), val_loader()" if program["val_loaders"] else "train_loader()"
        evaluate = "val_loader()"
    else:
        fit, evaluate = "datamodule=Data()", "datamodule=Data()"
    trainer = "trainer = make_trainer(**settings(folder))"
    plain = [trainer, f"trainer.fit(model, {fit})"]
    more = program["max_epochs"] + 1
    further = "max_steps=5, max_epochs=9" if program["limit"] == "max_steps" else f"max_epochs={more}"
    return {
        "fit": [*plain, "return model, []"],
        "fit twice": [
            *plain,
            f"trainer.fit_loop.max_epochs = {more}",
            f"trainer.fit(model, {fit})",
            "return model, []",
        ],
        "two trainers": [*plain, *plain, "return model, []"],
        "validate": [*plain, f"return model, [trainer.validate(model, {evaluate}, verbose=False)]"],
        "validate first": [
            trainer,
            f"before = trainer.validate(model, {evaluate}, verbose=False)",
            f"trainer.fit(model, {fit})",
            "return model, [before]",
        ],
        "test": [*plain, f"return model, [trainer.test(model, {evaluate}, verbose=False)]"],
        "predict": [*plain, f"return model, [trainer.predict(model, {evaluate})]"],
        "from checkpoint": [
            *plain,
            'trainer.save_checkpoint(f"{folder}/half.ckpt")',
            "model = Model()",
            f"trainer = make_trainer(**settings(folder) | dict({further}))",
            f'trainer.fit(model, {fit}, ckpt_path=f"{{folder}}/half.ckpt")',
            "return model, []",
        ],
    }[program["runs"]]
