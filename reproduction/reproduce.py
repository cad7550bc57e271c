"""`opencrate reproduce`: the plan of a scale, its runs, and what they say, in tables beside the paper's."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from opencrate.data import Augmentation, Dataset, open_feed
from opencrate.data.datasets.pictures import open_pictures, split_folder
from opencrate.distributed import device_named
from opencrate.recipes import Recipe
from opencrate.run_folder import RunFolder
from opencrate.training.run import cores

from .document import require_kept, write_document
from .execute import execute, places_for
from .plan import Plan
from .progress import Progress
from .results import Results
from .scales import folders_for, plan_for

__all__ = ["Reproduction", "reproduce"]

RESULTS = "results.json"


@dataclass(frozen=True)
class Reproduction:
    """What to reproduce, from which pictures, on which devices.

    Args:
        scale: smoke (digits, minutes on two cores), small (CIFAR-10 and Fashion-MNIST, hours of a GPU) or full
            (ImageNet, the paper's own settings).
        only: parts, with commas or spaces between them: table1, table2, table3, strong, fig3, fig4, tokens, subspaces,
            audit; all unless given.
        runs: only runs whose names match one of these patterns, such as 'cifar-10/crate-t/*', those of the first
            pattern first; --dry prints the names.
        data: where sets of pictures lie, each as NAME=FOLDER; data/NAME unless given. small has cifar10 and
            fashion_mnist, full imagenet, cifar10, cifar100, flowers102 and pets: as IDX files, packed (opencrate
            pack; not for runs with RandAugment), as folders of classes in train and another folder, or as torchvision
            keeps them.
        out: the folder for runs, results and figures; out/reproduce-SCALE unless given. The same command again goes on
            where it stopped.
        devices: cpu, cuda:0 …; all GPUs, or the CPU, unless given. Each carries out one run after another.
        jobs: runs at a time on each device; one on a GPU, one for each core on a CPU, up to four.
        processes: processes of each run, by torchrun, for a plan whose runs need several GPUs each.
        document: the folder for RESULTS.md and its figures; the same as `out` unless given.
        dry: print the plan, and do nothing.
        write_only: run nothing, and write the document from the results that are there.
    """

    scale: Literal["smoke", "small", "full"] = "smoke"
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
        """Stop before the first run where a set that the plan needs is missing, or in no form that can be read."""
        folders = folders_for(self.scale, self._given())
        needed = dict.fromkeys(_read_by(run.recipe) for run in plan.runs)
        pictures = [
            (name, data, augment)
            for name, folder in folders.items()
            for data, augment in needed
            if _belongs(data, name, folder)
        ]
        for name in dict.fromkeys(name for name, *_ in pictures):
            place = Path(folders[name]).expanduser()
            if not (place.is_dir() and any(place.iterdir())):
                raise ValueError(f"there is nothing in {folders[name]}: say where {name} lies, --data {name}=FOLDER")
        for name, data, augment in pictures:
            _require_readable(name, data, augment)

    def folder(self) -> Path:
        return (self.out or Path("out") / f"reproduce-{self.scale}").expanduser()

    def told(self) -> str:
        """A line for every run: how long it is, what for, and whether it is done."""
        plan = self.plan()
        return plan.told(Results(self.folder() / RESULTS, plan.scale).done(plan_for(self.scale, {})))

    def _given(self) -> dict[str, str]:
        folders = dict[str, str]()
        for given in self.data:
            name, equals, folder = given.partition("=")
            if not (name and equals and folder):
                raise ValueError(f"--data takes NAME=FOLDER, got {given!r}")
            if not Path(folder).expanduser().is_dir():
                raise ValueError(f"{folder} is not a folder, and {name} is to lie there")
            folders[name] = folder
        return folders


def _read_by(recipe: Recipe) -> tuple[Dataset, Augmentation]:
    """What decides whether a recipe's pictures can be read: packed ones cannot be varied in every way."""
    return recipe.data, recipe.augment if recipe.data.name == "packed" else Augmentation()


def _belongs(data: Dataset, name: str, folder: str) -> bool:
    """Whether these pictures are that set's: several of torchvision's may lie in one folder."""
    return data.root == folder and (data.name == f"torch/{name}" or not data.name.startswith("torch/"))


def _require_readable(name: str, data: Dataset, augment: Augmentation) -> None:
    """Both splits are there; one that takes long to list is believed to be whole."""
    try:
        for training in (True, False):
            if data.name == "folder":
                split_folder(Path(data.root).expanduser(), data.train if training else data.validation)
            elif data.name == "packed":
                open_feed(data, augment, training)
            else:
                open_pictures(data, training)
    except ValueError as error:
        says = error.__cause__
        if data.name.startswith("torch/") and says and not isinstance(says, ImportError):  # or no form was recognised
            forms = "IDX files, a packed set, folders of classes in train and validation, or what torchvision keeps"
            told = " ".join(str(says).split())
            raise ValueError(
                f"{data.root} does not hold {name}: there should be {forms} (torchvision says: {told})"
            ) from error
        told = str(error).partition(": give --data.")[0]  # an option of `train`
        raise ValueError(f"{name} cannot be read: {told}") from error


def reproduce(settings: Reproduction) -> tuple[Path, dict[str, str]]:
    """Carry the plan out as far as it is not done, write the document, and return it with what failed."""
    plan, whole = settings.plan(), plan_for(settings.scale, {})
    if not settings.write_only:
        settings.require_pictures(plan)
    out = settings.folder()
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: results need a folder")
    if settings.write_only and not (out / RESULTS).is_file():
        raise ValueError(f"there are no results in {out} to write of")
    devices, jobs, threads = _workers(settings)
    with RunFolder(out).locked():  # results have one writer
        results, progress = Results(out / RESULTS, plan.scale), Progress()
        document = (settings.document or out).expanduser()
        require_kept(whole, results, out, document)
        try:
            if not settings.write_only:
                execute(plan, results, places_for(plan, out, devices, jobs, settings.processes), threads, progress)
        finally:
            progress.end()
        file = write_document(whole, results, out, document)
    keys = {run.key for run in plan.runs}
    return file, {key: error for key, error in results.failures().items() if key in keys}


def _workers(settings: Reproduction) -> tuple[tuple[str, ...], int, int]:
    """Devices, runs at a time on each, and threads for a run. Processes by torchrun take all GPUs for one run."""
    import torch

    for device in settings.devices:
        device_named(device)
    if settings.processes > 1 and settings.devices:
        raise ValueError(f"--processes {settings.processes} takes the first GPUs, or the CPU: leave --devices out")
    gpus = tuple(f"cuda:{i}" for i in range(torch.cuda.device_count()))
    devices = ("auto",) if settings.processes > 1 else settings.devices or gpus or ("cpu",)
    jobs = settings.jobs or (min(4, cores()) if devices == ("cpu",) else 1)
    return devices, jobs, max(1, cores() // (jobs * len(devices)))
