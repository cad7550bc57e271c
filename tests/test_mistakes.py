"""Mistakes that people make on the command line: each ends in one sentence on stderr, with exit code 2."""

import os
import pickle
import re
import shlex
import shutil

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.models import save_for_hf

from opencrate import save_pretrained
from opencrate.cli import COMMANDS, main
from opencrate.training import train

from .networks import small
from .runs import small_options, small_recipe

LONGEST = 300  # characters of a sentence

# A command, and part of its sentence.
MISTAKES = """
# commands
trian digits => unknown command 'trian'; did you mean 'train'?
evaluate run => unknown command
--verbose => unknown command '--verbose'
help => unknown command 'help'
bench --quick => is now 'python -m benchmarks'
reproduce => is now 'python -m reproduction'
recipes digits => unexpected argument 'digits'
recipes --all => unknown option --all
completion => needs SHELL
completion fish => expected bash or zsh, got 'fish'

# train: recipes and files
train cifar10 => unknown recipe 'cifar10'
train digits.yaml => digits.yaml: No such file or directory
train nothing => no pictures were found in nothing: it is empty
train pictures => pictures/0.png is not in the folder of a class
train one => all pictures in one are of one class, a
train trainonly --schedule.epochs none => --schedule.epochs: expected a whole number, got 'none'
train fake => 1 of 2 pictures do not decode
train file.txt => the field 'name' is missing
train empty.yaml => is empty
train list.yaml => holds a list, not fields
train unclosed.yaml => unclosed.yaml is not YAML that can be read
train unknown.yaml => there is no field 'epochs'; did you mean 'schedule.epochs'?
train type.yaml => optim.lr: Input should be a valid number
train negative.yaml => negative.yaml: optim.lr must be positive, got -1.0
train run => no pictures were found in run, in a folder for each class
train net/model.safetensors => is not YAML that can be read
train binary.yaml => binary.yaml is not YAML that can be read
train digits pictures => unexpected argument 'pictures'

# train: options
train digits --optim.lrr 1 => unknown option --optim.lrr; did you mean --optim.lr?
train digits --lr 1e-3 => unknown option --lr; did you mean
train digits -lr 1e-3 => unknown option -lr
train digits --epochs 3 => unknown option --epochs; did you mean --schedule.epochs?
train digits --optim.lr => --optim.lr needs a value
train digits --optim.lr fast => --optim.lr: expected a number, got 'fast'
train digits --optim.lr -1 => optim.lr must be positive
train digits --optim.lr 0 => optim.lr must be positive
train digits --optim.lr nan => optim.lr must be positive, got nan
train digits --optim.lr inf => optim.lr must be finite, got inf
train digits --optim.lr 1,5 => expected a number, got '1,5'
train digits --optim.batch 1e3 => expected a whole number
train digits --optim.batch 0 => must be at least 1
train digits --optim.batch 100000 => the training split has 1438 pictures, fewer than a batch of 100000
train digits --optim.name adamm => unknown optimiser 'adamm'
train digits --optim.betas 0.9 => expected two numbers
train digits --optim.ema 1 => must be in [0, 1)
train digits --schedule.epochs 0 => schedule.epochs must be at least 1, got 0
train digits --schedule.epochs 3 --schedule.warmup-epochs 5 => must be less than schedule.epochs
train digits --precision fp8 => expected bf16, fp16 or fp32, got 'fp8'
train digits --definition papers => unknown definition 'papers'
train digits --probe -1 => must not be negative
train digits --seed -1 => must be between 0 and
train digits --seed one => expected a whole number, got 'one'
train digits --label-smoothing 1 => must be in [0, 1)
train digits --augment.crop center => expected resized, padded or none
train digits --augment.scale 1 0.1 => must be two fractions in ascending order
train digits --augment.scale 1 => needs 2 values
train digits --augment.flip 2 => must be between 0 and 1
train digits --augment.randaugment strong => is neither torchvision-nN-mM nor one of timm's strings
train digits --model.name crate_huge => unknown network 'crate_huge'; known: crate_base
train digits --model.name resnet18 => resnet18 cannot be built as the recipe says
train digits --model.compress softmax => unknown compression 'softmax'
train digits --model.compress-args kappa => names and values in turn
train digits --model.sparsify ista --model.sparsify-args etaa 0.1 => ista has no option 'etaa'; did you mean 'eta'?
train digits --model.sparsify-args eta -1 => eta must be positive, got -1
train digits --model.depth 0 => depth must be a whole number, at least 1, got 0
train digits --model.depth 2.5 => expected a whole number
train digits --model.num-heads 0 => num_heads must be a whole number, at least 1, got 0
train digits --model.num-heads 7 => embed_dim 96 is not divisible by num_heads 7
train digits --model.patch-size 5 => img_size 16 is not divisible by patch_size 5
train digits --model.patch-size 0 => img_size 16 is not divisible by patch_size 0
train digits --model.imports no_such_module => there is no module no_such_module
train digits --model.imports ../mine.py => is not the name of a module
train digits --model.global-pool max => expected token or avg
train digits --objective.layers 9 --objective.weight 0.1 => names layer 9, but the network has 4 layers
train digits --data.name digitz => unknown dataset 'digitz'
train digits --data.size 0 => must be at least 1
train digits --data.in-chans 2 => must be 3, for colour, or 1, for grey
train digits --data.in-chans 3 => needs a value for each of 3 channels
train digits --data.num-classes 5 => digits has 10 classes but data.num_classes is 5: give --data.num-classes 10
train digits --data.crop-pct 0 => must be in (0, 1]
train digits --device gpu => device 'gpu' is not supported; use auto, cpu, cuda or cuda:N
train digits --device cuda:99 => device 'cuda:99' is not available
train digits --processes 99 => does not fit on this machine
train digits --processes 0 => must be at least 1
train digits --micro-batch 0 => must be at least 1
train digits --workers -1 => must not be negative
train digits --compile maybe => --compile: expected auto, on or off, got 'maybe'
train digits --attention flash => unknown attention 'flash'
train digits --parallel dp => expected ddp or fsdp
train digits --save-minutes -1 => must not be negative
train digits --resume --out never => there is no run to resume in never
train digits --resume yes => unexpected argument 'yes'
train digits --out file.txt => file.txt is a file: a run needs a folder
train digits --out run --optim.lr 3e-3 => run holds a run with another recipe

# train: pictures
train cifar10_tiny --data.name folder --data.root nowhere --device cpu
    => nowhere is not a folder: give the one with the pictures, --data.root FOLDER
train cifar10_tiny --data.name folder --data.root file.txt --device cpu => file.txt is not a folder
train cifar10_tiny --data.name folder --data.root nothing --device cpu => nothing has no folder 'train'
train cifar10_tiny --data.name folder --data.root pictures --device cpu => pictures has no folder 'train'
train cifar10_tiny --data.name folder --data.root fake --device cpu --precision fp32 => 1 of 2 pictures do not decode
train cifar10_tiny --data.name folder --data.root classes --data.train learn --device cpu
    => classes has no folder 'learn'
train cifar10_tiny --data.name folder --data.root classes --data.num-classes 1 --device cpu
    => folder has 2 classes but data.num_classes is 1
train cifar10_tiny --data.name folder --data.root one --data.num-classes 1 --device cpu --precision fp32
    => all pictures in one are of one class, a
train cifar10_tiny --data.name folder --data.root trainonly --device cpu => trainonly has no folder 'validation'
train cifar10_tiny --data.name folder --data.root classes --device cpu
    => folder has 2 classes but data.num_classes is 10: give --data.num-classes 2
train cifar10_tiny --data.name torch/cifar11 --device cpu
    => unknown torchvision dataset 'cifar11'; did you mean 'cifar10'?
train cifar10_tiny --data.name packed --data.root classes --device cpu
    => contains no packed pictures: write them with `opencrate pack`
train cifar10_tiny --data.name idx --data.root classes --device cpu => holds neither train-images-idx3-ubyte nor
train cifar10_tiny --data.name wds --data.root classes --device cpu => no shards of 'train' in classes

# finetune
finetune pet run => unknown recipe 'pet'
finetune pets => starts from a checkpoint
finetune cifar10 nowhere --data.name digits --data.size 16 --data.in-chans 1 --data.mean 0 --data.std 1 --device cpu
    => nowhere does not exist
finetune cifar10 nothing --data.name digits --data.size 16 --data.in-chans 1 --data.mean 0 --data.std 1 --device cpu
    => nothing holds no config.json, so it is no checkpoint
finetune cifar10 net --data.name digits --data.size 16 --data.in-chans 1 --data.mean 0 --data.std 1 --device cpu
    => takes pictures of 3 channels, but the recipe has 1
finetune cifar10 text.pth --data.name digits --data.size 16 --data.in-chans 1 --data.mean 0 --data.std 1 --device cpu
    => text.pth cannot be read as a checkpoint

# eval
eval => name a run or a checkpoint first
eval --knn 5 => name a run or a checkpoint first
eval nowhere => so its dataset is unknown; pass --recipe NAME
eval net => so its dataset is unknown; pass --recipe NAME
eval run --recipe digitz => unknown recipe 'digitz'
eval run --recipe => --recipe needs a value
eval run --recipe cifar10_tiny => prepared at 32 × 32: give --data.size 16
eval run --knn -1 => must not be negative
eval run --knn 100000 --device cpu --workers 0 => k must be between 1 and
eval run --layers papers => unknown definition 'papers'
eval run --batch 0 => must be at least 1
eval run --samples 0 => must be at least 1
eval run --data.size 32 --device cpu => prepared at 32 × 32: give --data.size 16
eval run --data.root nowhere --data.name folder --device cpu => nowhere is not a folder
eval run --device tpu => device 'tpu' is not supported
eval run --real --device cpu --workers 0 => ImageNet-ReaL needs the names of files
eval cut --recipe digits --device cpu => it is damaged, or holds no weights
eval nothing --recipe digits --device cpu => nothing holds no config.json, so it is no checkpoint
eval vit --recipe digits --device cpu => the set has 10 classes and the network 1,000, which cannot be matched
eval net --recipe digits --device cpu => the set has 10 classes and the network 5, which cannot be matched

finetune classes nowhere => nowhere is not a run, a checkpoint or the name of a network
finetune nothing => no pictures were found in nothing: it is empty

# export
export => needs CHECKPOINT and FILE
export net => needs FILE
export net model.txt => model.txt must end in .onnx or .pt2
export net file.pth => file.pth must end in .onnx or .pt2
export net model => model must end in .onnx or .pt2
export nowhere model.onnx => nowhere is not a run, a checkpoint or the name of a network
export cut model.pt2 => it is damaged, or holds no weights

# predict
predict => name a picture, or a folder of pictures
predict nowhere.png => nowhere.png: No such file or directory
predict nothing => there is no picture in nothing
predict file.txt => file.txt cannot be read as a picture
predict pictures --top 0 => top must be at least 1, got 0
predict pictures --model nowhere => nowhere is not a run, a checkpoint or the name of a network
predict pictures --overlay out.txt => must end in .png
predict pictures --overlay out.png => is one file for 3 pictures: give a folder's name

# segment
segment => needs --root PATH
segment net --root nowhere => --root nowhere is not a folder
segment net --root pictures --device cpu => pictures has no folder 'train'
segment net --root classes --device cpu => trimaps/a/0.png is missing: a mask is needed for every picture
segment net --root classes --figure => --figure needs a value

# pack
pack => needs FOLDER and OUT
pack classes => needs OUT
pack nowhere out => nowhere is not a folder
pack file.txt out => file.txt is not a folder
pack nothing out => no pictures were found in nothing: it is empty
pack pictures out => pictures/0.png is not in the folder of a class
pack classes out --side 0 => side must be at least 1, got 0
pack classes out --side big => expected a whole number
pack classes file.txt => file.txt/train could not be written

# analyze, audit and explore
analyze nowhere => nowhere is not a run, a checkpoint or the name of a network; known: crate_base
analyze crate_tny => did you mean 'crate_tiny
analyze net => so its dataset is unknown; pass --images FOLDER
analyze net --images nowhere => --images nowhere is not a folder
analyze net --images file.txt => --images file.txt is not a folder
analyze net --images nothing => there is no picture in nothing
analyze net --images words => there is no picture in words
analyze net --images fake --device cpu => none of 5 pictures decodes
analyze net --images pictures --recipe digits => both name pictures; pass one of them
analyze net --images pictures --root classes => does not go with --images
analyze net --images pictures --only layer => unknown section 'layer'
analyze net --images pictures --definitions papers => unknown definition 'papers'
analyze net --images pictures --definitions => must name at least one
analyze net --images pictures --pictures 99 --device cpu --out a1 => there is no picture 99
analyze net --images pictures --token 99 --device cpu --out a2 => token must be a whole number from 0 to 16, got 99
analyze net --images pictures --against nowhere --device cpu --out a3
    => nowhere is not a run, a checkpoint or the name of a network
analyze net --images pictures --eps 0 => must be positive
analyze net --images pictures --out classes --device cpu => classes contains files that are not an analysis
analyze net --images pictures --out file.txt --device cpu => file.txt is a file; choose a folder
analyze vit --images pictures --only layers --device cpu
    => --only needs a network with CRATE layers, which vit does not have
audit net --data foldr => unknown dataset 'foldr'; did you mean 'folder'?
audit net --data folder --root nowhere => nowhere is not a folder: give the one with the pictures, --root FOLDER
audit vit --images pictures --device cpu
    => an audit needs layers that state their design, which VisionTransformer does not have
audit --eps nan => eps must be positive, got nan
audit --samples 0 => must be at least 1
audit --sample 5 => did you mean --samples?
audit run --recipe imagenet1k_base --device cpu => the network takes pictures of 1 channels, but these have 3
audit cut --images pictures => it is damaged, or holds no weights
audit code.pth --images pictures => holds code (posix.getcwd); only weights are read
audit --device cuda:x => device 'cuda:x' is not supported
explore --port 80000 => port must be between 1 and 65535, got 80000
explore --port 0 => port must be between 1 and 65535, got 0
explore --port http => --port: expected a whole number, got 'http'
explore --host nowhere.invalid --no-browser => cannot listen on nowhere.invalid, port 7860
explore net --images nothing --no-browser => there is no picture in nothing
explore net --images pictures --against vit --no-browser => vit has no CRATE layers
explore nowhere --no-browser => nowhere is not a run, a checkpoint or the name of a network

# describe and convert
describe => needs CHECKPOINT
describe nowhere.pth => nowhere.pth does not exist
describe nothing => nothing holds no config.json, so it is no checkpoint
describe pictures => pictures holds no config.json, so it is no checkpoint
describe file.txt => file.txt cannot be read as a checkpoint
describe text.pth => text.pth cannot be read as a checkpoint
describe empty.pth => it is damaged, or holds no weights (EOFError)
describe code.pth => holds code
describe cut => cut/model.safetensors cannot be read as a checkpoint
describe vit => names the architecture 'test_vit', which is not a CRATE
describe badjson => badjson/config.json is not JSON that can be read
describe net --num-heads 3 => net has 4 heads, not 3
describe net --num-heads four => expected a whole number
convert net => needs TARGET
convert net net => is what would be read
convert net run => run exists: give another name, or --force to overwrite it
convert net file.pth => file.pth exists: give another name, or --force to overwrite it
convert net out.zip => give a folder's name for our layout, or a file's
convert net new other => unexpected argument 'other'
convert nowhere new => nowhere does not exist
convert text.pth new => text.pth cannot be read as a checkpoint
convert vit new => names the architecture 'test_vit', which is not a CRATE
"""


