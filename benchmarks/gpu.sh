#!/usr/bin/env bash
# What is to be seen and measured on a machine with a GPU, in about ten minutes: bash benchmarks/gpu.sh > gpu.txt
# `tiny` as its argument tries the script out where there is none. What it prints belongs into RESULTS.md.
set -euo pipefail
cd "$(dirname "$0")/../.."
weights=${1:-full}

date --utc +%F
git log -1 --format='commit %h'
python -c 'import torch; print(torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU")'

# Every form of the step draws the same codes, no step waits for the host, memory that runs out halves the batch.
python -m pytest -m gpu -p no:xdist tests/engine || echo "FAILED"

# Lumina-7B shapes, one image of 768 pixels with guidance: a step beside the bare forward and the time to read the weights.
bench=(python -m sjdvp_cli bench -p lumina-mgpt-7b-768 --random-weights "$weights")
"${bench[@]}" --batch-sizes 1 --windows 16,32,64
"${bench[@]}" --batch-sizes 1 --windows 32 --set run.step=eager
"${bench[@]}" --batch-sizes 1 --windows 16,32 --set run.step=compile
"${bench[@]}" --batch-sizes 4,8 --windows 32
"${bench[@]}" --batch-sizes 1,8 --windows 1 --decoder ar
