#!/usr/bin/env bash
# Fine-tune and evaluate real models on real data, one command each: what docs/results/data.md shows.
#
#   SKILLGRAFT_DATA=… examples/real_tasks.sh WORK
#
# Finished steps are kept in WORK and not run again; the tables are printed at the end.
set -euo pipefail
here="$(cd "$(dirname "$0")/.." && pwd)"
work="${1:?where to work}"
bin="$here/.venv/bin"
mkdir -p "$work"
cd "$work"
[ -d models/vit ] || "$bin/python" "$here/examples/models.py" models minilm vit reactions smollm2-gguf

# task, base, name, arguments of finetune, arguments of both, test rows
run() {
  local task="$1" base="$2" name="$3" train="$4" both="$5" rows="${6:-1000}"
  [ -d "$name" ] || "$bin/skillgraft" finetune "models/$base" --task "$task" $train $both -o "$name"
  [ -f "$name.txt" ] || { "$bin/skillgraft" evaluate "models/$base" --task "$task" --tuned "$name" --test-rows "$rows" $both >"$name.part"; mv "$name.part" "$name.txt"; }
}

run sst2 minilm sst2-64 "--shots 64 --steps 240 --lr 0.02 --batch-size 16" "--max-length 64"
run ag_news minilm ag_news-64 "--shots 64 --steps 240 --lr 0.02 --batch-size 16" "--max-length 64"
run trec minilm trec-64 "--shots 64 --steps 240 --lr 0.02 --batch-size 16" "--max-length 64"
run mrpc minilm mrpc-512 "--shots 512 --optimizer adamw --lr 1e-4 --batch-size 16 --steps 300" "--max-length 64"
run rte minilm rte-512 "--shots 512 --optimizer adamw --lr 1e-4 --batch-size 16 --steps 300" "--max-length 64"
run mnist vit mnist "--train-rows 4000 --optimizer adamw --lr 1e-3 --batch-size 64 --epochs 6 --schedule cosine --train-embeddings" ""
run models/rings.toml reactions rings "--shots 32 --optimizer adamw --lr 1e-4 --batch-size 8 --steps 60" ""
run sst2 smollm2-gguf smollm2-sst2 "--shots 32 --optimizer adamw --lr 1e-5 --batch-size 8 --steps 40" "--max-length 64" 400

for table in sst2-64 ag_news-64 trec-64 mrpc-512 rte-512 mnist rings smollm2-sst2; do
  echo "## $table"
  cat "$table.txt"
done
