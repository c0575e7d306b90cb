#!/usr/bin/env bash
# What needs a GPU, in parts that take less than ten minutes each: gpu.sh PYTHON [PART ...]
#   PYTHON  an interpreter with what `pip install -e '.[dev]'` installs (`make gpu` gives that of .venv)
#   PART    some of: training memory faults population copies example throughput eager compiled gangs
#           (default: all)
# Without a CUDA device the tests and the benchmark run on CPUs, small, which shows only that they run.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${1:?gpu.sh PYTHON [PART ...]}
shift
parts=("$@")
((${#parts[@]})) || parts=(training memory faults population copies example throughput eager compiled gangs)
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}

if ! gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())'); then
  echo "gpu.sh: $python cannot import torch" >&2
  exit 1
fi
short=()
gpu=(--gpu)
if ((gpus == 0)); then
  export TUNELIGHT_GPU_TESTS=cpu
  short=(--short)
  gpu=()
fi

runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT
failed=()
for part in "${parts[@]}"; do
  echo "--- $part"
  case $part in
    training | memory | faults | population) "$python" -m pytest -q -m gpu --durations=3 "tests/gpu/test_$part.py" ;;
    copies) "$python" -m pytest -q -m gpu tests/unit/checkpoints/test_writer.py tests/unit/lightning/state/test_changes.py ;;
    example)
      if "$python" -c 'import pyarrow' 2>/dev/null; then
        "$python" examples/vit_cifar10.py --size tiny --workers 1 --steps 1,2,4 "${gpu[@]}" --storage "$runs"
      else
        echo "examples/vit_cifar10.py was NOT run: it needs pyarrow"
      fi
      ;;
    throughput | eager | compiled | gangs) "$python" benchmarks/gpu.py "${short[@]}" --only "$part" ;;
    *) echo "gpu.sh: no part is called $part" >&2; exit 2 ;;
  esac || failed+=("$part")
done

((${#failed[@]})) && echo "Failed: ${failed[*]}"
if ((gpus == 0)); then
  echo "torch sees no CUDA device here: all of this ran on CPUs, and NOTHING was shown about GPUs."
fi
exit $((${#failed[@]} > 0))
