"""Run folders: as the tools look into them, and as the command that made them continues."""

import io
import json
import random
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from opencrate.report import page
from opencrate.settings import Studying
from opencrate.study import open_study
from opencrate.training import summary, train

from . import mutations
from .crafting import (
    JSON_TEXTS,
    PICKLES,
    Change,
    Contents,
    Files,
    changed,
    contents,
    doubled,
    files_in,
    json_values,
    odd_files,
    setting,
    written,
)
from .harness import CANARY, Target
from .mutations import ESCAPE

RECIPE, RECORD, RESULT, METRICS = "recipe.yaml", "run.json", "result.json", "metrics.jsonl"
STEP, NETWORK = "checkpoints/step-00000001.pt", "model/model.safetensors"


def _recipe() -> Any:
    from ..runs import small_recipe

    recipe = small_recipe(schedule={"epochs": 2, "warmup_epochs": 1}, optim={"batch": 720, "ema": 0.5})
    return replace(recipe, model=replace(recipe.model, depth=1, embed_dim=8, patch_size=8))


def _options(out: Path) -> Any:
    from ..runs import small_options

    return small_options(out, keep_epochs=1)


@cache
def _finished() -> Files:
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()), _quietly():
        train(_recipe(), _options(Path(folder) / "run"))
        return files_in(Path(folder) / "run")


def _interrupted() -> Files:
    """Without what the second epoch wrote."""
    lines = [line for line in _finished()[METRICS].splitlines(keepends=True) if json.loads(line)["step"] < 2]
    files = {name: content for name, content in _finished().items() if not name.startswith(("model/", "result", "ch"))}
    return files | {METRICS: b"".join(lines), STEP: _finished()[STEP]}


def _quietly() -> Any:
    """The start of a run asks git for the revision, by a process of its own."""
    return mock.patch("opencrate.training.start._revision", return_value=None)


def _study(path: Path) -> str:
    """What analyze, audit and explore read of a run, and what the report's page says of it."""
    study = open_study(str(path), Studying(samples=8), torch.device("cpu"))
    tables = [str(table) for table in study.probed().values()]
    kept = [name for name, _ in study.kept()]
    facts = page._training(study)
    names = [study.class_name(0), str(study.match), str(study.averages), str(kept)]
    return "\n".join([*tables, *names, *(f"{name}: {value}" for name, value in facts)])


def _continue(path: Path) -> str:
    """The command that made it, again."""
    with _quietly():
        return summary(train(_recipe(), _options(path)))


# metrics.jsonl


def _metrics(change: Callable[[list[bytes]], Any]) -> Change:
    def replace_lines(path: Path) -> None:
        lines = (path / METRICS).read_bytes().splitlines()
        (path / METRICS).write_bytes(b"\n".join(change(lines) or lines) + b"\n")

    return replace_lines


def _layers(**fields: Any) -> Change:
    """Other values in the first line, which is a table of layers."""
    return _metrics(lambda lines: [json.dumps(json.loads(lines[0]) | fields).encode(), *lines[1:]])


DEFINITION = {"name": "x", "site": "Z", "norm": False, "unit": False, "eps": 0.1, "class_token": True, "scaling": "p"}
LINES: dict[str, Change] = {
    "half a line": lambda path: (path / METRICS).write_bytes((path / METRICS).read_bytes()[:-30]),
    "a line of NUL": _metrics(lambda lines: [lines[0], bytes(4096), *lines[1:]]),
    "a line of escape codes": _metrics(lambda lines: [*lines, ESCAPE.encode()]),
    "two lines in one": _metrics(lambda lines: [lines[0] + lines[1], *lines[2:]]),
    "lines of other kinds": _metrics(
        lambda lines: [*lines, b'{"kind": "\\u001b[31m", "step": 1}', b"[]", b"7", b"null"]
    ),
    "kinds that are no text": _metrics(lambda lines: [*lines, b'{"kind": ["layers"], "step": 1}']),
    "steps that are no numbers": _metrics(lambda lines: [*lines, b'{"kind": "layers", "step": "1"}']),
    "steps of 2⁶³": _metrics(lambda lines: [*lines, b'{"kind": "train", "step": %d}' % 2**63]),
    "a line 100,000 deep": _metrics(lambda lines: [*lines, b"[" * 10**5]),
    "a number of a million digits": _metrics(lambda lines: [*lines, b'{"kind": "x", "step": ' + b"9" * 10**6 + b"}"]),
    "a line of ten megabytes": _metrics(lambda lines: [*lines, b'{"kind": "' + b"x" * 10**7 + b'", "step": 1}']),
    "ten thousand lines": _metrics(lambda lines: lines * 10**3),
    "not UTF-8": _metrics(lambda lines: [*lines, b'{"kind": "\xff", "step": 1}']),
    "UTF-16": lambda path: (path / METRICS).write_text((path / METRICS).read_text(), encoding="utf-16"),
    "other ends of lines": _metrics(lambda lines: [b"\r".join(lines)]),
    "layers without a table": _metrics(lambda lines: [b'{"kind": "layers", "step": 0}', *lines]),
    "a table without rows": _layers(rows=[]),
    "rows that are no list": _layers(rows={"a": 1}),
    "rows that are no rows": _layers(rows=[1, "x", None]),
    "rows of texts": _layers(rows=[{"layer": ESCAPE, "Rc": "x", "nonzero": [], "Rc_std": {}, "nonzero_std": None}]),
    "rows of other names": _layers(rows=[{ESCAPE: 1.0}]),
    "rows without numbers": _layers(rows=[{"layer": 1, "Rc": None, "nonzero": None}]),
    "samples of a text": _layers(samples=ESCAPE),
    "a definition of a text": _layers(definition=ESCAPE),
    "a definition of another site": _layers(definition=DEFINITION | {"site": "__class__", "name": ESCAPE}),
    "a definition of more fields": _layers(definition=DEFINITION | {"nothing": 1}),
    "an epoch of a list": _layers(epoch=[1]),
    "epochs of 2⁶³": _layers(epoch=2**63),
}

