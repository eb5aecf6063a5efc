#!/bin/sh
# Figure 19 on this machine's AMD GPU: needs ROCm's HIP runtime, Python 3.11 and the network for pip.
set -eu
cd "$(dirname "$0")/../.."
[ -e /dev/kfd ] || { echo "no AMD GPU: there is no /dev/kfd (benchmarks/gpu/rocm.py simulates without one)" >&2; exit 1; }
python3 -m venv .venv-rocm
.venv-rocm/bin/pip install --quiet -e ./wheels/runtime -e ./plugins/torch -e '.[bench,rocm]'
.venv-rocm/bin/python -m rammer doctor
.venv-rocm/bin/python -m benchmarks.gpu.rocm --measure "$@"
