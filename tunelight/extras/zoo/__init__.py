"""The models and data of the search spaces that come with tunelight, beside those in ``tunelight.digits``."""

from tunelight.extras.zoo.finetune import DigitsFineTuner
from tunelight.extras.zoo.gan import DigitsGAN
from tunelight.extras.zoo.local import Cifar10Data, ImagesMissingError, MnistData
from tunelight.extras.zoo.parquet import write_parquet
from tunelight.extras.zoo.vision import ImageMLP, VisionTransformer

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
