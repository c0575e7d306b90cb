"""Renders a program of the grammar as the source of a module that a person can read and run."""

from __future__ import annotations

from tests.differential.grammar import FEATURES, Program, digest, reached
from tests.differential.modules import lines, methods, model, monitor

NAMES = "BatchSampler, DataLoader, IterableDataset, Sampler, SequentialSampler, TensorDataset, WeightedRandomSampler"
POINTS = """
    def points(count, seed):
        x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
        return TensorDataset(x, x.sum(1, keepdim=True) + 0.5)
"""
DATASETS = {
    "iterable": """
        class Stream(IterableDataset):
            def __init__(self, data):
                self.data = data

            def __iter__(self):
                return iter([self.data[index] for index in range(len(self.data))])
    """,
    "splitting": """
        class Splitting(IterableDataset):
            def __init__(self, data):
                self.data = data

            def __iter__(self):
                rank, world = 0, 1
                if torch.distributed.is_initialized():
                    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
                return itertools.islice((self.data[index] for index in range(len(self.data))), rank, None, world)
    """,
}
BACKWARDS = """
    class Backwards(Sampler):
        def __init__(self, data):
            self.data = data

        def __iter__(self):
            return iter(range(len(self.data) - 1, -1, -1))

        def __len__(self):
            return len(self.data)
"""
WORKERS = {0: "", 1: ", num_workers=1", "persistent": ", num_workers=1, persistent_workers=True"}
SAMPLERS = {
    "shuffle": ", shuffle=True",
    "weighted": ", sampler=WeightedRandomSampler([1.0 + i % 3 for i in range(len(data))], len(data))",
    "own": ", sampler=Backwards(data)",
}
COUNTING = """
    class Counting(pl.Callback):
        def __init__(self):
            self.batches = 0

        def on_train_batch_end(self, *args):
            self.batches += 1

        def state_dict(self):
            return {"batches": self.batches}

        def load_state_dict(self, state):
            self.batches = state["batches"]
"""
FINETUNING = """
    class Finetuning(pl.callbacks.BaseFinetuning):
        def freeze_before_training(self, pl_module):
            self.freeze(pl_module.backbone)

        def finetune_function(self, pl_module, epoch, optimizer):
            if epoch == 1:
                self.unfreeze_and_add_param_group(pl_module.backbone, optimizer, lr=0.01)
"""
WITHIN = """
    class Probe(pl.LightningModule):
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
            inner.RUN
            self.log("probe", inner.callback_metrics["loss"], sync_dist=True)
"""
NAMED = """
    class Named(pl.Callback):
        def __init__(self):
            self.reports, self._early_exit, self.inner, self.own, self.my_hooks = [], "no", None, {}, ()

        def on_validation_end(self, trainer, pl_module):
            self.reports.append(trainer.current_epoch)
"""
CLASSES = {
    ("stateful", True): COUNTING,
    ("finetuning", "own"): FINETUNING,
    ("inner", "fit"): WITHIN.replace("RUN", "fit(model, data, data)"),
    ("inner", "validate"): WITHIN.replace("RUN", "validate(model, data, verbose=False)"),
    ("names", True): NAMED,
}
"""Of callbacks, by the feature and the choice that need them."""
CALLBACKS = {
    ("early_stopping", "patient"): "EarlyStopping(WATCHED, patience=0, min_delta=0.2)",
    ("early_stopping", "threshold"): "EarlyStopping(WATCHED, stopping_threshold=1.0, check_on_train_epoch_end=True)",
    ("checkpoint", "monitor"): "ModelCheckpoint(monitor=WATCHED)",
    ("checkpoint", "top"): 'ModelCheckpoint(monitor=WATCHED, save_top_k=2, filename="{epoch}-{step}")',
    ("checkpoint", "last"): "ModelCheckpoint(save_last=True)",
    ("checkpoint", "steps"): "ModelCheckpoint(every_n_train_steps=2, save_top_k=-1)",
    ("checkpoint", "train_end"): "ModelCheckpoint(save_on_train_epoch_end=True, save_weights_only=True)",
    ("checkpoint", "two"): "ModelCheckpoint(monitor=WATCHED), "
    'pl.callbacks.ModelCheckpoint(every_n_epochs=1, save_top_k=-1, filename="each-{epoch}")',
    ("weights", "ema"): "EMAWeightAveraging(decay=0.8)",
    ("weights", "swa"): "StochasticWeightAveraging(swa_lrs=0.02, swa_epoch_start=1, annealing_epochs=1)",
    ("finetuning", "own"): "Finetuning()",
    ("finetuning", "backbone"): "BackboneFinetuning(1, lambda epoch: 1.5)",
    ("tuner", "lr"): "LearningRateFinder(num_training_steps=6)",
    ("tuner", "batch size"): "BatchSizeFinder(max_trials=1)",
    ("accumulate", "schedule"): "GradientAccumulationScheduler({0: 1, 1: 2})",
    ("lr_monitor", "epoch"): "LearningRateMonitor('epoch')",
    ("lr_monitor", "step"): "LearningRateMonitor('step')",
    ("pruning", True): 'ModelPruning("l1_unstructured", amount=0.25)',
    ("stateful", True): "Counting()",
    ("names", True): "Named()",
    ("inner", "fit"): "Within()",
    ("inner", "validate"): "Within()",
    ("limit", "max_time"): 'Timer("00:00:10:00")',
}
"""By feature and choice, in the order of the Trainer's list."""
SETTINGS = {
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
"""Features that are arguments of a Trainer."""
LOGGERS = {
    "csv": "logger=[pl.loggers.CSVLogger(folder)]",
    "tensorboard": "logger=[pl.loggers.TensorBoardLogger(folder)]",
    "both": "logger=[pl.loggers.TensorBoardLogger(folder), pl.loggers.CSVLogger(folder)]",
}


def render(program: Program, package: str = "pytorch_lightning") -> str:
    """Return the module's source. ``main(make_trainer, folder)`` trains, and returns what its runs returned."""
    lightning = "lightning.pytorch" if package == "lightning" else package
    beyond = sorted(name for name in reached(program) if not name.startswith("log."))
    parts = [
        f'"""Program {digest(program)}: {", ".join(beyond) or "the plainest"}."""\n',
        "import copy\nimport itertools\n",
        f"import torch\nfrom torch.utils.data import {NAMES}\nimport {lightning} as pl\n",
        _code(POINTS),
        *(_code(text) for kind, text in DATASETS.items() if kind in (program["train_data"], program["val_data"])),
        *([_code(BACKWARDS)] if program["sampler"] == "own" else []),
        _loaders(program),
        *([_data_module(program)] if program["data_as"] != "loaders" else []),
        model(program),
        *(_code(text) for (feature, choice), text in CLASSES.items() if program[feature] == choice),
        _main(program),
    ]
    return "\n\n".join(parts)


def _code(text: str) -> str:
    return "\n".join(lines(text)) + "\n"


def _dataset(kind: str, count: int, batch: int, seed: int) -> str:
    if kind == "splitting":  # as many batches on each rank
        return f"Splitting(points({max(2 * batch, count - count % (2 * batch))}, {seed}))"
    made = f"points({count}, {seed})"
    return f"Stream({made})" if kind == "iterable" else made


def _loaders(program: Program) -> str:
    batch, size, kind = program["batch_size"], program["train_size"], program["train_data"]
    several, workers = program["train_loaders"], WORKERS[program["loader_workers"]]
    drop = ", drop_last=True" if program["drop_last"] else ""
    options = f"batch_size={batch}{workers}{drop}{SAMPLERS.get(program['sampler'], '')}"
    if program["sampler"] == "batches":
        options = f"batch_sampler=BatchSampler(SequentialSampler(data), {batch}, {program['drop_last']}){workers}"
    body = [f"data = {_dataset(kind, size, batch, 1)}", f"first = DataLoader(data, {options})"]
    if several is None:
        body.append("return first")
    else:
        body.append(f"data = {_dataset(kind, max(2 * batch, size // 2), batch, 2)}")
        body.append(f"second = DataLoader(data, {options})")
        combined = f"pl.utilities.CombinedLoader([first, second], mode={several!r})"
        body.append(f"return {'[first, second]' if several == 'list' else combined}")
    made = [
        f"DataLoader({_dataset(program['val_data'], program['val_size'] - 2 * number, batch, 3 + number)}, "
        f"batch_size={batch}{workers})"
        for number in range(program["val_loaders"])
    ]
    returned = made[0] if len(made) == 1 else f"[{', '.join(made)}]"
    return "\n    ".join(["def train_loader():", *body]) + f"\n\n\ndef val_loader():\n    return {returned}\n"


def _data_module(program: Program) -> str:
    bodies = {}
    if program["data_as"] == "module class":
        init = ["super().__init__()", "self.save_hyperparameters()", "self.ready = []"]
        bodies = {"__init__(self, more=0)": init, "setup(self, stage)": ["self.ready.append(stage)"]}
    bodies["train_dataloader(self)"] = ["return train_loader()"]
    if program["val_loaders"]:
        bodies |= {f"{name}_dataloader(self)": ["return val_loader()"] for name in ("val", "test", "predict")}
    return "class Data(pl.LightningDataModule):\n" + methods(bodies)


def _callbacks(program: Program) -> str:
    chosen = [made for (feature, choice), made in CALLBACKS.items() if program[feature] == choice]
    own = ("Finetuning(", "Counting(", "Named(", "Within(")
    made = ", ".join(one if one.startswith(own) else f"pl.callbacks.{one}" for one in chosen)
    return made.replace("WATCHED", f'"{monitor(program)}"')


def _settings(program: Program) -> str:
    """Return the arguments of a Trainer."""
    epochs, accumulate = program["max_epochs"], program["accumulate"]
    found = {
        f"callbacks=[{_callbacks(program)}]": True,
        f"max_epochs={epochs}": True,
        "max_steps=3": program["limit"] == "max_steps",
        f"min_epochs={epochs}": program["limit"] == "min_epochs",
        f"accumulate_grad_batches={accumulate}": isinstance(accumulate, int) and accumulate > 1,
        f"gradient_clip_val=0.3, gradient_clip_algorithm={program['clip']!r}": program["clip"] is not None,
        **{f"{name}={program[key]!r}": program[key] != FEATURES[key][0] for key, name in SETTINGS.items()},
        f"num_sanity_val_steps={program['sanity']}": True,
        "check_val_every_n_epoch=None": program["val_check_interval"] == 2 and program["train_data"] != "map",
        LOGGERS.get(program["logger"], ""): program["logger"] is not None,
        "enable_checkpointing=False": program["checkpoint"] is None,
        "plugins=[pl.plugins.io.AsyncCheckpointIO()]": program["async_checkpoints"],
        "find_unused_parameters=True": program["net"] == "unused",
    }
    return ", ".join(setting for setting, given in found.items() if given)


def _main(program: Program) -> str:
    made = "\n\ndef made(lr):  # as `model` of tunelight.run, with Data and the settings\n"
    trainer = "pl.Trainer(accelerator='cpu', devices=2, strategy='ddp', **settings)"
    return "\n".join([
        "def settings(folder):",
        f"    return dict({_settings(program)})\n\n",
        "def main(make_trainer, folder):",
        "    pl.seed_everything(7)",
        "    model = Model()",
        *(f"    {line}" for line in _runs(program)),
        *([f"{made}    pl.seed_everything(7)\n    return Model(lr)\n"] if program["data_as"] != "loaders" else []),
        "",
        'if __name__ == "__main__":',
        f"    print(main(lambda **settings: {trainer}, '.'))\n",
    ])  # fmt: skip


def _runs(program: Program) -> list[str]:
    fit = evaluate = "datamodule=Data()"
    if program["data_as"] == "loaders":
        fit, evaluate = "train_loader(), val_loader()" if program["val_loaders"] else "train_loader()", "val_loader()"
    trainer = "trainer = make_trainer(**settings(folder))"
    plain = [trainer, f"trainer.fit(model, {fit})"]
    more = program["max_epochs"] + 1
    further = "max_steps=5, max_epochs=9" if program["limit"] == "max_steps" else f"max_epochs={more}"
    validated = f"trainer.validate(model, {evaluate}, verbose=False)"
    return {
        "fit": [*plain, "return model, []"],
        "fit twice": [*plain, f"trainer.fit_loop.max_epochs = {more}", plain[1], "return model, []"],
        "two trainers": [*plain, *plain, "return model, []"],
        "validate": [*plain, f"return model, [{validated}]"],
        "validate first": [trainer, f"before = {validated}", plain[1], "return model, [before]"],
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
