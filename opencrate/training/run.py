"""A run: a recipe from its first step, or from its newest checkpoint, to its end."""

import logging
import os
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..checkpoints import damage
from ..data import Split, open_feeds
from ..distributed import World, joined
from ..files import write_json
from ..measures import LayerTable
from ..randomness import seeded
from ..recipes import Recipe
from ..run_folder import RunFolder, numbered
from ..tasks import describe_metrics
from .building import require_start
from .checkpoints import is_out_of_memory
from .launch import cores
from .loop import Training
from .options import Options
from .start import begin

log = logging.getLogger("opencrate")


def train(recipe: Recipe, options: Options) -> dict[str, Any]:
    """Run the recipe and return its result, which is also the run folder's result.json."""
    require_start(recipe)
    folder = RunFolder((options.out or Path("runs") / recipe.name).expanduser())
    with joined(options.device) as world, ExitStack() as stack:
        if options.processes not in (1, world.size):
            raise ValueError(f"{world.size} processes were started, but --processes is {options.processes}")
        world.on_main(lambda: stack.enter_context(folder.locked()))
        world.on_main(lambda: begin(folder, recipe, asdict(options), options.resume))
        if (result := world.on_main(lambda: _finished(folder))) is not None:
            return result | {"already": True}
        split = split_for(recipe, options, world)
        try:
            return _train(recipe, options, folder, world, split)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            micro = split.micro_batch
            lower = f"lower it, --micro-batch {micro // 2} (the global batch stays {recipe.optim.batch})"
            hint = lower if micro > 1 else "the network is too large for this machine"
            raise ValueError(f"out of memory with a micro-batch of {micro} on {world.device}: {hint}") from error


def _finished(folder: RunFolder) -> dict[str, Any] | None:
    """The result, if the run has finished; its networks that are damaged are said."""
    result = folder.finished()
    if result is None:
        return None
    networks = [folder.model, folder.best] if result["best"] else [folder.model]
    again = "writes again what its last checkpoint holds" if numbered(folder.checkpoints, "step") else "trains again"
    for problem in filter(None, map(damage, networks)):
        log.warning("%s; delete %s, and the same command %s", problem, folder.result, again)
    return result


def _train(recipe: Recipe, options: Options, folder: RunFolder, world: World, split: Split) -> dict[str, Any]:
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # on this machine
    workers = options.workers if options.workers is not None else min(16, cores() // processes)
    data = recipe.data if options.root is None else replace(recipe.data, root=options.root)
    compiled = options.compiles(world.device.type, recipe.precision)
    feeds = open_feeds(data, recipe.augment, recipe.seed, world.device, workers, compiled)
    if feeds[0].steps(recipe.optim.batch) == 0:
        raise ValueError(
            f"the training split has {len(feeds[0])} pictures, fewer than a batch of {recipe.optim.batch}:"
            " lower it, --optim.batch"
        )
    with seeded(recipe.seed):  # the same weights on every process
        training = Training(recipe, options, folder, feeds, split, world)
    result = training.run()
    world.on_main(lambda: write_json(folder.result, result))
    return result


def summary(result: dict[str, Any]) -> str:
    """The end of a run for people: layer table, metrics, time, and where everything is."""
    folder, best = RunFolder(Path(result["model"]).parent), result["best"]
    best_model = f"; the best epoch's: {folder.best}" if folder.best.is_dir() else ""
    already = ": it had finished before, nothing was done now" if result.get("already") else ""
    skipped = f", {result['skipped_steps']} steps skipped" if result["skipped_steps"] else ""
    table = f"\n{LayerTable.from_dict(result['layers'])}\n" if result["layers"] else ""
    when = f" after epoch {best['epoch']}" if "epoch" in best else ""  # the best network may have been lost
    metrics = f"  validation {describe_metrics(result)}{f'; best {describe_metrics(best)}{when}' * bool(best)}\n"
    if "top1" in result:
        of_best = f" (best {best['top1']:.2f} %{when})" if "top1" in best else ""
        metrics = f"  accuracy   {result['top1']:.2f} % top-1 on validation{of_best}\n"
    return (
        f"{table}\n{result['recipe']}{already}\n{metrics}"
        f"  training   {result['steps']:,} steps in {result['training_seconds']:.1f} s"
        f" (and {result['start_up_seconds']:.1f} s to start up){skipped}\n"
        f"  model      {folder.model}  (opencrate.load, opencrate describe{best_model})\n"
        f"  metrics    {folder.metrics}\n"
        f"  recipe     opencrate train {folder.recipe} --out ANOTHER repeats it;"
        f" {folder.record} says what made this run"
    )


def split_for(recipe: Recipe, options: Options, world: World) -> Split:
    """Divide the global batch evenly into the fewest micro-batches that are not larger than allowed."""
    batch, mirrored = recipe.optim.batch, recipe.augment.mixes
    share, smallest = batch // world.size, 2 if mirrored else 1
    if batch % (world.size * smallest):
        pairs = ", in pairs for mixup," if mirrored else ""
        raise ValueError(f"a global batch of {batch} cannot be divided{pairs} among {world.size} processes")
    sizes = [n for n in range(smallest, min(share, options.micro_batch) + 1, smallest) if share % n == 0]
    if not sizes:
        raise ValueError(f"mixup works on pairs: --micro-batch must be at least 2, got {options.micro_batch}")
    return Split(batch, share // max(sizes), world.rank, world.size, mirrored)
