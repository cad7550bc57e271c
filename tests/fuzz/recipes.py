"""Recipes: what `opencrate train FILE` reads, up to the start of the run."""

from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

from opencrate.cli import main
from opencrate.recipes import RECIPES, Recipe, differences, named, read_recipe, recipe_text
from opencrate.run_recipe import data_of
from opencrate.training import Options

from .crafting import HUGE, contents, odd_files, written
from .harness import CANARY, Make, Target
from .mutations import ESCAPE, YAML_LINES

FILE = "recipe.yaml"


def _text(name: str = "cifar10_tiny") -> str:
    return recipe_text(named(name, RECIPES))


OLD = _text().replace("model:\n", "compile: true\ngraphs: null\nmodel:\n  attention: sdpa\n", 1)  # as version 0.1 wrote
SEEDS = {
    "CIFAR-10": written(lambda: {FILE: _text().encode()}),
    "digits": written(lambda: {FILE: _text("digits").encode()}),
    "of version 0.1": written(lambda: {FILE: OLD.encode()}),
    "short": written(lambda: {FILE: b"name: x\nmodel: {name: crate_tiny}\ndata: {root: data}\n"}),
}


def _read(path: Path) -> str:
    """As the command line does; the run itself begins with a comparison of recipes."""
    file, texts = str(path / FILE), []

    def train(recipe: Recipe, options: Options) -> Any:
        recipe_text(recipe)
        texts.extend(differences(named("digits", RECIPES), recipe))
        raise KeyboardInterrupt

    def refuse(sentence: str) -> None:
        texts.append(sentence)

    with mock.patch("opencrate.training.train", train), suppress(SystemExit):
        main(["train", file], refuse)
    read_recipe(file)
    data_of("", file)
    return "\n".join(texts)


def _values() -> dict[str, bytes]:
    """Each value at each of these fields, which have different types."""
    fields = ("lr", "betas", "compress_args", "root")
    values = {
        **{"nothing": "null", "yes": "yes", "not a number": ".nan", "infinite": ".inf", "minus infinity": "-.inf"},
        **{"below zero": "-1", "2⁶³": str(2**63), "1e999": "1.0e+999", "octal": "0o" + "7" * 40},
        **{"5,000 digits": HUGE, "4,000 digits": "9" * 4000},
        **{"a date": "2001-01-01", "base 60": "1:" + "59:" * 400 + "59", "a binary": '!!binary "AAAA"'},
        **{"a list": "[1, [2, [3]]]", "a mapping": "{a: {b: c}}", "a set": "!!set {a, b}", "a tuple": "[1.0, 2.0]"},
        **{"escape codes": '"' + "\\e]0;taken\\a\\e[31m" * 50 + '"', "a long text": "x" * 10**5, "empty": '""'},
        **{"a path": "../../etc/passwd", "an address": "http://127.0.0.1:9/x", "an unknown tag": "!thing x"},
    }
    lines = _text().splitlines()
    result = {}
    for field in fields:
        at = next(i for i, line in enumerate(lines) if line.strip().startswith(f"{field}:"))
        start = lines[at].partition(":")[0]
        part_of_list = f"{start.removesuffix(field)}-"
        end = next(i for i in range(at + 1, len(lines)) if not lines[i].startswith(part_of_list))
        for name, value in values.items():
            result[f"{field} is {name}"] = "\n".join([*lines[:at], f"{start}: {value}", *lines[end:]]).encode()
    return result


def _anchors(depth: int, width: int, form: str = "[{}]") -> bytes:
    """An anchor that holds `width` times the one before it: width^depth values."""
    lines = ["a0: &a0 x"]
    lines += [f"a{i}: &a{i} {form.format(', '.join([f'*a{i - 1}'] * width))}" for i in range(1, depth)]
    return "\n".join(lines).encode()


