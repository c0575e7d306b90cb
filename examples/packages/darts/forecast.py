"""Forecast a series with darts' N-HiTS: a sweep, the best of its models, and a model trained longer on two workers.

pip install -e . -r examples/packages/darts/requirements.txt
python examples/packages/darts/forecast.py
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import argparse
import logging
from typing import Any

import numpy as np
from darts import TimeSeries
from darts.metrics import mae
from darts.models import NHiTSModel
from darts.utils.timeseries_generation import gaussian_timeseries, linear_timeseries, sine_timeseries

import tunelight as tl

HORIZON = 24


def series() -> tuple[TimeSeries, TimeSeries, TimeSeries]:
    """Return a seasonal series with a trend and noise, divided into training, validation and test."""
    length = 720
    np.random.seed(0)  # noqa: NPY002 - what darts draws its noise from
    noise = gaussian_timeseries(length=length, std=0.1)
    whole = linear_timeseries(length=length, end_value=2) + sine_timeseries(length=length, value_frequency=1 / 24)
    whole = (whole + noise).astype(np.float32)
    return whole[:600], whole[600 - 3 * HORIZON : -HORIZON], whole[-HORIZON:]


def model(config: dict[str, Any], **trainer: Any) -> NHiTSModel:
    """Return a model of a configuration that trains with a Trainer of these arguments."""
    return NHiTSModel(
        input_chunk_length=2 * HORIZON,
        output_chunk_length=HORIZON,
        num_layers=config["layers"],
        layer_widths=config["width"],
        dropout=config["dropout"],
        batch_size=32,
        optimizer_kwargs={"lr": config["lr"]},
        n_epochs=config["epochs"],
        random_state=1,
        pl_trainer_kwargs={
            "accelerator": "cpu",
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "logger": False,
            **trainer,
        },
    )


def train(config: dict[str, Any]) -> None:
    """Train one configuration; runs on both workers of a trial."""
    past, validation, _ = series()
    report = tl.TuneReportCheckpointCallback({"val_loss": "val_loss"})
    model(config, strategy=tl.RayStrategy(), callbacks=[report]).fit(past, val_series=validation)


def sweep(storage: str) -> tl.SweepResults:
    """Search learning rate, size and dropout: 8 trials of two workers each."""
    space = {
        "lr": tl.loguniform(1e-4, 1e-2),
        "width": tl.choice([64, 128, 256]),
        "layers": tl.choice([1, 2]),
        "dropout": tl.uniform(0, 0.3),
        "epochs": 8,
    }
    return tl.run(space, train, metric="val_loss", num_samples=8, workers=2, seed=1, storage=storage)


def main() -> None:
    """Run the sweep, forecast with its best model, then train that configuration for longer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--storage", default="runs")
    args = parser.parse_args()
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)

    results = sweep(args.storage)
    print(results.dataframe().to_string())
    print(f"Best: {results.best_config}")

    # The winner: a model of its configuration, with the weights of its checkpoint.
    past, validation, future = series()
    winner = model(results.best_config)
    winner.load_weights_from_checkpoint(file_name=str(results.best.checkpoint), load_encoders=False, skip_checks=True)
    print(f"The winner's forecast is off by {mae(future, winner.predict(HORIZON, series=validation)):.3f}")

    # The same without a sweep: this process's model trains on two workers.
    with tl.RayStrategy(num_workers=2) as strategy:
        longer = model({**results.best_config, "epochs": 16}, strategy=strategy)
        longer.fit(past, val_series=validation)
        forecast = longer.predict(HORIZON, series=validation)
    print(f"Trained twice as long: {mae(future, forecast):.3f}")
    naive = float(np.abs(future.values() - validation.values()[-HORIZON:]).mean())
    print(f"The same hours of the day before: {naive:.3f}")


if __name__ == "__main__":
    main()
