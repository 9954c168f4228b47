#!/usr/bin/env bash
# What ten minutes on a GPU can settle, most valuable first: bash benchmarks/gpu.sh [--tiny]
# Each part has a time limit and none stops the others. $OUT (default: gpu-findings) receives
# findings.jsonl, one line per part, and part-N.log. --tiny tries the script out without a GPU.
# Needs neither git nor a command called python: the tree may be an unpacked archive. Where the
# machine has an older transformers and no network, put a newer one into .gpu/ beforehand:
# pip download --no-deps -d .gpu transformers
cd "$(dirname "$0")/.." || exit 1
weights=full
if [ "${1:-}" = --tiny ]; then weights=tiny; fi
left() { echo $((${SECONDS_LEFT:-580} - SECONDS)); }
python=$(command -v python3 || command -v python)
out=${OUT:-gpu-findings}
mkdir -p "$out"
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 PYTHONPATH=$PWD:$PYTHONPATH
for wheel in .gpu/*.whl; do
    [ -e "$wheel" ] && "$python" -m zipfile -e "$wheel" .gpu/packages
    export PYTHONPATH=$PWD/.gpu/packages:$PYTHONPATH
done
parts=0

# part NAME SECONDS COMMAND...: the last line that the command prints, if it is JSON, is kept.
part() {
    local name=$1 limit=$2 log=$out/part-$((++parts)).log began=$SECONDS rc result
    shift 2
    if [ "$limit" -gt "$(left)" ]; then limit=$(left); fi
    if [ "$limit" -lt 5 ]; then
        rc=-1 && : > "$log" # no time left
    else
        timeout "$limit" "$@" > "$log" 2>&1
        rc=$?
    fi
    result=$(tail -n 1 "$log")
    case $result in {*}) ;; *) result=null ;; esac
    printf '{"part": "%s", "rc": %d, "seconds": %d, "result": %s}\n' \
        "$name" "$rc" $((SECONDS - began)) "$result" >> "$out/findings.jsonl"
    echo "$name: exit status $rc after $((SECONDS - began)) s, see $log"
}

sjdvp() { part "$1" "$2" "$python" -m sjdvp_cli "${@:3}"; }

# 1. Is it right? Same tokens from every form of the step, no host wait, the command end to end.
sjdvp "the machine" 60 doctor --json
part "gpu tests" 120 "$python" -m pytest -m gpu -p no:xdist -p no:cacheprovider -q tests/engine
sjdvp "embedded model" 60 generate --prompts tests/data/first32.txt --limit 8 --seed 1 \
    --overwrite --out "$out/images"
sjdvp "images and log" 30 check "$out/images"

# 2. What does a step cost in the shapes of Lumina-mGPT 7B? The compiled step is last: it may take
# all the time there is.
measure() {
    sjdvp "bench ${*:2}" "$1" bench -p lumina-mgpt-7b-768 --random-weights "$weights" --json "${@:2}"
}
measure 100 --batch-sizes 1 --windows 16,32,64
measure 60 --batch-sizes 1 --decoder ar
measure 100 --batch-sizes 8,16 --windows 16,32
measure 60 --batch-sizes 1 --windows 32 --set run.step=eager
measure 240 --batch-sizes 1 --windows 32 --set run.step=compile
exit 0