def mistakes():
    for line in MISTAKES.replace("\n    =>", " =>").splitlines():
        if line and not line.startswith("#"):
            command, _, part = line.partition(" => ")
            yield pytest.param(shlex.split(command), part, id=command)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with what the commands name: a run, networks, pictures, and things that are neither."""
    folder = tmp_path_factory.mktemp("place")
    train(small_recipe(schedule={"epochs": 1, "warmup_epochs": 0}), small_options(folder / "run"))
    save_pretrained(small(), folder / "net")
    cut = shutil.copytree(folder / "net", folder / "cut") / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-100])
    (shutil.copytree(folder / "net", folder / "badjson") / "config.json").write_text("{")
    save_for_hf(timm.create_model("test_vit"), str(folder / "vit"), safe_serialization=True)
    torch.save({"state_dict": {}}, folder / "file.pth")
    (folder / "code.pth").write_bytes(pickle.dumps(os.getcwd))
    (folder / "text.pth").write_text("these are not weights\n" * 50)
    (folder / "empty.pth").write_bytes(b"")
    (folder / "file.txt").write_text("words: some\n")
    (folder / "binary.yaml").write_bytes(bytes(range(256)))
    recipe = (folder / "run" / "recipe.yaml").read_text()
    for name, text in {
        "empty": "",
        "list": "- name: x\n",
        "unclosed": "name: [x\n",
        "unknown": recipe + "epochs: 3\n",
        "type": recipe.replace("lr: 0.001", "lr: fast"),
        "negative": recipe.replace("lr: 0.001", "lr: -1"),
    }.items():
        (folder / f"{name}.yaml").write_text(text)
    draw = np.random.default_rng(0)
    names = [f"classes/{split}/{name}" for split in ("train", "validation") for name in "ab"]
    for name in ("pictures", *names, "one/train/a", "one/validation/a", "trainonly/train/a", "trainonly/train/b"):
        (folder / name).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(draw.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(folder / name / f"{i}.png")
    (folder / "nothing").mkdir()
    (folder / "words").mkdir()
    (folder / "words" / "notes.txt").write_text("no picture")
    for name in ("fake", "fake/train/a", "fake/train/b", "fake/validation/a", "fake/validation/b"):
        (folder / name).mkdir(exist_ok=True, parents=True)
        (folder / name / "0.png").write_text("no picture")
    return folder


@pytest.mark.parametrize(("arguments", "part"), list(mistakes()))
def test_a_mistake_is_one_sentence(place, monkeypatch, capsys, arguments, part):
    monkeypatch.chdir(place)
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    *progress, sentence = capsys.readouterr().err.splitlines()
    assert sentence.startswith("opencrate: ")
    assert part in sentence
    assert len(sentence) <= LONGEST
    notes = r" \(\d+ of \d+ \w+ done\)$|the network that comes with opencrate|: \d+ classes|^chosen: "
    assert all(re.search(notes, line) for line in progress)


def test_there_are_a_hundred_of_them_over_all_commands():
    commands = [parameters.values[0][0] for parameters in mistakes()]
    assert len(commands) >= 100
    assert set(COMMANDS) <= set(commands)
