"""Run by vLLM's own Python: greedy answers of a base with adapters in one batch, of a folder, and of a base that is patched.

    python vllm_answers.py '{"model": "BASE", "adapters": ["a", null], "max_rank": 64, "prompts": ["…"], "tokens": 12}'

Prints one JSON object: token ids of each prompt with each adapter, and after the patch.
"""

import json
import os
import sys

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the worker's model lives in this process
from safetensors import safe_open
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest


def patched(model, path):
    """A patch file through vLLM's own loader."""
    from vllm.model_executor.model_loader.checkpoint_weight_patch import (
        CheckpointWeightPatch,
        load_checkpoint_weight_patches,
    )

    patches = []
    with safe_open(path, "pt") as file:
        for name, shape in json.loads(file.metadata()["shapes"]).items():
            values, indices = file.get_tensor(f"{name}.values"), file.get_tensor(f"{name}.indices")
            dtype = next(model.parameters()).dtype
            patches.append(CheckpointWeightPatch(name, tuple(shape), dtype, values.to(dtype), indices))
    load_checkpoint_weight_patches(model, patches)
    return len(patches)


def main():
    asked = json.loads(sys.argv[1])
    adapters = [each for each in asked.get("adapters", []) if each]
    lora = {"enable_lora": True, "max_lora_rank": asked["max_rank"], "max_loras": len(adapters)} if adapters else {}
    llm = LLM(
        model=asked["model"], dtype="float32", enforce_eager=True, max_model_len=128, max_num_batched_tokens=512,
        max_num_seqs=8, seed=0, **lora,
    )  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=asked["tokens"])
    requests = {path: LoRARequest(os.path.basename(path), place, path) for place, path in enumerate(adapters, start=1)}
    rows = [(prompt, adapter) for adapter in asked.get("adapters", [None]) for prompt in asked["prompts"]]
    found = llm.generate(
        [prompt for prompt, _ in rows], params, lora_request=[requests.get(a) for _, a in rows] if lora else None
    )
    count = len(asked["prompts"])
    ids = [list(each.outputs[0].token_ids) for each in found]
    result = {"answers": [ids[low : low + count] for low in range(0, len(ids), count)]}
    if asked.get("patch"):
        path = asked["patch"]
        result["patches"] = llm.apply_model(lambda model: patched(model, path))
        llm.reset_prefix_cache()
        result["patched"] = [list(each.outputs[0].token_ids) for each in llm.generate(asked["prompts"], params)]
    print("\n" + json.dumps(result))


if __name__ == "__main__":
    main()
