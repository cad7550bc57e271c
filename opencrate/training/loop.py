"""The loop: steps, epochs, evaluation, the white box, checkpoints; and going on after anything."""

import logging
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch
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
from ..data.feeds.feed import Batches
from ..data.feeds.loading import seeded
from ..distributed import World, distribute
from ..evaluation.accuracy import BATCH, evaluate
from ..measures import LayerTable, layerwise_by
from ..models import CRATE
from ..recipes import Recipe
from ..run_folder import RunFolder
from ..tasks.objective import Regularised
from .building import build_model, build_optimizer, build_schedule, compile_model, save_network
from .checkpoints import Checkpoints, random_states, restore_random_states, seed_process
from .journal import Journal, Relapse, Window, halved
from .options import Options
from .step import Outcome, Stepper

__all__ = ["Stopped", "Training"]

log = logging.getLogger("opencrate")

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
WATCHED = "unit"  # the definition of R^c that falls when tokens take one direction, whatever their length does


class Stopped(KeyboardInterrupt):
    """The run was asked to stop by a signal, and saved a checkpoint."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(f"stopped at step {step}; a checkpoint is saved, and the same command goes on from there")
        self.code = 128 + number


class Training:
    """A recipe at work. `step` is the number of steps done, from which order, crops and learning rate follow."""

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
        regularised = Regularised(plain, recipe.objective) if recipe.objective.weights() else None
        if regularised and options.parallel == "fsdp" and world.size > 1:  # bases and dictionaries lie there in shards
            raise ValueError("what is added to the loss (objective) needs --parallel ddp")
        self.ema = ModelEmaV3(plain, recipe.optim.ema, use_warmup=True) if recipe.optim.ema else None
        if recipe.compile:
            compile_model(plain, whole=world.size == 1 and not recipe.objective.weight)
        trained = distribute(regularised or plain, options.parallel, world)
        self.model = plain if regularised else trained  # evaluated and saved without what training adds
        self.optimizer = build_optimizer(recipe, self.model)
        self.schedule = build_schedule(recipe, self.optimizer, self.steps_per_epoch)
        self.stepper = Stepper(trained, self.optimizer, recipe, split, world)
        self.checkpoints = Checkpoints(folder.checkpoints)
        self.relapse = Relapse(recipe.data.num_classes)
        self.step = self.bad_steps = self.skipped = 0
        self.seconds = self.start_up = 0.0
        self.best: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        self.table: LayerTable | None = None
        self.watched: LayerTable | None = None  # by the definition WATCHED
        self.whole: nn.Module | None = None  # of a sharded network
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
        begun, start = time.perf_counter(), self.step - epoch * self.steps_per_epoch
        self.model.train()
        with closing(self.training_feed.train(epoch, start, self.split)) as batches:
            stop = self._steps(epoch, start, batches)
        self._end_epoch(epoch, stop)
        if start == 0:  # with its evaluation, measures and checkpoint
            self.journal.record("epoch", self.step, epoch=epoch + 1, seconds=round(time.perf_counter() - begun, 4))

    def _steps(self, epoch: int, start: int, batches: Batches) -> bool:
        """The epoch's steps from `start` on; whether the last of them was asked to stop the run."""
        window = Window()
        self.journal.start_clock(self.step)
        for _ in range(start, self.steps_per_epoch):
            outcome = self._step(batches)
            window.add(outcome, self.split.batch)
            self.relapse.add(outcome)
            last = self.step == (epoch + 1) * self.steps_per_epoch
            if last and self.world.device.type == "cuda":
                torch.cuda.synchronize()
            if last or self.step % self.options.log_steps == 0:
                window = self._log(window, epoch)
            if outcome.stop and not last:
                self._save()
                raise Stopped(self.signal or signal.SIGTERM, self.step)
            if outcome.save and not last and self.bad_steps == 0:
                self._save()
        return outcome.stop

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
            if self.world.main:  # what was saved last before them may be what made them so
                self.checkpoints.set_aside(self.step - self.bad_steps)
            raise ValueError(
                f"the loss was not finite in {self.bad_steps} steps in a row, the last of them step {self.step}:"
                f" {self._kept()}"
            )

    def _log(self, window: Window, epoch: int) -> Window:
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
            values.get("objective"),
        )
        return Window()

    def _end_epoch(self, epoch: int, stop: bool) -> None:
        final = epoch + 1 == self.recipe.schedule.epochs
        if found := self.relapse.end_epoch():
            self._tell_of_relapse(epoch + 1, *found)
        evaluated = final or (epoch + 1) % self.options.evaluate_epochs == 0
        if evaluated:
            self._evaluate(epoch)
        self._open_the_box(epoch + 1, shown=evaluated)
        keep = self.options.keep_epochs and (epoch + 1) % self.options.keep_epochs == 0
        due = final or stop or keep or (epoch + 1) % self.options.save_epochs == 0
        if due and (self.bad_steps == 0 or stop):
            self._save(epoch + 1 if keep else None)
        if stop and not final:
            raise Stopped(self.signal or signal.SIGTERM, self.step)

    def _tell_of_relapse(self, epoch: int, loss: float, before: float) -> None:
        self.journal.record("relapse", self.step, epoch=epoch, loss=loss, lowest=before)
        if self.world.main:
            log.warning(
                "epoch %d: the network guesses, with a loss of %.3f, and had come to %.3f: a lower learning rate"
                " (--optim.lr, %g now) may keep what it learns",
                epoch,
                loss,
                before,
                self.recipe.optim.lr,
            )

    def _evaluate(self, epoch: int) -> None:
        model = self.ema.module if self.ema else self.model
        batch = min(BATCH, self.split.micro_batch)
        found = evaluate(model, self.validation_feed, self.world, self.recipe.precision, batch)
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
        if self.recipe.probe and isinstance(self._unwrapped(), CRATE):
            model = self._judged()
            self.world.on_main(lambda: self._measure_layers(cast(CRATE, model), epoch, shown))

    def _measure_layers(self, model: CRATE, epoch: int, shown: bool) -> None:
        if self.probe_images is None:
            sample = self.validation_feed.sample(self.recipe.probe, self.recipe.probe)
            self.probe_images = torch.cat([images for images, _ in sample])
        begun, before = time.perf_counter(), self.watched
        definitions = tuple(dict.fromkeys((self.recipe.definition, WATCHED)))
        with torch.compiler.set_stance("force_eager"):
            tables = layerwise_by(model, self.probe_images, definitions, resamples=0)
        self.table, self.watched = tables[0], tables[-1]
        self.journal.layers(self.table, self.step, epoch, time.perf_counter() - begun, shown)
        if before and epoch > 1 and (layers := halved(before, self.watched)):  # fresh weights may fall as they learn
            self.journal.record("halved", self.step, epoch=epoch, layers=layers)
            log.warning(
                "epoch %d: R^c (definition %s) has halved since the epoch before, at %d of %d layers: tokens may be"
                " falling together. Should the loss rise, a lower learning rate (--optim.lr, %g now) may keep them"
                " apart",
                epoch,
                WATCHED,
                len(layers),
                len(self.table.rows),
                self.recipe.optim.lr,
            )

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
            "bad_steps": self.bad_steps,
            "skipped": self.skipped,
            "seconds": self.seconds,
            "relapse": self.relapse.state_dict(),
            "watched": self.watched.to_dict() if self.watched else None,
        }
        unwrapped = self._unwrapped()
        if isinstance(unwrapped, CRATE):
            state["config"] = unwrapped.config()  # `opencrate.load` reads a checkpoint too
        self.world.on_main(lambda: self._require_finite(state))
        self.world.on_main(lambda: str(self.checkpoints.save(state, self.step, epoch)))
        self.saved_at = time.monotonic()

    def _require_finite(self, state: dict[str, Any]) -> None:
        """A gradient may be infinite where the loss is not: no checkpoint keeps what it leaves behind."""
        moments = (value for values in state["optimizer"]["state"].values() for value in values.values())
        for value in (*state["model"].values(), *moments):
            if isinstance(value, Tensor) and value.is_floating_point() and not value.isfinite().all():
                raise ValueError(
                    f"weights or momenta are no longer finite at step {self.step}, though the loss was:"
                    f" {self._kept()}; a clipped gradient (--optim.clip 1) would have been looked at"
                )

    def _kept(self) -> str:
        kept = self.checkpoints.steps()
        return f"the last good checkpoint, of step {kept[-1]}, is kept" if kept else "there is no checkpoint yet"

    def _resume(self) -> None:
        state: dict[str, Any] = {}  # stays empty but on the main process

        def read() -> bool:
            state.update(self.checkpoints.newest() or {})
            return bool(state)

        if not self.world.on_main(read):
            seed_process(self.recipe.seed, self.world.rank, 0)
            return
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=self.world.size > 1)
        set_model_state_dict(self.model, state.get("model", {}), options=options)
        set_optimizer_state_dict(self.model, self.optimizer, state.get("optimizer", {}), options=options)
        small = ("step", "scaler", "ema", "random", "best", "last", "bad_steps", "skipped", "seconds")
        later = ("relapse", "watched")  # which older checkpoints lack
        rest = self.world.on_main(lambda: {key: state[key] for key in small} | {key: state.get(key) for key in later})
        for name in ("step", "best", "last", "bad_steps", "skipped", "seconds"):
            setattr(self, name, rest[name])
        if rest["scaler"]:
            self.stepper.scaler.load_state_dict(rest["scaler"])
        if self.ema:
            self.ema.module.load_state_dict(rest["ema"])
        if rest["relapse"]:
            self.relapse.load_state_dict(rest["relapse"])
        if rest["watched"]:
            self.watched = LayerTable.from_dict(rest["watched"])
        if self.world.size == len(rest["random"]):
            restore_random_states(rest["random"][self.world.rank], self.world.device)
        else:  # another number of processes than before
            seed_process(self.recipe.seed, self.world.rank, self.step)

    def _finish(self) -> dict[str, Any]:
        self._save_model(self.folder.model)
        self.journal.end_progress()
        return {
            "recipe": self.recipe.name,
            "data": self.recipe.data.name,
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
        model = self._judged()
        self.world.on_main(lambda: save_network(model, directory))

    def _judged(self) -> nn.Module:
        """The network that is evaluated, measured and saved."""
        return self.ema.module if self.ema else self._plain()

    def _unwrapped(self) -> nn.Module:
        return self.model.module if isinstance(self.model, DistributedDataParallel) else self.model

    def _plain(self) -> nn.Module:
        """The network as it would be on one process; from shards it is put together on the main one."""
        if not isinstance(self.model, FSDPModule):
            return self._unwrapped()
        state = get_model_state_dict(self.model, options=FULL)
        if not self.world.main:
            return self.model
        if self.whole is None:
            with seeded(self.recipe.seed):
                self.whole = build_model(self.recipe, self.training_feed.classes).to(self.world.device)
        self.whole.load_state_dict(state)
        return self.whole

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
