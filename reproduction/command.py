"""`python -m reproduction`: its settings, and its steps: check the datasets, carry out the plan, write RESULTS.md."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from opencrate.data import Augmentation, Dataset, open_feed
from opencrate.data.opening import open_pictures, split_folder
from opencrate.distributed import device_named
from opencrate.errors import one_line
from opencrate.recipes import Recipe
from opencrate.run_folder import RunFolder
from opencrate.training.run import cores

from .document import require_no_loss, write_document
from .execute import execute, places_for
from .plan import Plan
from .progress import Progress
from .recognition import require_recognised
from .results import Results
from .scales import folders_for, plan_for

RESULTS = "results.json"


@dataclass(frozen=True)
class Reproduction:
    """Run the paper's tables and figures again, and write RESULTS.md with a verdict on every claim.

    Args:
        scale: smoke (digits, minutes on two cores), small (CIFAR-10 and Fashion-MNIST, hours of a GPU), medium
            (Tiny-ImageNet and four transfers, hours of a GPU) or full (ImageNet, the paper's own settings).
        only: parts, separated by commas or spaces: table1, table2, table3, strong, fig3, fig4, tokens, subspaces,
            audit, probe, masks; by default all.
        runs: patterns for the names of runs, such as 'cifar-10/crate-t/*'; runs of the first pattern come first.
            --dry prints the names.
        data: folders of datasets, each as NAME=FOLDER; by default data/NAME. small needs cifar10 and fashion_mnist,
            medium needs tiny_imagenet, full imagenet, and both cifar10, cifar100, flowers102 and pets: as IDX files,
            packed (opencrate pack; with RandAugment at the network's size), as folders of classes in train and
            validation, or in torchvision's layout. Masks of pets lie in trimaps/CLASS/NAME.png.
        out: the folder for runs, results and figures; by default out/reproduce-SCALE. The same command resumes a plan
            that was stopped.
        devices: cpu, cuda:0 …; by default all GPUs, or else the CPU.
        jobs: runs side by side on each device; by default one on a GPU, one for each core of a CPU, up to four.
        processes: processes of each run, started by torchrun, for runs that need several GPUs each.
        document: the folder for RESULTS.md and its figures; by default `out`.
        dry: print the plan, and run nothing.
        write_only: run nothing, and write RESULTS.md from the results so far.
    """

    scale: Literal["smoke", "small", "medium", "full"] = "smoke"
    only: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    out: Path | None = None
    devices: tuple[str, ...] = ()
    jobs: int | None = None
    processes: int = 1
    document: Path | None = None
    dry: bool = False
    write_only: bool = False

    def __post_init__(self) -> None:
        for name in ("jobs", "processes"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def plan(self) -> Plan:
        parts = [part for given in self.only for part in given.split(",") if part]
        return plan_for(self.scale, self._given()).only(parts, self.runs)

    def require_pictures(self, plan: Plan) -> None:
        """Raise before the first run if a dataset of the plan is missing or cannot be read."""
        folders = folders_for(self.scale, self._given())
        needed = dict.fromkeys(_reading_settings(run.recipe) for run in plan.runs)
        pictures = [
            (name, data, augment)
            for name, folder in folders.items()
            for data, augment in needed
            if _is_dataset(data, name, folder)
        ]
        for name in dict.fromkeys(name for name, *_ in pictures):
            folder = Path(folders[name]).expanduser()
            if not (folder.is_dir() and any(folder.iterdir())):
                raise ValueError(
                    f"{folders[name]} is missing or empty; give the folder of {name}, --data {name}=FOLDER"
                )
        for name, data, augment in pictures:
            _require_readable(name, data, augment)
        for masks in {run.masks for run in plan.runs if "masks" in run.parts}:
            if not (Path(masks).expanduser() / "trimaps").is_dir():
                raise ValueError(f"{masks} has no folder trimaps with the masks of its pictures")

    def folder(self) -> Path:
        return (self.out or Path("out") / f"reproduce-{self.scale}").expanduser()

    def describe_plan(self) -> str:
        """A line for every run: its epochs, its parts, and whether it is done."""
        plan = self.plan()
        return plan.describe(Results(self.folder() / RESULTS, plan.scale).done(plan_for(self.scale, {})))

    def _given(self) -> dict[str, str]:
        folders = dict[str, str]()
        for given in self.data:
            name, equals, folder = given.partition("=")
            if not (name and equals and folder):
                raise ValueError(f"--data takes NAME=FOLDER, got {given!r}")
            if not Path(folder).expanduser().is_dir():
                raise ValueError(f"--data {given}: {folder} is not a folder")
            folders[name] = folder
        return folders


def _reading_settings(recipe: Recipe) -> tuple[Dataset, Augmentation]:
    """What decides whether a dataset can be read: a packed one does not allow every augmentation."""
    return recipe.data, recipe.augment if recipe.data.name == "packed" else Augmentation()


def _is_dataset(data: Dataset, name: str, folder: str) -> bool:
    """Whether `data` is the dataset `name` of that folder, which may hold several of torchvision's."""
    return data.root == folder and (data.name == f"torch/{name}" or not data.name.startswith("torch/"))


def _require_readable(name: str, data: Dataset, augment: Augmentation) -> None:
    """Open both splits; a folder of named classes takes long to list, so that only their names are read."""
    try:
        for training in (True, False):
            opened = partial(open_pictures, data, training)
            if data.name == "folder":
                folder = split_folder(Path(data.root).expanduser(), data.train if training else data.validation)
                classes = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir()))
            elif data.name == "packed":
                classes = open_feed(data, augment, training).classes
            else:
                classes = opened().classes
            require_recognised(name, classes, opened, resized=data.name == "packed")
    except ValueError as error:
        cause = error.__cause__
        if data.name.startswith("torch/") and cause and not isinstance(cause, ImportError):  # no form was recognised
            forms = "IDX files, a packed set, folders of classes in train and validation, or torchvision's layout"
            message = " ".join(str(cause).split())
            raise ValueError(f"{data.root} does not hold {name} as {forms} (torchvision: {message})") from error
        message = str(error).partition(": give --data.")[0]  # an option of `train`
        raise ValueError(f"{name} cannot be read: {message}") from error


