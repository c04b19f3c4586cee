r"""lm-evaluation-harness on base + grafts: its model `skillgraft`, and its command with that model registered.

    python -m skillgraft.interop.lm_eval run --model skillgraft --model_args base=BASE,grafts=a.safetensors+b.safetensors \
        --tasks piqa

`grafts` are files or hub names joined by `+` and put on as their sum, each times `scale`; every other argument is one of the
harness's own `hf` model. In Python: `lm_eval.simple_evaluate(model="skillgraft", model_args=…)` after importing this module.
"""

from __future__ import annotations

from typing import Any

from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM

from skillgraft.errors import InputError
from skillgraft.folders.hub import located
from skillgraft.live.grafted import live_model
from skillgraft.values.graft import Graft, total


@register_model("skillgraft")
class GraftedLM(HFLM):  # type: ignore[misc]
    """The harness's own model of transformers, with grafts on."""

    def __init__(self, base: str, grafts: str = "", scale: float = 1.0, **settings: Any) -> None:
        names = [name for name in str(grafts).split("+") if name]
        if not names:
            raise InputError(
                "model skillgraft needs grafts=…, files or hub names joined by +; for a base alone use --model hf"
            )
        super().__init__(pretrained=str(located(base)), **settings)
        held = [Graft.load(name) for name in names]
        self.graft = total([graft if scale == 1.0 else float(scale) * graft for graft in held])
        live_model(self.model).put_on(self.graft.without_heads())


def main() -> None:
    """The harness's command line."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