TAGS = {
    "a call of os.system": "!!python/object/apply:os.system ['true']",
    "a call of the canary": f"!!python/object/apply:tests.fuzz.harness.{CANARY} []",
    "a new object": f"!!python/object/new:tests.fuzz.harness.{CANARY} []",
    "an object": "!!python/object:argparse.Namespace {a: 1}",
    "a function's name": f"!!python/name:tests.fuzz.harness.{CANARY}",
    "a module": "!!python/module:antigravity",
    "a tuple": "!!python/tuple [1, 2]",
    "a complex number": "!!python/complex 1+2j",
    "Java's": "!!javax.script.ScriptEngineManager [!!java.net.URL ['http://127.0.0.1:9']]",
    "Ruby's": "!ruby/object:Gem::Installer {i: x}",
    "a truth that is none": "!!bool maybe",
    "a number that is none": "!!int x",
    "a fraction that is none": "!!float x",
    "a date that is none": "!!timestamp x",
    "a mapping that is none": "!!map [1]",
    "an order that is none": "!!omap {a: 1}",
    "pairs that are none": "!!pairs [1]",
    "base 64 that is none": "!!binary '%%%'",
    "a tag of escapes": "!<%1b%5b31m> x",
    "a tag of no end": "!<" + "x" * 10**5,
}
TEXTS = {
    "empty": b"",
    "a comment": b"# nothing",
    "a list": b"- a\n- b",
    "a text": b"cifar10_tiny",
    "a number": b"7",
    "two documents": b"name: a\n---\nname: b",
    "a directive of the future": b"%YAML 9.9\n---\nname: a",
    "an unknown directive": b"%NOTHING x\n---\nname: a",
    "no end": b'name: "x',
    "a tab": b"name:\n\t- x",
    "NUL": bytes(100),
    "escape codes as they are": f"name: {ESCAPE}".encode(),
    "escape codes as a key": b'"\\e]0;taken\\a\\e[31m": 1\nname: x',
    "a key of 10\u2075 characters": b"? " + b"k" * 10**5 + b"\n: 1\n",
    "a thousand keys": b"\n".join(b"key%d: 1" % i for i in range(1000)),
    "keys that are numbers": b"1: 2\n.nan: 3\nnull: 4\nname: x",
    "keys that are lists": b"? [a, b]\n: 1",
    "keys that are mappings": b"? {a: b}\n: 1",
    "a section that is a list": b"name: x\nmodel: [1]\ndata: [2]",
    "a section that is nothing": b"name: x\nmodel:\ndata:",
    "a section twice": OLD.encode() + b"\nmodel: {name: crate_base}\n",
    "options that are lists": b"name: x\ncompile: [on]\ngraphs: {a: 1}\nmodel: {name: a, attention: [1]}",
    "options of escape codes": b'name: x\nmodel: {name: a}\ndata: {}\ncompile: "\\e[31m"',
    "UTF-16": "name: x".encode("utf-16"),
    "UTF-32": "name: x".encode("utf-32"),
    "not UTF-8": b"name: \xff\xfe\xc0\x80",
    "other ends of lines": "name: x\u2028model: y\x85data: z".encode(),
    "an anchor that holds itself": b"name: &a [*a]",
    "a mapping that holds itself": b"name: &a {b: *a}",
    "an anchor that is not there": b"name: *a",
    "an anchor twice": b"name: &a x\nmodel: &a {name: y}\ndata: *a",
    "ten to the ninth values by anchors": _anchors(10, 10),
    "two to the hundredth by anchors": _anchors(100, 2),
    "merged anchors": _anchors(30, 2, "{{<<: [{}]}}").replace(b"&a0 x", b"&a0 {k: v}"),
    "a merge with a list": b"name: x\n<<: [1, 2]",
    "a merge with itself": b"model: &a\n  <<: *a\nname: x",
    "10,000 lists deep": b"name: " + b"[" * 10**4,
    "10,000 closed lists deep": b"name: " + b"[" * 10**4 + b"]" * 10**4,
    "10,000 mappings deep": b"name: " + b"{a: " * 10**4 + b"}" * 10**4,
    "1,000 steps deep": b"\n".join(b" " * i + b"a:" for i in range(1000)),
    "10,000 dashes deep": b"- " * 10**4 + b"x",
    "10,000 questions deep": b"? " * 10**4 + b"x",
    "a mebibyte and more": b"name: x\n" + b"#" * (1 << 20),
    "a mebibyte of a text": b"name: " + b"x" * ((1 << 20) - 100),
    "a mebibyte of dashes": b"- a\n" * (1 << 18),
    "a mebibyte of colons": b":" * (1 << 20),
    "a mebibyte of quotes": b"'" * (1 << 20),
    "a mebibyte of brackets": b"[" * (1 << 20),
}


def _with_tags() -> dict[str, bytes]:
    return {f"a tag: {name}": f"name: {tag}\n".encode() + _text().encode() for name, tag in TAGS.items()}


def _with_lines() -> dict[str, bytes]:
    return {f"a line: {line[:30]!r}": f"{_text()}{line}\n".encode() for line in YAML_LINES}


MAKE: Make = SEEDS["CIFAR-10"]
TARGETS = (
    Target(
        "recipe",
        _read,
        SEEDS,
        {
            **contents(MAKE, FILE, {**TEXTS, **_with_tags(), **_with_lines(), **_values()}),
            **odd_files(MAKE, FILE),
        },
    ),
)
