#!/bin/sh
# All that is to be known about an NVIDIA GPU (an H200, or any from sm_80 on), in one command: checks, microbenchmarks,
# all models against their peers. Options go to benchmarks/gpu.py; --dry-run tries it without a GPU.
set -eu
cd "$(dirname "$0")/.."
dry=0
for word in "$@"; do [ "$word" = --dry-run ] && dry=1; done
if [ "$dry" = 0 ] && ! nvidia-smi -L 2>/dev/null; then
  echo "no NVIDIA GPU to measure: nvidia-smi finds none (--dry-run tries the code without one)" >&2
  exit 1
fi
python=${PYTHON:-python3}
if ! "$python" -c 'import click, networkx, ml_dtypes, numpy, onnx, pluggy, rich, torch' 2>/dev/null; then
  echo "$python lacks packages: installing them into .venv-gpu" >&2
  "$python" -m venv .venv-gpu
  .venv-gpu/bin/pip install --quiet -e '.[bench,cuda]'
  python=.venv-gpu/bin/python
fi
"$python" -m rammer doctor || true
if [ "$dry" = 0 ]; then
  if "$python" -c 'import pytest' 2>/dev/null; then
    side_by_side=
    if "$python" -c 'import xdist' 2>/dev/null; then side_by_side='-n 8'; fi
    # A thread for each: all would take all cores, and wait for them in turns.
    RAMMER_REQUIRE_VDEVICES=cuda OMP_NUM_THREADS=1 "$python" -m pytest -q -p no:cacheprovider -p no:benchmark $side_by_side \
      tests/conformance/test_builtin.py tests/vdevice/test_cuda_gpu.py tests/end2end/test_matrix.py \
      -k 'TestCuda and not Emulator or every_candidate or GPU and not emulator' \
      || echo "TESTS ON THE GPU FAIL: numbers below are of a wrong program" >&2
    OMP_NUM_THREADS=1 "$python" -m rammer.testing.onnx_suite --sample --device cuda --jobs 8 \
      || echo "ONNX'S OWN CASES FAIL on the GPU" >&2
  else
    echo "pytest is not installed: tests on the GPU are left out" >&2
  fi
fi
exec "$python" -m benchmarks.gpu "$@"
