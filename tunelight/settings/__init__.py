"""Settings of a sweep and their checks, and checks of the code that it trains."""

from tunelight.checkpoints.policy import Checkpoints
from tunelight.settings.code import check_model, check_train, fingerprint, import_path, load_object
from tunelight.settings.values import (
    NAMES,
    PARTS,
    SETTINGS,
    Mode,
    Settings,
    check_names,
    check_paired,
    check_setting,
    check_trainer_argument,
    paired,
)
