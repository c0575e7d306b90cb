"""The floor of a cold start: prints the seconds of ``ray.init`` or of a worker's ``imports``, and when it was ready."""

from __future__ import annotations

import json
import sys
import time

if sys.argv[1] == "ray":
    import ray

    began = time.time()
    ray.init(address="local", include_dashboard=False, log_to_driver=False)  # as tunelight starts it
    ready = time.time()
    ray.shutdown()
else:
    began = time.time()
    import lightning_parts  # noqa: F401 - imported to be timed
    import ray
    import sklearn.datasets  # noqa: F401 - imported to be timed

    ready = time.time()
print(json.dumps([ready - began, ready]))
