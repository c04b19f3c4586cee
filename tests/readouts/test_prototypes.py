"""Prototypes of labels: the head by hand, frozen, on a vision transformer and on CLIP; and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from skillgraft.errors import InputError
from skillgraft.tasks import asked_as, load_task, read_examples, training_split
from tests.readouts import making
from tests.readouts.making import open_readouts


@pytest.mark.parametrize("kind", ["vit", "clip"])
def test_scores_are_cosines_with_the_mean_image_of_each_label_in_the_base(kind: str, tmp_path: Path) -> None:
    base, file = getattr(making, kind)(tmp_path / "base"), making.write_digits(tmp_path, "digits")
    task = load_task(file)
    opened = open_readouts(base, [task], readout="prototypes")
    readout, model = opened.readouts[0], opened.model

    def embedded(rows: object) -> torch.Tensor:
        pixels = readout.collate(readout.encode(rows))["pixel_values"]  # type: ignore[arg-type]
        if kind == "clip":
            found = model.get_image_features(pixel_values=pixels)  # type: ignore[operator]
            found = getattr(found, "pooler_output", found)
        else:
            found = model(pixel_values=pixels).last_hidden_state[:, 0]
        return found / found.norm(dim=-1, keepdim=True)

    shown, test = training_split(task, shots=16).train, read_examples(task, "test")
    with torch.no_grad():
        means = torch.stack([embedded(shown)[torch.from_numpy(shown.labels == n)].mean(0) for n in range(3)])
        scale = float(model.logit_scale.exp()) if kind == "clip" else 20.0  # type: ignore[operator]
        wanted = scale * embedded(test) @ (means / means.norm(dim=-1, keepdim=True)).T
    torch.testing.assert_close(making.scored(opened, test), wanted, rtol=1e-4, atol=1e-4)
    assert readout.settings == {"readout": "prototypes", "scale": pytest.approx(scale), "rows": 48}
    making.assert_gradients_flow(opened, test)


def test_the_head_stays_the_bases_while_the_model_changes(tmp_path: Path) -> None:
    base, task = making.vit(tmp_path / "base"), load_task(making.write_digits(tmp_path, "digits"))
    opened = open_readouts(base, [task], readout="prototypes")
    head = opened.readouts[0].head.clone()  # type: ignore[attr-defined]
    with torch.no_grad():
        for parameter in opened.model.parameters():
            parameter.add_(0.1)
    torch.testing.assert_close(opened.readouts[0].head, head)  # type: ignore[attr-defined]


def test_texts_and_labels_without_images_are_refused(tmp_path: Path) -> None:
    base = making.vit(tmp_path / "base")
    with pytest.raises(InputError, match="films: the prototypes readout reads images; use text-head or linear"):
        open_readouts(base, [making.task_of(making.SENTIMENT)], readout="prototypes")
    file = making.write_digits(tmp_path, "digits")
    images = np.zeros((4, 12, 12), np.uint8)
    np.savez(tmp_path / "digits-train.npz", images=images, labels=np.array([0, 0, 1, 1]))
    with pytest.raises(InputError, match="task 'digits': no training image shows the label two"):
        open_readouts(base, [load_task(file)], readout="prototypes")


def test_another_tasks_prototypes_are_refused(tmp_path: Path) -> None:
    base = making.vit(tmp_path / "base")
    task, source = (load_task(making.write_digits(tmp_path, name)) for name in ("numbers", "digits"))
    with pytest.raises(InputError, match="numbers as digits: prototypes are made of a task's own training images"):
        open_readouts(base, [asked_as(task, source)], readout="prototypes")
