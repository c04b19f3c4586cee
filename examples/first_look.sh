#!/usr/bin/env bash
# One skill from end to end: tune MiniLM on sst2, cut grafts of several sizes out of it, score them on 1,000 test rows.
# What docs/results.md shows under "One skill, looked at closely".
#
#   SKILLGRAFT_DATA=… examples/first_look.sh WORK
#
# Two fine-tunes of one base on the same 512 rows per class: 200 steps, and 960 (15 epochs). Finished steps are kept in WORK.
set -euo pipefail
here="$(cd "$(dirname "$0")/.." && pwd)"
work="${1:?where to work}"
bin="$here/.venv/bin"
mkdir -p "$work"
cd "$work"
[ -d models/minilm ] || "$bin/python" "$here/examples/models.py" models
# The catalogue's task with shorter descriptions, by which the base alone is better.
sed -e 's/^negative = "a negative.*/negative = "a bad film"/' -e 's/^positive = "a positive.*/positive = "a good film"/' \
  "$here/src/skillgraft/tasks/catalogue/sst2.toml" >films.toml
read=(--task films.toml --shots 512 --max-length 64)

# a graft of NAME in the model tuned for STEPS, by the given options of localize
cut() {
  local name="$1" steps="$2"
  shift 2
  [ -f "$name.safetensors" ] || "$bin/skillgraft" localize models/minilm "tuned-$steps" "${read[@]}" --batch-size 256 "$@" -o "$name.safetensors"
}

for steps in 200 960; do
  [ -d "tuned-$steps" ] || "$bin/skillgraft" finetune models/minilm "${read[@]}" --lr 0.02 --batch-size 16 --steps "$steps" -o "tuned-$steps"
  for budget in 1e-4 1e-3 1e-2; do
    cut "movement-$budget-$steps" "$steps" --method movement --budget "$budget"
  done
  cut "authors-$steps" "$steps" --steps 40 --init uniform
  cut "learned-$steps" "$steps" --steps 40 --budget 1e-4
  cut "budgeted-$steps" "$steps" --method budgeted --budget 1e-4
done

for steps in 200 960; do
  echo "## $steps steps"
  grafts=()
  for file in *-"$steps".safetensors; do grafts+=(--graft "$file"); done
  "$bin/skillgraft" evaluate models/minilm --task films.toml --max-length 64 --rows 1000 --tuned "tuned-$steps" "${grafts[@]}"
done