def reproduce(settings: Reproduction) -> tuple[Path, dict[str, str]]:
    """Carry out what is not done, write the document, and return it with the errors of failed runs."""
    plan, full_plan = settings.plan(), plan_for(settings.scale, {})
    if not settings.write_only:
        settings.require_pictures(plan)
    out = settings.folder()
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; --out needs a folder")
    if settings.write_only and not (out / RESULTS).is_file():
        raise ValueError(f"{out} has no {RESULTS}; run without --write-only first, or give its folder, --out")
    devices, jobs, threads = _workers(settings)
    with RunFolder(out).locked():  # results.json has one writer
        results, progress = Results(out / RESULTS, plan.scale), Progress()
        document = (settings.document or out).expanduser()
        with _showing(results):
            require_no_loss(full_plan, results, out, document)
        try:
            if not settings.write_only:
                places = places_for(plan, out, devices, jobs, settings.processes, threads)
                execute(plan, results, places, progress)
        finally:
            progress.end()
        with _showing(results):
            file = write_document(full_plan, results, out, document)
    keys = {run.key for run in plan.runs}
    return file, {key: error for key, error in results.failures().items() if key in keys}


@contextmanager
def _showing(results: Results) -> Iterator[None]:
    """Rows of a damaged file, or of another version's, lack what the document shows."""
    try:
        yield
    except (KeyError, TypeError, IndexError, AttributeError, ArithmeticError) as error:
        reason = one_line(f"{type(error).__name__}: {error}")
        raise ValueError(
            f"{results.file} has a row that cannot be shown ({reason}); remove it, or give another --out"
        ) from error


def _workers(settings: Reproduction) -> tuple[tuple[str, ...], int, int]:
    """Devices, runs side by side on each, and threads of a run. With several processes a run has all GPUs."""
    import torch

    for device in settings.devices:
        device_named(device)
    if settings.processes > 1 and settings.devices:
        raise ValueError(f"--processes {settings.processes} chooses its devices itself; leave out --devices")
    gpus = tuple(f"cuda:{i}" for i in range(torch.cuda.device_count()))
    devices = ("auto",) if settings.processes > 1 else settings.devices or gpus or ("cpu",)
    jobs = settings.jobs or (min(4, cores()) if devices == ("cpu",) else 1)
    return devices, jobs, max(1, cores() // (jobs * len(devices)))
