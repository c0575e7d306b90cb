"""Train configurations in a process of their own, without gangs: python -m tests.gpu.plain JSON."""

from __future__ import annotations

import json
import logging
import sys
import traceback

from tests.gpu.training import alone

if __name__ == "__main__":
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    for number, config in enumerate(json.loads(sys.argv[1])):
        try:
            losses = alone(config)
        except Exception:  # noqa: BLE001 - such as a compiler that is missing: the other configurations need none
            traceback.print_exc()
        else:
            sys.stdout.write(f"LOSSES {json.dumps([number, losses])}\n")