# checkpoints


def _state(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Another content of the checkpoint, saved by torch."""

    def replace_state(path: Path) -> None:
        state = torch.load(path / STEP, weights_only=True)
        torch.save(change(state) or state, path / STEP)

    return replace_state


def _without(key: str) -> Change:
    return _state(lambda state: {name: value for name, value in state.items() if name != key})


def _with(**values: Any) -> Change:
    return _state(lambda state: state.update(values))


def _weights(change: Callable[[dict[str, Any]], Any], part: str = "model") -> Change:
    return _state(lambda state: change(state[part]))


def _zipped(members: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, inside in members.items():
            archive.writestr(name, inside)
    return content.getvalue()


KEYS = (
    "format",
    "step",
    "best",
    "last_validation",
    "model",
    "optimizer",
    "scaler",
    "ema",
    "random",
    "skipped",
    "seconds",
)
STATES: dict[str, Change] = {
    **{f"no {key}": _without(key) for key in KEYS},
    **{f"{key} is a text": _with(**{key: ESCAPE}) for key in KEYS[1:]},
    **{f"{key} is a number": _with(**{key: -(2**40)}) for key in KEYS[1:]},
    "a list": _state(lambda state: [state]),
    "more steps than the run": _state(lambda state: state.update(step=10**9)),
    "a weight of another shape": _weights(lambda weights: weights.update(cls_token=torch.zeros(3))),
    "a weight of another type": _weights(lambda weights: weights.update(cls_token=torch.zeros(1, 1, 8).long())),
    "a weight that is a text": _weights(lambda weights: weights.update(cls_token=ESCAPE)),
    "a weight that is missing": _weights(lambda weights: weights.update(cls_token=None)),
    "a weight more": _weights(lambda weights: weights.update({ESCAPE * 100: torch.zeros(1)})),
    "a weight of 10¹⁵ values": _weights(lambda weights: weights.update(cls_token=torch.zeros(1).expand(10**15))),
    "weights that are not numbers": _weights(
        lambda weights: [weight.fill_(torch.nan) for weight in weights.values()] and None
    ),
    "a moving average of another shape": _weights(lambda weights: weights.update(cls_token=torch.zeros(3)), "ema"),
    "an optimiser without groups": _weights(lambda state: state.pop("param_groups") and None, "optimizer"),
    "an optimiser of escape codes": _with(optimizer={"state": {ESCAPE: {}}, "param_groups": [{ESCAPE: 1}]}),
    "generators of other sizes": _with(random=[{"torch": torch.zeros(3).byte()}]),
    "generators of several processes": _state(lambda state: state.update(random=state["random"] * 7)),
    "metrics of escape codes": _with(best={ESCAPE: ESCAPE, "top1": ESCAPE}, last_validation={"top1": ESCAPE}),
    "metrics that are not numbers": _with(best={"top1": float("nan"), "epoch": 1}),
    "the older format": lambda path: torch.save({}, path / STEP, _use_new_zipfile_serialization=False),
}
PARTS: Contents = {
    **{pickle: _zipped({"step/data.pkl": content, "step/version": b"3\n"}) for pickle, content in PICKLES.items()},
    "a bomb": lambda: _zipped({"step/data.pkl": PICKLES["a call"], "step/data/0": bytes(1 << 28)}),
    "a bomb of a pickle": lambda: _zipped({"step/data.pkl": bytes(1 << 28)}),
    "code of TorchScript": _zipped({"step/code/__torch__.py": f"{CANARY}()".encode(), "step/constants.pkl": b"."}),
    "no zip file": b"x" * 1000,
    "empty": b"",
}
NAMES: dict[str, Change] = {
    "a checkpoint of step 10³⁰": lambda path: (path / STEP).rename(path / f"checkpoints/step-{10**30}.pt"),
    "a checkpoint of 200 digits": lambda path: (path / STEP).rename(path / f"checkpoints/step-{'9' * 200}.pt"),
    "a checkpoint of another step": lambda path: (path / STEP).rename(path / "checkpoints/step-00000002.pt"),
    "a checkpoint of Arabic digits": lambda path: (path / STEP).rename(path / "checkpoints/step-٣.pt"),
    "a checkpoint twice": lambda path: (path / "checkpoints/step-1.pt").write_bytes((path / STEP).read_bytes()),
    "three thousand checkpoints": lambda path: [(path / f"checkpoints/step-{i}.pt").touch() for i in range(3, 3000)],
    "checkpoints that are a file": lambda path: (
        (path / STEP).unlink(),
        (path / "checkpoints").rmdir(),
        (path / "checkpoints").touch(),
    ),
    "a lock that is a folder": lambda path: ((path / ".lock").unlink(missing_ok=True), (path / ".lock").mkdir()),
    "a best network that is a file": lambda path: ((path / "best").rename(path / "other"), (path / "best").touch()),
    "a best network that is damaged": lambda path: (path / "best/model.safetensors").write_bytes(b"x" * 100),
}
RECIPES: Contents = {
    "empty": b"",
    "another": b"name: x\nmodel: {name: crate_base}\ndata: {name: digits}\n",
    "a call": f"name: !!python/object/apply:tests.fuzz.harness.{CANARY} []\n".encode(),
    "a thousand lists": b"[" * 1000,
    "names of escape codes": b'name: "\\e[31m"\nmodel: {name: crate_tiny}\ndata: {name: digits}\n',
    "a module elsewhere": b"name: x\nmodel: {name: crate_tiny, imports: [../evil]}\ndata: {name: digits}\n",
    "a set elsewhere": b"name: x\nmodel: {name: crate_tiny}\ndata: {name: wds, root: 'http://127.0.0.1:9/x'}\n",
    "a set of the Hub": b"name: x\nmodel: {name: crate_tiny}\ndata: {name: hfds/owner/name}\n",
    "not UTF-8": b"name: \xff",
}
RESULTS = ("recipe", "best", "best.top1", "steps", "epochs", "training_seconds", "layers", "layers.rows", "model")
STARTS = ("0.started", "0.seed", "0.options", "0.options.root", "0.versions", "0.hardware", "0.hardware.gpus", "0")


def _mutate(path: Path, chance: random.Random) -> None:
    """A file that holds more than weights is changed more often."""
    texts = [path / name for name in (RECIPE, RECORD, RESULT, METRICS) if (path / name).is_file()]
    if chance.random() < 0.5:
        mutations.mutate(chance.choice(texts), chance)
    else:
        mutations.mutate(path, chance)


FINISHED, INTERRUPTED = written(_finished, "run"), written(_interrupted, "run")
TARGETS = (
    Target(
        "run folder",
        _study,
        {"finished": FINISHED},
        {
            **changed(FINISHED, {f"{METRICS}: {name}": change for name, change in LINES.items()}),
            **json_values(FINISHED, RECORD, STARTS),
            **json_values(FINISHED, RESULT, RESULTS),
            **contents(FINISHED, RECORD, JSON_TEXTS),
            **contents(FINISHED, RESULT, JSON_TEXTS),
            **contents(FINISHED, RECIPE, RECIPES),
            **contents(FINISHED, NETWORK, {"empty": b"", "a pickle": PICKLES["a call"]}),
            **changed(FINISHED, {"a result twice": doubled(RESULT, "steps", '"x"')}),
            **changed(FINISHED, {"a folder of pictures elsewhere": setting(RECORD, "0.options.root", "/etc")}),
            **odd_files(FINISHED, RECIPE),
            **odd_files(FINISHED, RECORD),
            **odd_files(FINISHED, RESULT),
            **odd_files(FINISHED, METRICS),
        },
        _mutate,
    ),
    Target(
        "run continued",
        _continue,
        {"interrupted": INTERRUPTED, "finished": FINISHED},
        {
            **changed(INTERRUPTED, {f"{METRICS}: {name}": change for name, change in LINES.items()}),
            **changed(INTERRUPTED, {f"a checkpoint: {name}": change for name, change in STATES.items()}),
            **changed(INTERRUPTED, NAMES),
            **contents(INTERRUPTED, STEP, PARTS),
            **contents(INTERRUPTED, RECIPE, RECIPES),
            **json_values(FINISHED, RESULT, ("best", "layers", "skipped_steps", "model")),
            **contents(INTERRUPTED, RECORD, {name: JSON_TEXTS[name] for name in ("empty", "a number", "NUL")}),
            **odd_files(INTERRUPTED, STEP),
            **odd_files(INTERRUPTED, METRICS),
            **odd_files(INTERRUPTED, RECIPE),
        },
        _mutate,
    ),
)
