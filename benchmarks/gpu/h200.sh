#!/bin/sh
# Ten minutes of an NVIDIA GPU (H100 or H200) in one command: what it is, microbenchmarks, an LSTM's programs by all
# their variants, as many models as there is time for against PyTorch, then the outputs of all others.
#
#   benchmarks/gpu/h200.sh RESULTS [--seconds 560] [--before DIR] [--programs DIR] [--dry-run]
#
# RESULTS is a folder: each step writes there when it is done, the models after each. --before has a checkout of
# another commit for peers @before; --programs keeps what is compiled, beside the measurements.
# A step that fails or takes too long does not stop the next. Nothing is installed, and nothing of the GPU is set.
set -u
cd "$(dirname "$0")/../.."
results=; seconds=560; before=; programs=; dry=
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=$2; shift ;;
    --before) before=$2; shift ;;
    --programs) programs=$2; shift ;;
    --dry-run) dry=--dry-run ;;
    -*) echo "no option $1" >&2; exit 2 ;;
    *) results=$1 ;;
  esac
  shift
done
if [ -z "$dry" ] && ! nvidia-smi -L 2>/dev/null; then
  echo "no NVIDIA GPU to measure: nvidia-smi finds none (--dry-run tries the code without one)" >&2
  exit 1
fi
[ -n "$results" ] || { echo "usage: $0 RESULTS [--seconds N] [--before DIR] [--programs DIR] [--dry-run]" >&2; exit 2; }
mkdir -p "$results"
python=${PYTHON:-python3}
missing=$("$python" - <<'PY'
from importlib.util import find_spec
named = "click networkx ml_dtypes numpy onnx pluggy rich torch cupy cuda.bindings".split()
print(*[n for n in named if find_spec(n.partition(".")[0]) is None])
PY
)
[ -z "$missing" ] || echo "$python lacks: $missing; steps that need them fail" >&2
programs=${programs:-$(mktemp -d)}
slots=$programs/slots  # not among the results: those are few files
export RAMMER_WATCHDOG_SECONDS=2 PYTHONUNBUFFERED=1
begin=$(date +%s)
left() { echo $((seconds - $(date +%s) + begin)); }

# step NAME LIMIT COMMAND…: at most so many seconds, and no longer than there is time.
step() {
  name=$1; limit=$2; shift 2
  [ "$(left)" -lt "$limit" ] && limit=$(left)
  if [ "$limit" -lt 5 ]; then echo "== $name: no time is left"; return; fi
  echo "== $name (at most $limit s, $(left) s are left)"
  timeout -k 5 "$limit" "$@" 2>&1 || echo "== $name ended with $?"
}

lstm=lstm_tc_lstm
variants=rammer-stationary,rammer-stationary@x2,rammer-stationary@c8,torch-graph
[ -z "$before" ] || variants=$variants,rammer-stationary@before,rammer-stationary@x2@before
models=${MODELS:-seq2seq_lstm,deepspeech2_lstm,resnext29_grouped,today_vit_tiny:4,today_minilm_128,today_resnet50,today_vit_tiny,today_mobilenet_v2,today_minilm_128:4,today_resnet50:4,nasnet_cifar,today_whisper_encoder,today_llama_256,resnext29_grouped:4,today_mobilenet_v2:4,today_swin_tiny,today_gpt2_64,today_conformer_chunk,today_efficientnet_b0,today_crnn}
peers=rammer,rammer@tf32,rammer-sequential,torch-graph,torch-graph-tf32
closest=${CLOSEST:-today_vit_tiny:4,today_resnet50}
if [ -n "$dry" ]; then models=alexnet closest=alexnet; fi
others=$(MODELS=$lstm,$models "$python" - <<'PY'
import os
from benchmarks.models import catalog
measured = os.environ["MODELS"].split(",")
print(*[name for name in catalog.names() if name not in measured], sep=",")
PY
)
others=${OTHERS:-$others}

{
  step state 20 sh -c "nvidia-smi -q -d CLOCK,POWER,TEMPERATURE | head -60; $python -m rammer doctor | head -20"
  # The GPU is hidden from what compiles: plans are for the spec of an H200, whichever of the two is here.
  cores=$(nproc); jobs=$((cores > 4 ? cores - 4 : 2))
  compile() {
    CUDA_VISIBLE_DEVICES='' timeout "$(left)" nice -n 5 "$python" -m benchmarks.gpu.run --prepare h200 --programs "$programs" --jobs "$1" \
      --models "$2" --peers "$3" ${before:+--before "$before"} $dry
  }
  # The LSTM's come first; what they leave of the cores begins with the others.
  { compile "$jobs" $lstm "$variants" & sleep 10; compile $((jobs > 4 ? jobs - 2 : jobs)) "$models" "$peers"; wait
    compile "$jobs" "$others" rammer,torch; } >"$results/prepare.log" 2>&1 &
  preparing=$!
  step microbenchmarks 60 "$python" -m benchmarks.gpu.micro --json "$results/micro.json" $dry
  measure() {  # NAME SECONDS MODELS PEERS RUNS SECONDS-TO-LOAD SECONDS-TO-AWAIT
    step "$1" $(($2 + 15)) "$python" -m benchmarks.gpu.run --no-micro --programs "$programs" --load-timeout "$6" \
      --await "$7" --seconds "$2" --models "$3" --peers "$4" --runs "$5" --slots "$slots" \
      --json "$results/$1.json" $dry
  }
  measure lstm 150 $lstm "$variants" 100 40 90
  step slots 20 "$python" -m benchmarks.gpu.slots "$slots"
  rest=$(($(left) - ${AFTER:-210}))
  measure models "$rest" "$models" "$peers" 40 40 90
  step slots 20 "$python" -m benchmarks.gpu.slots "$slots" --json "$results/slots.json"
  measure max 90 "$closest" torch-max,rammer 40 90 1
  measure others "$(($(left) - 20))" "$others" rammer 8 20 5
  kill $preparing 2>/dev/null
} | tee "$results/log.txt"
[ ! -d "$slots" ] || tar -czf "$results/slots.tar.gz" -C "$programs" slots
ls -l "$results"
