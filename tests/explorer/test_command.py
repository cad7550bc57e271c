"""`opencrate explore` as a person runs it: a line that says where the page is, and Ctrl-C."""

import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from opencrate.cli import main

from .conftest import free_port

pytest.importorskip("uvicorn")

COMMAND = [sys.executable, "-u", "-m", "opencrate", "explore"]


def explored(arguments: list[str], folder: Path) -> tuple[str, str, int]:
    """What the command says until its page is there, the page, and the exit code after Ctrl-C."""
    with subprocess.Popen(
        [*COMMAND, *arguments, "--no-browser", "--port", str(free_port())],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            said = []
            for line in process.stdout:
                said.append(line)
                if "The explorer is at" in line:
                    break
            else:
                pytest.fail("".join(said))
            address = line.split(" at ")[1].split()[0]
            with urllib.request.urlopen(address) as answer:
                page = answer.read().decode()
            with socket.create_connection(("127.0.0.1", urlsplit(address).port), timeout=10) as visitor:
                visitor.sendall(b"not HTTP\r\n\r\n")
                assert visitor.recv(100).startswith(b"HTTP/1.1 400")
            process.send_signal(signal.SIGINT)
            assert process.stdout.read() == "opencrate: stopped\n"  # the server itself logs nothing
            return "".join(said), page, process.wait(20)
        finally:
            process.kill()  # or leaving it would wait, whatever went wrong


def test_a_checkpoint_without_pictures_gets_the_photos_of_the_package(checkpoint, tmp_path):
    said, page, code = explored([checkpoint], tmp_path)
    assert "so opencrate's photos are used; pass --images for others" in said
    assert "Inside a CRATE" in page
    assert code == 130
    assert list(tmp_path.iterdir()) == []  # it leaves nothing behind


def test_without_a_checkpoint_it_opens_the_network_of_the_package(tmp_path):
    said, page, _ = explored([], tmp_path)
    assert "this is the network that comes with opencrate: CRATE-Tiny for CIFAR-10" in said
    assert "Inside a CRATE" in page
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing_here"], "nothing_here is not a run, a checkpoint or the name of a network"),
        (["vit_tiny_patch16_224"], "vit_tiny_patch16_224 has no layers that can be explored"),
        (["crate_tiny_patch4_32", "--samples", "0"], "samples must be at least 1, got 0"),
        (["crate_tiny_patch4_32", "--images", "no/such/folder"], "no/such/folder is not a folder"),
        (
            ["crate_tiny_patch4_32", "--against", "crate_tiny_patch16_224"],
            "crate_tiny_patch16_224 takes other pictures",
        ),
        (["crate_tiny_patch4_32", "--against", "vit_tiny_patch16_224"], "vit_tiny_patch16_224 has no CRATE layers"),
    ],
)
def test_what_is_wrong_is_one_sentence(arguments, sentence, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["explore", *arguments, "--no-browser"])
    assert stopped.value.code == 2
    assert sentence in capsys.readouterr().err
