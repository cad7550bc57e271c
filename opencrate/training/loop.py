"""The training loop: steps, epochs, evaluation, the layer table, checkpoints; and resuming after any interruption."""

import logging
import math
import shutil
import time
from contextlib import closing
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from timm.utils import ModelEmaV3
from torch import nn

from ..checkpoints import damage, operator_modules
from ..data import Feed, Split
from ..data.feeds.feed import Batches
from ..distributed import World, distribute
from ..errors import one_line
from ..randomness import seed_process
from ..recipes import Recipe
from ..run_folder import RunFolder
from ..speed import training_forms
from ..stack import is_stack
from ..tasks import Regularised, RegularisedNetwork, describe_metrics
from ..tasks.task import EVALUATION_BATCH, Loss
from .building import build_model, build_optimizer, build_schedule, build_task, compile_model, save_network
from .checkpoints import Checkpoints, is_out_of_memory
from .journal import Journal, Window
from .monitors import LayerMonitor, RelapseMonitor
from .options import Options
from .signals import StopRequest
from .state import Progress, TrainedState, full_weights
from .step import Outcome, Stepper

log = logging.getLogger("opencrate")


class Training:
    """The run of a recipe, from its newest checkpoint if it has one."""

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
        self.total_steps = self.steps_per_epoch * recipe.schedule.epochs
        self.task = build_task(recipe)
        network = build_model(recipe, self.training_feed.classes, options.attention).to(world.device)
        self.parameters = sum(weight.numel() for weight in network.parameters())
        self.is_sharded = options.parallel == "fsdp" and world.size > 1
        if self.is_sharded and recipe.optim.ema:
            raise ValueError("a moving average of the weights (optim.ema) needs --parallel ddp")
        if self.is_sharded and recipe.objective.weights():  # its terms need full bases and dictionaries
            raise ValueError("what is added to the loss (objective) needs --parallel ddp")
        # A full copy of a sharded network, into which its weights are gathered.
        self.gathered_model = deepcopy(network) if self.is_sharded and world.main else None
        self.network = trained = network
        loss: Loss = self.task
        if recipe.objective.weights():
            trained, loss = RegularisedNetwork(network, recipe.objective), Regularised(loss, recipe.objective)
        training_forms(network, first_token=not getattr(trained, "measures_last_layer", False))
        ema = ModelEmaV3(network, recipe.optim.ema, use_warmup=True) if recipe.optim.ema else None
        how = world.device.type, recipe.precision
        if options.compiles(*how):
            compile_model(network, by_layer=world.size > 1 or recipe.objective.weight > 0)
        trained = distribute(trained, options.parallel, world)
        self.model = trained if loss is self.task else network  # evaluated and saved without the objective's terms
        self.optimizer = build_optimizer(recipe, self.model)
        self.schedule = build_schedule(recipe, self.optimizer, self.steps_per_epoch)
        self.stepper = Stepper(
            trained,
            self.optimizer,
            loss,
            split,
            world,
            precision=recipe.precision,
            clip=recipe.optim.clip,
            graphs=options.records(*how),
        )
        self.state = TrainedState(self.model, self.optimizer, self.stepper.scaler, ema, world)
        self.checkpoints = Checkpoints(folder.checkpoints)
        self.relapse = RelapseMonitor(self.task.chance_loss)
        self.layers = LayerMonitor(recipe.probe, recipe.definition)
        self.progress = Progress()
        self.start_up = 0.0  # seconds of the first step
        self.stop_request = StopRequest()
        self.saved_at = time.monotonic()

    def run(self) -> dict[str, Any]:
        """Train to the end and return the result."""
        self._resume()
        main, step = self.world.main, self.progress.step
        self.journal = Journal(self.folder if main else None, self.options.tensorboard, step, self.progress.recorded)
        try:
            with self.stop_request.listening(announce=main):
                self._introduce()
                if step == 0:
                    self._log_layer_table(0, shown=True)
                self.journal.begin_progress(self.total_steps, step)
                for epoch in range(step // self.steps_per_epoch, self.recipe.schedule.epochs):
                    self._epoch(epoch)
                return self._finish()
        finally:
            self.journal.close()

    def _introduce(self) -> None:
        world, split, step = self.world, self.split, self.progress.step
        name = self.recipe.model.name or self.recipe.model.start
        where = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else world.device.type
        processes = f", {world.size} processes ({self.options.parallel})" if world.size > 1 else ""
        parts = f" in {split.parts} parts" if split.parts > 1 else ""
        note = f"; {self.network.start_note}" if self.recipe.model.start and step == 0 else ""
        self.journal.say(
            f"{self.recipe.name} {f'goes on from step {step}' if step else 'begins'}: {name},"
            f" {self.parameters:,} parameters, {len(self.training_feed):,} training"
            f" and {len(self.validation_feed):,} validation pictures{note}\n"
            f"{self.recipe.schedule.epochs} epochs of {self.steps_per_epoch} steps, batch {split.batch}{parts},"
            f" {self.recipe.precision} on {where}{processes}; results go to {self.folder.path}/"
        )

    # steps and epochs

    def _epoch(self, epoch: int) -> None:
        begun, start = time.perf_counter(), self.progress.step - epoch * self.steps_per_epoch
        self.model.train()
        with closing(self.training_feed.train(epoch, start, self.split)) as batches:
            stop = self._steps(epoch, start, batches)
        self._end_epoch(epoch, stop)
        if start == 0:  # the time of a full epoch, with its evaluation, measures and checkpoint
            seconds = round(time.perf_counter() - begun, 4)
            self.journal.record("epoch", self.progress.step, epoch=epoch + 1, seconds=seconds)

    def _steps(self, epoch: int, start: int, batches: Batches) -> bool:
        """The steps of the epoch from `start` on; returns whether the run is to stop after the last of them."""
        window = Window()
        for _ in range(start, self.steps_per_epoch):
            outcome = self._step(batches)
            window.add(outcome, self.split.batch)
            self.relapse.add(outcome)
            is_last = self.progress.step == (epoch + 1) * self.steps_per_epoch
            if is_last and self.world.device.type == "cuda":
                torch.cuda.synchronize()
            if is_last or self.progress.step % self.options.log_steps == 0:
                self._log(window, epoch)
                window = Window()
            if outcome.stop and not is_last:
                self._save()
                raise self.stop_request.stopped(self.progress.step)
            if outcome.save and not is_last and self.progress.bad_steps == 0:
                self._save()
        return outcome.stop

    def _step(self, batches: Batches) -> Outcome:
        begun, progress = time.perf_counter(), self.progress
        self.schedule.step_update(progress.step)
        stop = self.stop_request.number is not None
        outcome = self.stepper.step(batches, progress.step, stop=stop, save=self._save_due())
        progress.step += 1
        if outcome.finite:
            progress.bad_steps = 0
            if self.state.ema:
                self.state.ema.update(self.network, progress.step)
        else:
            self._skip()
        seconds = time.perf_counter() - begun
        if self.start_up == 0.0:
            self.start_up = seconds  # the first step compiles, records graphs, starts workers
        else:
            progress.seconds += seconds
        return outcome

    def _skip(self) -> None:
        progress = self.progress
        progress.bad_steps, progress.skipped = progress.bad_steps + 1, progress.skipped + 1
        self.journal.record("skipped", progress.step, skipped=progress.skipped)
        self.journal.warn(f"step {progress.step} was skipped: its loss is not finite ({progress.bad_steps} in a row)")
        if progress.bad_steps >= self.recipe.optim.bad_steps:
            if self.world.main:  # the checkpoint right before them may hold the weights that cause them
                self.checkpoints.set_aside(progress.step - progress.bad_steps)
            raise ValueError(
                f"the loss was not finite in {progress.bad_steps} steps in a row, the last of them step"
                f" {progress.step}: {self.checkpoints.last_good()}"
            )

    def _log(self, window: Window, epoch: int) -> None:
        values = window.means()
        lr = self.optimizer.param_groups[0]["lr"]
        self.journal.record("train", self.progress.step, epoch=epoch + 1, **values, lr=lr)
        self.journal.advance(self.progress.step, f"{epoch + 1}/{self.recipe.schedule.epochs}", values)

    def _end_epoch(self, epoch: int, stop: bool) -> None:
        options, number = self.options, epoch + 1
        is_final = number == self.recipe.schedule.epochs
        self.relapse.check(self.journal, self.progress.step, number)
        evaluated = is_final or number % options.evaluate_epochs == 0
        if evaluated:
            self._evaluate(number)
        self._log_layer_table(number, shown=evaluated)
        due = is_final or stop or self._kept_epoch() or number % options.save_epochs == 0
        if due and (self.progress.bad_steps == 0 or stop):
            self._save()
        if stop and not is_final:
            raise self.stop_request.stopped(self.progress.step)

    def _evaluate(self, epoch: int) -> None:
        model = self.state.ema.module if self.state.ema else self.model
        batch = min(EVALUATION_BATCH, self.split.micro_batch)
        metrics = self.task.evaluate(model, self.validation_feed, self.world, self.recipe.precision, batch)
        self.journal.record("validation", self.progress.step, epoch=epoch, **metrics)
        self.progress.last_validation = metrics | {"epoch": epoch}
        is_finite = all(map(math.isfinite, metrics.values()))
        if not is_finite:
            self.journal.warn(f"epoch {epoch}: the validation loss is not finite, so this network is not the best one")
        is_best = is_finite and self.task.is_better(metrics, self.progress.best)
        self.journal.say(
            f"epoch {epoch}/{self.recipe.schedule.epochs}  validation: {describe_metrics(metrics)}"
            f"{'  (best)' if is_best else ''}"
        )
        if is_best:
            self._save_model(self.folder.best)
            self.progress.best = self.progress.last_validation

    def _log_layer_table(self, epoch: int, shown: bool) -> None:
        """Measure every layer, if the network has layers that `trajectory` can walk."""
        if not self.recipe.probe or not is_stack(self.network):
            return
        model, step = self._evaluated_model(), self.progress.step
        self.world.on_main(
            lambda: self.layers.measure(model, self.validation_feed, self.journal, step, epoch, shown),
        )

    # saving and resuming

    def _save_due(self) -> bool:
        """Whether it is time for a checkpoint: by the main process's clock, or by the number of steps."""
        minutes, steps = self.options.save_minutes, self.options.save_steps
        by_clock = self.world.main and minutes > 0 and time.monotonic() - self.saved_at > 60 * minutes
        return by_clock or bool(steps and (self.progress.step + 1) % steps == 0)

    def _kept_epoch(self) -> int | None:
        """The epoch that ends with this step, if its checkpoint is kept for good."""
        epoch, beyond = divmod(self.progress.step, self.steps_per_epoch)
        keep = self.options.keep_epochs
        return epoch if keep and epoch and not beyond and epoch % keep == 0 else None

    def _save(self) -> None:
        self.progress.recorded = self.journal.recorded
        state = self.state.gather(self.progress)
        state |= {"relapse": asdict(self.relapse), **self.layers.to_dict()}
        if hasattr(self.network, "config"):  # so that `opencrate.load` reads a checkpoint, too
            state["config"] = self.network.config()  # type: ignore[operator]
            state |= operator_modules(state["config"])
        self.journal.flush()
        self.world.on_main(lambda: self.checkpoints.save(state, self.progress.step, self._kept_epoch()))
        self.saved_at = time.monotonic()

    def _resume(self) -> None:
        """Restore the newest checkpoint, which the main process reads, or seed a new run."""
        state: dict[str, Any] = {}

        def read() -> bool:
            state.update(self.checkpoints.newest() or {})
            return bool(state)

        if not self.world.on_main(read):
            seed_process(self.recipe.seed, self.world.rank, 0)
            return
        try:
            small = self.state.restore(state, self.recipe.seed)
            self.progress = Progress.from_dict(small)
            self.relapse = replace(self.relapse, **(small.get("relapse") or {}))  # older checkpoints do not have it
            self.layers.restore(small)
        except Exception as error:  # what a stranger wrote fails anywhere in torch's readers
            if is_out_of_memory(error):
                raise
            step, reason = state.get("step"), one_line(f"{type(error).__name__}: {error}")
            raise ValueError(
                f"{self.folder.path} cannot be continued, its checkpoint of step {step} is not of this run ({reason});"
                " remove the folder, or give another, --out"
            ) from error
        self.world.on_main(lambda: self.checkpoints.tidy(self.progress.step, self._kept_epoch()))
        if self.progress.best and (problem := self.world.on_main(lambda: damage(self.folder.best))):
            self._replace_best(problem)

    def _replace_best(self, problem: str) -> None:
        """Set best/ aside, which is damaged, and write it again if the checkpoint is that of its epoch."""
        step = self.progress.step
        self.world.on_main(lambda: _set_aside(self.folder.best))
        if self.progress.best.get("epoch", 0) * self.steps_per_epoch == step:
            self._save_model(self.folder.best)
            instead = "it is written again from the checkpoint"
        else:
            self.progress.best = {}
            instead = "the best network of the epochs to come takes its place"
            if step == self.total_steps:
                instead = "no epoch is to come, so the run ends without a best network"
        if self.world.main:
            log.warning("%s; %s", problem, instead)

    def _finish(self) -> dict[str, Any]:
        self._save_model(self.folder.model)
        return {
            "recipe": self.recipe.name,
            "data": self.recipe.data.name,
            **{name: self.progress.last_validation[name] for name in self.task.headline},
            "best": self.progress.best,
            "steps": self.progress.step,
            "epochs": self.recipe.schedule.epochs,
            "skipped_steps": self.progress.skipped,
            "parameters": self.parameters,
            "training_seconds": round(self.progress.seconds, 2),
            "start_up_seconds": round(self.start_up, 2),
            "layers": self.layers.table.to_dict() if self.layers.table else None,
            "model": str(self.folder.model),
        }

    def _save_model(self, directory: Path) -> None:
        model = self._evaluated_model()
        self.world.on_main(lambda: save_network(model, directory))

    def _evaluated_model(self) -> nn.Module:
        """The network that is measured and saved: the moving average if there is one.

        A sharded network is gathered into a full copy on the main process; all processes must call this.
        """
        if self.state.ema:
            return self.state.ema.module
        if self.is_sharded:
            weights = full_weights(self.model)
            if self.gathered_model is not None:
                self.gathered_model.load_state_dict(weights)
                return self.gathered_model
        return self.network


def _set_aside(folder: Path) -> None:
    """Rename a damaged folder so that it is not used, and stays to be looked at."""
    if folder.exists():
        aside = folder.with_suffix(".damaged")
        shutil.rmtree(aside, ignore_errors=True)
        folder.replace(aside)
