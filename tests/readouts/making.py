"""Tiny models, tokenizers, tasks and rows for the tests of `skillgraft.readouts`."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor

from skillgraft.opening.source import Source
from skillgraft.readouts import Readout, loss_of
from skillgraft.readouts.readout import Options
from skillgraft.task_model import TaskModel
from skillgraft.tasks import Examples, Task, load_task
from skillgraft.tasks.data import Data
from skillgraft.values.names import layer_of

_SENTENCES = """a b c d e f g the film was is it fine bad good great terrible dull quick slow cat dog house mouse red blue
green Yes No Maybe yes no question answer review positive negative what does stand for ? . , : ! or"""
WORDS = tuple(_SENTENCES.split())
GOOD, BAD = ("fine", "good", "great", "quick"), ("bad", "dull", "slow", "terrible")
SENTIMENT = """
name = "films"
train = "x.jsonl"
text = "text"
labels = ["bad", "good"]
max_length = 24
[prompt.masked]
template = "{text} it was {mask} ."
words = { bad = "terrible", good = "great" }
[prompt.causal]
template = "{text} it is"
words = { bad = " terrible", good = " great" }
[prompt.choice]
template = "{text} is it good or bad ?"
words = { bad = "terrible bad", good = "great" }
[describe]
bad = "a bad film"
good = "a good film"
"""
PAIRS = """
name = "pairs"
train = "x.jsonl"
text = ["text_a", "text_b"]
labels = ["no", "maybe", "yes"]
max_length = 16
[prompt.masked]
template = "{text_a} ? {mask} , {text_b}"
words = { no = "No", maybe = "Maybe", yes = "Yes" }
[describe]
input = "{text_a} or {text_b}"
template = "answer {label}"
no = "no no"
maybe = "or"
yes = "yes"
"""
GAPS = """
name = "gaps"
train = "x.jsonl"
text = "question"
choices = "choices"
max_length = 40
[prompt.causal]
template = "{question}\\n{choices|lettered}\\nanswer:"
answer = " {letter}"
[prompt.choice]
template = "{question} {choices|join: or } ?"
answer = "{choice}"
[describe]
choice = "the {choice}"
"""
DIGITS = """
name = "digits"
train = "x.npz"
image = "image"
labels = ["zero", "one", "two"]
[describe]
template = "the {label}"
zero = "a cat"
one = "a dog"
two = "a house"
"""
TEXTS = ("the film was fine", "dull", "a b c d e f g the cat", "it was slow , slow and bad !", "", "quick red mouse")


def task_of(text: str) -> Task:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "task.toml"
        path.write_text(text, encoding="utf-8")
        return load_task(path)


def sentiment(train: str, test: str) -> str:
    """The task SENTIMENT with rows to train on and rows to test on."""
    return SENTIMENT.replace('train = "x.jsonl"', f'train = "{train}"\ntest = "{test}"')


def write_films(folder: Path, *, train: int = 120, test: int = 40) -> Path:
    """films.toml and its rows, which a tiny model can learn: good films have good words."""
    draw = np.random.default_rng(0)
    rows = []
    for number in range(train + test):
        words = GOOD if number % 2 else BAD
        text = f"the {draw.choice(['film', 'cat', 'dog', 'house'])} was {draw.choice(words)} {draw.choice(words)}"
        rows.append({"text": f"{text} {draw.choice(list('abcdefg'))}", "label": number % 2})
    for name, some in (("x.jsonl", rows[:train]), ("y.jsonl", rows[train:])):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in some))
    (folder / "films.toml").write_text(sentiment("x.jsonl", "y.jsonl"))
    return folder / "films.toml"


def films(texts: Sequence[str] = TEXTS) -> Examples:
    labels = np.arange(len(texts)) % 2
    return Examples("films", {"text": tuple(texts)}, labels, ("bad", "good"))


def pairs() -> Examples:
    firsts, seconds = ("the cat was slow", "red", "it is fine"), ("the dog", "a b c d e f g a b c d e f g a b c", "")
    return Examples("pairs", {"text_a": firsts, "text_b": seconds}, np.array([0, 1, 2]), ("no", "maybe", "yes"))


def gaps() -> Examples:
    choices = (("cat", "red house", "dog"), ("quick mouse", "slow"), ("a", "b c d", "e f", "g"))
    questions = ("what is it", "the film was", "a b c")
    return Examples("gaps", {"question": questions, "choices": choices}, np.array([2, 0, 3]))


def digits(*, channels: int | None = None) -> Examples:
    shape = (5, 12, 12) if channels is None else (5, 12, 12, channels)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    return Examples("digits", {"image": images}, np.array([0, 1, 2, 0, 1]), ("zero", "one", "two"))


def write_digits(folder: Path, name: str, *, train: int = 90, test: int = 30) -> Path:
    """An image task of that name and its rows: each of three labels is bright in another third of the image."""
    draw = np.random.default_rng(len(name))
    for part, count in (("train", train), ("test", test)):
        labels = np.arange(count) % 3
        images = draw.integers(0, 120, (count, 12, 12), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[4 * label : 4 * label + 4] += 100
        np.savez(folder / f"{name}-{part}.npz", images=images, labels=labels)
    sources = f'train = "{name}-train.npz"\ntest = "{name}-test.npz"'
    text = DIGITS.replace('train = "x.npz"', sources).replace('name = "digits"', f'name = "{name}"')
    (folder / f"{name}.toml").write_text(text)
    return folder / f"{name}.toml"


@cache
def word_pieces() -> Any:
    """BERT's kind: whole words, and letters as pieces."""
    letters = [chr(code) for code in range(97, 123)]
    vocabulary = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *dict.fromkeys((*WORDS, *letters)),
        *(f"##{x}" for x in letters),
    ]
    return transformers.BertTokenizer(vocab={token: i for i, token in enumerate(vocabulary)}, do_lower_case=False)


