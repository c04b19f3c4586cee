#!/usr/bin/env bash
# One skill from end to end: tune MiniLM on sst2, cut grafts of several sizes out of it, score them on 1,000 test rows.
# What docs/results/first-look.md shows.
#
#   SKILLGRAFT_DATA=… examples/first_look.sh WORK [200|960|pulled …]
#
# Three fine-tunes of one base on the same 512 rows per class: 200 steps, 960 (15 epochs), and 960 with P1's pull towards the base;
# or some of them. Finished steps are kept in WORK.
set -euo pipefail
here="$(cd "$(dirname "$0")/.." && pwd)"
work="${1:?where to work}"
models=("${@:2}")
[ "${#models[@]}" -gt 0 ] || models=(200 960 pulled)
bin="$here/.venv/bin"
mkdir -p "$work"
cd "$work"
[ -d models/minilm ] || "$bin/python" "$here/examples/models.py" models minilm
# The catalogue's task with shorter descriptions, by which the base alone is better.
sed -e 's/^negative = "a negative.*/negative = "a bad film"/' -e 's/^positive = "a positive.*/positive = "a good film"/' \
  "$here/src/skillgraft/tasks/catalogue/sst2.toml" >films.toml
read=(--task films.toml --shots 512 --max-length 64)

# the model of that name
tune() {
  case "$1" in
    200 | 960) local how=(--steps "$1") ;;
    pulled) local how=(--steps 960 --l1 1e-3) ;;
    *) echo "expected 200, 960 or pulled, found $1" >&2 && exit 2 ;;
  esac
  [ -d "tuned-$1" ] || "$bin/skillgraft" finetune models/minilm "${read[@]}" --lr 0.02 --batch-size 16 "${how[@]}" -o "tuned-$1"
}

# a graft of NAME in that model, by the given options of localize
cut() {
  local name="$1-$2" tuned="tuned-$2"
  shift 2
  [ -f "$name.safetensors" ] || "$bin/skillgraft" localize models/minilm "$tuned" "${read[@]}" "$@" -o "$name.safetensors"
}

for model in "${models[@]}"; do
  tune "$model"
  for density in 1e-4 1e-3 1e-2; do
    cut "movement-$density" "$model" --method movement --density "$density"
  done
  cut authors "$model" --method learned --steps 40 --batch-size 256 --init uniform
  cut learned "$model" --method learned --steps 40 --batch-size 256 --density 1e-4
  cut budgeted "$model" --method budgeted --density 1e-4
done

for model in "${models[@]}"; do
  echo "## $model"
  grafts=()
  for file in *-"$model".safetensors; do grafts+=(--graft "$file"); done
  "$bin/skillgraft" evaluate models/minilm --task films.toml --max-length 64 --test-rows 1000 --tuned "tuned-$model" "${grafts[@]}"
done
