"""The one atomic writer: in which order it asks the system for what."""

import os
from pathlib import Path

import pytest

from opencrate.files import replacing, replacing_folder, write_json


@pytest.fixture
def calls(monkeypatch, tmp_path) -> list[str]:
    """What is asked of the system, in order; of a file with how much of it is there, because it must be all."""
    noted: list[str] = []
    fsync, replace, rename = os.fsync, Path.replace, Path.rename

    def path_of(descriptor: int) -> Path:
        return Path(f"/proc/self/fd/{descriptor}").readlink()

    def noted_fsync(descriptor: int) -> None:
        path = path_of(descriptor)
        noted.append(f"fsync {path.name}" + (f" {path.stat().st_size}" if path.is_file() else ""))
        fsync(descriptor)

    def noted_move(moved: Path, target: Path, move=replace) -> Path:
        noted.append(f"rename {target.name}")
        return move(moved, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_move)
    monkeypatch.setattr(Path, "rename", lambda moved, target: noted_move(moved, target, rename))
    return noted


def test_a_file_is_flushed_renamed_and_its_folder_flushed(calls, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for content in (b"abc", b"abcde"):  # a new file, and one that exists
        with replacing(folder / "file") as file:
            file.write(content)
        assert calls == [f"fsync .file.tmp {len(content)}", "rename file", "fsync folder"]
        assert (folder / "file").read_bytes() == content
        calls.clear()
    write_json(folder / "values.json", {"a": float("nan")}, indent=None)
    assert calls == ["fsync .values.json.tmp 12", "rename values.json", "fsync folder"]


def test_a_file_that_could_not_be_written_is_not_renamed(calls, tmp_path):
    (tmp_path / "file").write_text("before")
    with pytest.raises(TypeError), replacing(tmp_path / "file") as file:
        file.writelines([b"half", None])
    assert calls == []
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "before"


def test_a_folders_files_are_flushed_before_it_appears(calls, tmp_path):
    folder = tmp_path / "parent" / "folder"
    with replacing_folder(folder, last="b") as scratch:
        assert not folder.exists()
        for name in "abc":
            (scratch / name).write_text(2 * name)
    assert sorted(calls[:3]) == ["fsync a 2", "fsync b 2", "fsync c 2"]
    assert calls[3:] == ["rename folder", "fsync parent"]
    assert [path.name for path in folder.parent.iterdir()] == ["folder"]


def test_the_files_of_a_folder_that_exists_are_replaced_the_last_one_last(calls, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "kept").write_text("kept")
    with replacing_folder(folder, last="a") as scratch:
        for name in "abc":
            (scratch / name).write_text(3 * name)
    assert sorted(calls[:3]) == ["fsync a 3", "fsync b 3", "fsync c 3"]
    assert sorted(calls[3:5]) == ["rename b", "rename c"]
    assert calls[5:] == ["rename a", "fsync folder"]
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b", "c", "kept"]