@cache
def byte_pieces(*, wrapped: bool = True) -> Any:
    """RoBERTa's kind (`wrapped` in <s> … </s>) or GPT-2's: byte-level BPE trained on the words above."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    letters = [chr(code) for code in range(65, 91)]
    words = [word for word in (*WORDS, *letters) if word != "dull"]
    inner.train_from_iterator([" ".join(["x", *words])] * 50, trainer)
    if wrapped:
        inner.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
        )
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    if not wrapped:
        return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **names)
    mask = AddedToken("<mask>", lstrip=True, special=True)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", mask_token=mask, **names)


@cache
def sentence_pieces() -> Any:
    """T5's kind: words with their space, closed by </s>."""
    vocabulary = ["<pad>", "</s>", "<unk>", *(f"▁{word}" for word in WORDS)]
    inner = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocabulary)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def made(kind: str, config: Any) -> Any:
    """A model of that class, always the same, with numbers spread out so that a difference shows."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, kind)(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def save(folder: Path, model: Any, *parts: Any) -> Path:
    """The model's folder, with its tokenizer or processor."""
    for part in (model, *parts):
        part.save_pretrained(folder)
    return folder


def bert(folder: Path, kind: str = "BertForMaskedLM") -> Path:
    config = transformers.BertConfig(vocab_size=len(word_pieces()), max_position_embeddings=64, **SMALL)
    return save(folder, made(kind, config), word_pieces())


def sentence_encoder(folder: Path, *, pooling: str = "mean_tokens") -> Path:
    """BERT's body with the files that sentence-transformers writes beside it."""
    bert(folder, "BertModel")
    types = ("Transformer", "Pooling", "Normalize")
    modules = [{"path": f"{i}_{name}", "type": f"sentence_transformers.models.{name}"} for i, name in enumerate(types)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 20}))
    (folder / "1_Pooling").mkdir()
    modes = {
        f"pooling_mode_{name}": name == pooling for name in ("mean_tokens", "cls_token", "max_tokens", "lasttoken")
    }
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 16, **modes}))
    return folder


def roberta(folder: Path) -> Path:
    sizes = {"vocab_size": len(byte_pieces()), "max_position_embeddings": 66, "type_vocab_size": 1}
    config = transformers.RobertaConfig(pad_token_id=1, bos_token_id=0, eos_token_id=2, **sizes, **SMALL)
    return save(folder, made("RobertaForMaskedLM", config), byte_pieces())


