"""The models and data of the search spaces that come with tunelight, beside those in ``tunelight.digits``."""

from tunelight.zoo.finetune import DigitsFineTuner
from tunelight.zoo.gan import DigitsGAN
from tunelight.zoo.local import Cifar10Data, ImagesMissingError, MnistData
from tunelight.zoo.parquet import write_parquet
from tunelight.zoo.vision import ImageMLP, VisionTransformer

__all__ = [
    "Cifar10Data",
    "DigitsFineTuner",
    "DigitsGAN",
    "ImageMLP",
    "ImagesMissingError",
    "MnistData",
    "VisionTransformer",
    "write_parquet",
]
