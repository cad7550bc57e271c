"""The loop: steps, epochs, evaluation, the white box, checkpoints; and going on after anything."""

import logging
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch
from timm.models import save_for_hf
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from ..data import Feed, Split
from ..measures import LayerTable, layerwise
from ..models import CRATE, save_pretrained
from ..recipes import Recipe
from .building import build_model, build_optimizer, build_schedule, compile_model
from .checkpoints import Checkpoints, random_states, restore_random_states, seed_process
from .evaluation import evaluate
from .folder import RunFolder
from .journal import Journal
from .options import Options
from .stepping import Outcome, Stepper
from .world import World, distribute

__all__ = ["Stopped", "Training"]

log = logging.getLogger("opencrate")

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


class Stopped(KeyboardInterrupt):
    """The run was asked to stop by a signal, and saved a checkpoint."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(f"stopped at step {step}; a checkpoint is saved, and the same command goes on from there")
        self.code = 128 + number


class Training:
    """A recipe at work. `step` is the number of steps done; everything else follows from it and the weights."""

    def __init__(
        self,
        recipe: Recipe,
        options: Options,
        folder: RunFolder,
        feeds: tuple[Feed, Feed],
        split: Split,
        world: World,
    ) -> None:
        self.recipe, self.options, self.folder, self.split, self.world = recipe, options, folder, split, world
        self.training_feed, self.validation_feed = feeds
        self.steps_per_epoch = self.training_feed.steps(split.batch)
        self.total = self.steps_per_epoch * recipe.schedule.epochs
        plain = build_model(recipe, self.training_feed.classes).to(world.device)
        self.parameters = sum(weight.numel() for weight in plain.parameters())
        if recipe.optim.ema and options.parallel == "fsdp" and world.size > 1:
            raise ValueError("a moving average of the weights (optim.ema) needs --parallel ddp")
        self.ema = ModelEmaV3(plain, recipe.optim.ema, use_warmup=True) if recipe.optim.ema else None
        if recipe.compile:
            compile_model(plain, whole=world.size == 1)
        self.model = distribute(plain, options.parallel, world)
        self.optimizer = build_optimizer(recipe, self.model)
        self.schedule = build_schedule(recipe, self.optimizer, self.steps_per_epoch)
        self.stepper = Stepper(self.model, self.optimizer, recipe, split, world)
        self.checkpoints = Checkpoints(folder.checkpoints)
        self.step = self.bad_steps = self.skipped = 0
        self.seconds = self.start_up = 0.0
        self.best: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        self.table: LayerTable | None = None
        self.probe_images: Tensor | None = None
        self.signal: int | None = None
        self.saved_at = time.monotonic()

    def run(self) -> dict[str, Any]:
        """From where it stands to the end."""
        self._resume()
        main, folder = self.world.main, self.folder
        tensorboard = folder.tensorboard if main and self.options.tensorboard else None
        self.journal = Journal(folder.metrics if main else None, tensorboard, self.step)
        try:
            with self._signals():
                self._introduce()
                if self.step in (0, self.total):  # at the end, if all steps were done and the result not written down
                    self._open_the_box(self.step // self.steps_per_epoch, shown=True)
                self.journal.begin_progress(self.total, self.step)
                for epoch in range(self.step // self.steps_per_epoch, self.recipe.schedule.epochs):
                    self._epoch(epoch)
                return self._finish()
        finally:
            self.journal.close()

    def _introduce(self) -> None:
        world, split = self.world, self.split
        name = self.recipe.model.name or self.recipe.model.start
        where = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else world.device.type
        processes = f", {world.size} processes ({self.options.parallel})" if world.size > 1 else ""
        parts = f" in {split.parts} parts" if split.parts > 1 else ""
        begins = f"goes on from step {self.step}" if self.step else "begins"
        self.journal.say(
            f"{self.recipe.name} {begins}: {name}, {self.parameters:,} parameters, {len(self.training_feed):,} training"
            f" and {len(self.validation_feed):,} validation pictures\n{self.recipe.schedule.epochs} epochs of"
            f" {self.steps_per_epoch} steps, batch {split.batch}{parts}, {self.recipe.precision} on {where}{processes};"
            f" everything goes to {self.folder.path}/"
        )

    # steps and epochs

    def _epoch(self, epoch: int) -> None:
        start = self.step - epoch * self.steps_per_epoch
        batches = self.training_feed.train(epoch, start, self.split)
        self.model.train()
        window = _Window()
        self.journal.start_clock(self.step)
        for _ in range(start, self.steps_per_epoch):
            outcome = self._step(batches)
            window.add(outcome, self.split.batch)
            last = self.step == (epoch + 1) * self.steps_per_epoch
            if last and self.world.device.type == "cuda":
                torch.cuda.synchronize()
            if last or self.step % self.options.log_steps == 0:
                window = self._log(window, epoch, outcome)
            if outcome.stop and not last:
                self._save()
                raise Stopped(self.signal or signal.SIGTERM, self.step)
            if outcome.save and not last and self.bad_steps == 0:
                self._save()
        self._end_epoch(epoch, stop=outcome.stop)

    def _step(self, batches: Iterator[Any]) -> Outcome:
        begun = time.perf_counter()
        self.schedule.step_update(self.step)
        outcome = self.stepper.step(batches, self.step, stop=self.signal is not None, save=self._due())
        self.step += 1
        if outcome.finite:
            self.bad_steps = 0
            if self.ema:
                self.ema.update(self._unwrapped(), self.step)
        else:
            self._skip()
        spent = time.perf_counter() - begun
        if self.start_up == 0.0:
            self.start_up = spent  # compiles, records graphs, starts workers
        else:
            self.seconds += spent
        return outcome

    def _skip(self) -> None:
        self.bad_steps, self.skipped = self.bad_steps + 1, self.skipped + 1
        self.journal.record("skipped", self.step, skipped=self.skipped)
        if self.world.main:
            log.warning("step %d was skipped: its loss is not finite (%d in a row)", self.step, self.bad_steps)
        if self.bad_steps >= self.recipe.optim.bad_steps:
            kept = self.checkpoints.steps()
            good = f"the last good checkpoint, of step {kept[-1]}, is kept" if kept else "there is no checkpoint yet"
            raise ValueError(
                f"the loss was not finite in {self.bad_steps} steps in a row, the last of them step {self.step}: {good}"
            )

    def _log(self, window: "_Window", epoch: int, outcome: Outcome) -> "_Window":
        values = window.means()
        lr = self.optimizer.param_groups[0]["lr"]
        self.journal.record("train", self.step, epoch=epoch + 1, **values, lr=lr)
        self.journal.advance(
            self.step,
            self.total,
            f"{epoch + 1}/{self.recipe.schedule.epochs}",
            values["loss"],
            values.get("accuracy"),
            values["images_per_second"],
        )
        return _Window()

    def _end_epoch(self, epoch: int, stop: bool) -> None:
        final = epoch + 1 == self.recipe.schedule.epochs
        evaluated = final or (epoch + 1) % self.options.evaluate_epochs == 0
        if evaluated:
            self._evaluate(epoch)
        self._open_the_box(epoch + 1, shown=evaluated)
        keep = self.options.keep_epochs and (epoch + 1) % self.options.keep_epochs == 0
        if self.bad_steps == 0:
            self._save(epoch + 1 if keep else None)
        if stop and not final:
            raise Stopped(self.signal or signal.SIGTERM, self.step)

    def _evaluate(self, epoch: int) -> None:
        model = self.ema.module if self.ema else self.model
        found = evaluate(model, self.validation_feed, self.world, self.recipe.precision)
        self.journal.record("validation", self.step, epoch=epoch + 1, **found)
        self.last = found | {"epoch": epoch + 1}
        better = found["top1"] > self.best.get("top1", -1.0)
        self.journal.say(
            f"epoch {epoch + 1}/{self.recipe.schedule.epochs}  validation: top-1 {found['top1']:.2f} %"
            f"  loss {found['loss']:.3f}{'  (best)' if better else ''}"
        )
        if better:
            self.best = self.last
            self._save_model(self.folder.best)

    # the white box

    def _open_the_box(self, epoch: int, shown: bool) -> None:
        """R^c and non-zero fraction of every layer on the same pictures every time."""
        if self.recipe.probe == 0 or not self.recipe_is_white:
            return
        begun = time.perf_counter()
        model = self.ema.module if self.ema else self._plain()
        if self.world.main:
            if self.probe_images is None:
                apart = max(1, len(self.validation_feed) // self.recipe.probe)
                images = next(iter(self.validation_feed.evaluate(self.recipe.probe, 0, apart)))[0]
                self.probe_images = images
                begun = time.perf_counter()
            with torch.compiler.set_stance("force_eager"):
                table = layerwise(cast(CRATE, model), self.probe_images, self.recipe.definition)
            self.table = table
            self.journal.layers(table, self.step, epoch, time.perf_counter() - begun, shown)

    @property
    def recipe_is_white(self) -> bool:
        return isinstance(self._unwrapped(), CRATE)

    # saving and going on

    def _due(self) -> bool:
        """Whether it is time for a checkpoint: by the main process's clock, or by the number of steps."""
        minutes, steps = self.options.save_minutes, self.options.save_steps
        by_clock = self.world.main and minutes > 0 and time.monotonic() - self.saved_at > 60 * minutes
        return by_clock or bool(steps and (self.step + 1) % steps == 0)

    def _save(self, epoch: int | None = None) -> None:
        state = {
            "step": self.step,
            "model": get_model_state_dict(self.model, options=FULL),
            "optimizer": get_optimizer_state_dict(self.model, self.optimizer, options=FULL),
            "scaler": self.stepper.scaler.state_dict(),
            "ema": self.ema.module.state_dict() if self.ema else None,
            "random": self.world.gather(random_states(self.world.device)),
            "best": self.best,
            "last": self.last,
            "skipped": self.skipped,
            "seconds": self.seconds,
        }
        unwrapped = self._unwrapped()
        if isinstance(unwrapped, CRATE):
            state["config"] = unwrapped.config()  # `opencrate.load` reads a checkpoint too
        self.world.on_main(lambda: str(self.checkpoints.save(state, self.step, epoch)))
        self.saved_at = time.monotonic()

    def _resume(self) -> None:
        state = self.checkpoints.newest() if self.world.main else None
        found = self.world.on_main(lambda: state is not None)
        if not found:
            seed_process(self.recipe.seed, self.world.rank, 0)
            return
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=self.world.size > 1)
        state = state or {}
        set_model_state_dict(self.model, state.get("model", {}), options=options)
        set_optimizer_state_dict(self.model, self.optimizer, state.get("optimizer", {}), options=options)
        small = ("step", "scaler", "ema", "random", "best", "last", "skipped", "seconds")
        rest = self.world.on_main(lambda: {key: state[key] for key in small})
        self.step, self.best, self.last = rest["step"], rest["best"], rest["last"]
        self.skipped, self.seconds = rest["skipped"], rest["seconds"]
        self.stepper.scaler.load_state_dict(rest["scaler"]) if rest["scaler"] else None
        if self.ema:
            self.ema.module.load_state_dict(rest["ema"])
        if self.world.rank < len(rest["random"]) and self.world.size == len(rest["random"]):
            restore_random_states(rest["random"][self.world.rank], self.world.device)
        else:  # another number of processes than before
            seed_process(self.recipe.seed, self.world.rank, self.step)

    def _finish(self) -> dict[str, Any]:
        self._save_model(self.folder.model)
        self.journal.end_progress()
        return {
            "recipe": self.recipe.name,
            "top1": self.last["top1"],
            "top5": self.last["top5"],
            "best": self.best,
            "steps": self.step,
            "epochs": self.recipe.schedule.epochs,
            "skipped_steps": self.skipped,
            "parameters": self.parameters,
            "training_seconds": round(self.seconds, 2),
            "start_up_seconds": round(self.start_up, 2),
            "layers": self.table.to_dict() if self.table else None,
            "model": str(self.folder.model),
        }

    def _save_model(self, directory: Path) -> None:
        """In the format that `opencrate.load` and the Hub take; a baseline's in timm's."""
        model = self.ema.module if self.ema else self._plain()
        if not self.world.main:
            return
        if isinstance(model, CRATE):
            save_pretrained(model, directory)
        else:
            save_for_hf(model, str(directory), model_args=getattr(model, "built_with", None), safe_serialization=True)

    def _unwrapped(self) -> nn.Module:
        return self.model.module if isinstance(self.model, DistributedDataParallel) else self.model

    def _plain(self) -> nn.Module:
        """The network as it would be on one process; from shards it is put together on the main one."""
        if not isinstance(self.model, FSDPModule):
            return self._unwrapped()
        state = get_model_state_dict(self.model, options=FULL)
        if not self.world.main:
            return self.model
        whole = build_model(self.recipe, self.training_feed.classes)
        whole.load_state_dict(state)
        return whole.to(self.world.device)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT or SIGTERM asks for a checkpoint and the end; a second Ctrl-C is obeyed at once.

        A second SIGTERM is not: a scheduler signals every process, and then torchrun hands its own on.
        """

        def ask(number: int, frame: FrameType | None) -> None:
            if self.signal is None and self.world.main:
                again = "; once more to stop at once" if number == signal.SIGINT else ""
                log.warning("stopping after this step, with a checkpoint%s", again)
            self.signal = self.signal or number
            if number == signal.SIGINT:
                signal.signal(number, before[number])

        before: dict[Any, Any] = {}
        for caught in (signal.SIGINT, signal.SIGTERM):
            before[caught] = signal.signal(caught, ask)
        try:
            yield
        finally:
            for caught, handler in before.items():
                signal.signal(caught, handler)


class _Window:
    """Means over the steps since the last line."""

    def __init__(self) -> None:
        self.loss = self.correct = 0.0
        self.steps = self.images = self.counted = 0
        self.begun = time.perf_counter()

    def add(self, outcome: Outcome, batch: int) -> None:
        self.images += batch
        if outcome.finite:
            self.loss, self.steps = self.loss + outcome.loss, self.steps + 1
            if outcome.correct is not None:
                self.correct, self.counted = self.correct + outcome.correct, self.counted + batch

    def means(self) -> dict[str, float]:
        found = {"loss": self.loss / self.steps if self.steps else float("nan")}
        if self.counted:
            found["accuracy"] = self.correct / self.counted
        found["images_per_second"] = round(self.images / (time.perf_counter() - self.begun), 1)
        return found
