"""Train configurations in a process of their own, without gangs: python -m tests.gpu.plain JSON."""

from __future__ import annotations

import json
import logging
import sys

from tests.gpu.training import alone

if __name__ == "__main__":
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    losses = [alone(config) for config in json.loads(sys.argv[1])]
    sys.stdout.write(f"LOSSES {json.dumps(losses)}\n")