def gpt2(folder: Path) -> Path:
    tokenizer = byte_pieces(wrapped=False)
    sizes = {"vocab_size": len(tokenizer), "n_positions": 96, "n_embd": 16, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(bos_token_id=0, eos_token_id=2, **sizes)
    return save(folder, made("GPT2LMHeadModel", config), tokenizer)


def llama(folder: Path) -> Path:
    tokenizer = byte_pieces(wrapped=False)
    sizes = {"vocab_size": len(tokenizer), "num_key_value_heads": 1, "max_position_embeddings": 96}
    return save(folder, made("LlamaForCausalLM", transformers.LlamaConfig(**sizes, **SMALL)), tokenizer)


def t5(folder: Path) -> Path:
    sizes = {
        "vocab_size": len(sentence_pieces()),
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 32,
        "num_layers": 2,
        "num_heads": 2,
    }
    config = transformers.T5Config(decoder_start_token_id=0, **sizes)
    return save(folder, made("T5ForConditionalGeneration", config), sentence_pieces())


def bart(folder: Path) -> Path:
    both = {f"{side}_{key}": 2 for side in ("encoder", "decoder") for key in ("layers", "attention_heads")}
    widths = {"d_model": 16, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 96}
    begins = {"decoder_start_token_id": 2, "forced_bos_token_id": 0, "forced_eos_token_id": None}
    config = transformers.BartConfig(vocab_size=len(byte_pieces()), **both, **widths, **begins)
    return save(folder, made("BartForConditionalGeneration", config), byte_pieces())


def clip(folder: Path) -> Path:
    tokens = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    text = {**SMALL, **tokens, "vocab_size": len(word_pieces()), "max_position_embeddings": 20}
    vision = {**SMALL, "image_size": 8, "patch_size": 4}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=12)
    processor = transformers.CLIPImageProcessorPil(size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8})
    return save(folder, made("CLIPModel", config), word_pieces(), processor)


def vit(folder: Path) -> Path:
    config = transformers.ViTConfig(image_size=8, patch_size=4, **SMALL)
    processor = transformers.ViTImageProcessorPil(size={"height": 8, "width": 8})
    return save(folder, made("ViTModel", config), processor)


@dataclass(frozen=True)
class Opened:
    """A task model whose readouts are looked at one by one, in the tasks' order."""

    whole: TaskModel

    @property
    def model(self) -> Any:
        return self.whole.model

    @property
    def readouts(self) -> tuple[Readout, ...]:
        return tuple(self.whole.rows.readouts.values())

    @property
    def name(self) -> str:
        return self.whole.rows.name

    @property
    def fresh(self) -> tuple[str, ...]:
        return self.whole.fresh

    @property
    def source(self) -> Source:
        return self.whole.source


def open_readouts(
    base: str | Path,
    tasks: Sequence[Task],
    *,
    readout: str = "auto",
    max_length: int | None = None,
    pad_multiple: int = 1,
    length_normalised: bool = False,
    **rest: Any,
) -> Opened:
    """The base opened for these tasks; `rest` are keywords of `TaskModel.open`."""
    options = Options(max_length, pad_multiple, length_normalised)
    return Opened(TaskModel.open(base, tasks, data=Data(readout=readout), options=options, **rest))


def with_rows(opened: TaskModel, examples: Examples) -> TaskModel:
    """The same model, asked about these rows as the validation rows of its only task."""
    (task,) = opened.tasks
    return replace(opened, rows=replace(opened.rows, _examples={(task, "validation"): examples}, _encoded={}))


def scored(opened: Opened, examples: Examples, index: int = 0) -> Tensor:
    """Scores of all rows in one batch."""
    readout = opened.readouts[index]
    with torch.no_grad():
        return readout.scores(opened.model, readout.collate(readout.encode(examples)))


def one_by_one(opened: Opened, examples: Examples, index: int = 0) -> list[Tensor]:
    """Scores of each row in a batch of its own."""
    return [scored(opened, examples.select([row]), index)[0] for row in range(len(examples))]


def assert_padding_is_invisible(opened: Opened, examples: Examples, index: int = 0) -> None:
    """A batch of one gives the same scores as a batch of many."""
    for together, alone in zip(scored(opened, examples, index), one_by_one(opened, examples, index), strict=True):
        torch.testing.assert_close(together[: len(alone)], alone, atol=1e-5, rtol=1e-5)


def assert_trains(opened: Opened, examples: Examples, tensors: Mapping[str, Tensor], *, but: str | None = None) -> None:
    """The loss of all rows moves every one of these tensors, except those with `but` in their names."""
    readout = opened.readouts[0]
    batch = readout.collate(readout.encode(examples))
    for tensor in tensors.values():
        tensor.grad = None
    loss_of(readout.scores(opened.model, batch), batch["labels"]).backward()
    still = {name for name, tensor in tensors.items() if tensor.grad is None or not tensor.grad.abs().max() > 0}
    assert still == {name for name in tensors if but is not None and but in name}


def assert_gradients_flow(opened: Opened, examples: Examples, index: int = 0) -> None:
    """Every row's score moves the first and the last layer."""
    readout = opened.readouts[index]
    batch = readout.collate(readout.encode(examples))
    opened.model.zero_grad()
    loss_of(readout.scores(opened.model, batch), batch["labels"]).backward()
    layers = [
        p.grad for name, p in opened.model.named_parameters() if p.ndim == 2 and layer_of(name) and p.grad is not None
    ]
    assert layers
    assert all(grad.isfinite().all() and grad.abs().max() > 0 for grad in layers)
