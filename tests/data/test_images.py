"""The real image sets against published figures, and every way in which a copy can be wrong."""

import gzip
import os
import pickle
import resource
import shutil
import subprocess
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pacdp.data import formats, load_dataset
from pacdp.data.images import CIFAR10, CIFAR100, MNIST, Pixels
from pacdp.data.storage import replace_folder
from pacdp.errors import DataError, InputError


def shares(labels, classes):
    return np.bincount(labels, minlength=classes)


def means(images):
    return images.mean((0, 2, 3), dtype=np.float64) / 255


def test_mnist_is_the_published_one(mnist):
    assert mnist.train.features.shape == (60_000, 1, 28, 28)
    assert mnist.test.features.shape == (10_000, 1, 28, 28)
    assert mnist.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert mnist.test.labels[:5].tolist() == [7, 2, 1, 0, 4]
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert shares(mnist.train.labels, 10).tolist() == counts
    assert means(mnist.train.features) == pytest.approx([0.1307], abs=5e-5)


def test_cifar10_is_the_published_one(cifar10):
    assert cifar10.train.features.shape == (50_000, 3, 32, 32)
    assert cifar10.test.features.shape == (10_000, 3, 32, 32)
    assert cifar10.train.labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert cifar10.test.labels[:5].tolist() == [3, 8, 8, 0, 6]
    assert shares(cifar10.train.labels, 10).tolist() == [5000] * 10
    assert means(cifar10.train.features) == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)


def test_cifar100_is_the_published_one(cifar100):
    assert cifar100.train.features.shape == (50_000, 3, 32, 32)
    assert shares(cifar100.train.labels, 100).tolist() == [500] * 100
    assert shares(cifar100.test.labels, 100).tolist() == [100] * 100
    assert means(cifar100.train.features) == pytest.approx([0.5071, 0.4865, 0.4409], abs=5e-5)
    assert (cifar100.task.class_names[0], cifar100.task.class_names[-1]) == ("apple", "worm")


def test_memory_of_loading_is_at_most_twice_the_arrays(mnist):
    script = (
        "from pacdp.data import load_dataset\n"
        "import numpy\n"
        "def used():\n"
        "    return int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]) * 1024\n"
        "load_dataset('digits')\n"  # what importing takes
        "before = used()\n"
        "data = load_dataset('mnist')\n"
        "arrays = sum(r.features.nbytes + r.labels.nbytes for r in (data.train, data.test))\n"
        "print((used() - before) / arrays)\n"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert float(found.stdout) <= 2, found.stderr


def tiny(seed=0):
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (6, 1, 28, 28), np.uint8)
    return Pixels(images, np.arange(6, dtype=np.uint8)[:, None], images[:2], images[:2, 0, 0, :1])


@pytest.fixture
def folder(tmp_path):
    """A folder in MNIST's form: every file is well made, and none is MNIST."""
    MNIST.write(tmp_path, tiny())
    return tmp_path


def test_idx_files_read_back_as_written(folder):
    found = MNIST.layouts[0].read([folder / names[0] for names in MNIST.layouts[0].names])
    assert all(np.array_equal(a, b) for a, b in zip(found, tiny(), strict=True))


def test_wrong_content_is_refused_by_its_checksum(folder):
    with pytest.raises(DataError, match="is not mnist, its checksum differs from the published"):
        MNIST.read(folder)


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
@pytest.mark.parametrize("damage", ["cut", "longer", "empty", "not idx", "cut gzip", "gone"])
def test_damaged_idx_files_are_refused_by_name(folder, name, damage):
    path = folder / name
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "cut gzip":
        path.unlink()
        (folder / f"{name}.gz").write_bytes(gzip.compress(content)[:-9])
    else:
        changed = {
            "cut": content[:-1],
            "longer": content + b"0",
            "empty": b"",
            "not idx": b"<html>" + content,
        }
        path.write_bytes(changed[damage])
    with pytest.raises(DataError, match=name):
        MNIST.read(folder)


def archive(folder, kind, tmp_path):
    path = tmp_path / f"set.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
            for file in folder.iterdir():
                out.write(file, f"deep/down/{file.name}")
    else:
        with tarfile.open(path, "w:gz") as out:
            out.add(folder, "package")
    return path


@pytest.mark.parametrize("kind", ["zip", "tgz"])
def test_archives_are_read_and_their_damage_is_named(folder, kind, tmp_path_factory):
    path = archive(folder, kind, tmp_path_factory.mktemp("archive"))
    with pytest.raises(DataError, match="checksum differs"):
        MNIST.read(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=path.name):
        MNIST.read(path)


def test_an_archive_writes_nowhere_but_into_its_scratch_folder(folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    path = outside / "evil.tgz"
    with tarfile.open(path, "w:gz") as out:
        for file in folder.iterdir():
            out.add(file, f"../../../../../../{outside}/{file.name}")
        link = tarfile.TarInfo("train-images-idx3-ubyte")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        out.addfile(link)
    with pytest.raises(DataError):
        MNIST.read(path)
    assert [file.name for file in outside.iterdir()] == ["evil.tgz"]


def test_neither_folder_nor_archive(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        MNIST.read(tmp_path / "nowhere")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(DataError, match="neither a folder"):
        MNIST.read(tmp_path / "text")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has none of them"):
        MNIST.read(tmp_path / "empty")


def test_cifar_binary_files_of_another_size_or_content(tmp_path):
    for (name,) in CIFAR10.layouts[0].names:
        with (tmp_path / name).open("wb") as out:
            out.truncate(30_730_000)
    with pytest.raises(DataError, match="is not cifar10"):
        CIFAR10.read(tmp_path)
    (tmp_path / "data_batch_3.bin").write_bytes(b"short")
    with pytest.raises(DataError, match=r"data_batch_3.bin: has 5 bytes, must have 30730000"):
        CIFAR10.read(tmp_path)


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil-was-run",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(Evil()), "asks for code to be run"),
        (b"nothing of the kind", "is damaged"),
        (pickle.dumps({b"data": np.zeros((3, 3072), np.uint8), b"labels": [1, 2, 3]}), "images"),
        (pickle.dumps({b"labels": [1]}), "is damaged"),
    ],
)
def test_pickles_are_read_without_being_run(tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "batch").write_bytes(content)
    with pytest.raises(DataError, match=f"batch: {message}"):
        formats.read_cifar_pickle(tmp_path / "batch", records=4, label_keys=["labels"])
    assert not Path("evil-was-run").exists()


def test_pickles_and_binaries_hold_the_same(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 32, 32), np.uint8)
    labels = np.array([[1, 9], [0, 8], [19, 7], [3, 99]], np.uint8)
    formats.write_cifar_binary(tmp_path / "a.bin", images, labels)
    keys = {b"coarse_labels": labels[:, 0].tolist(), b"fine_labels": labels[:, 1].tolist()}
    (tmp_path / "a").write_bytes(pickle.dumps({b"data": images.reshape(4, -1)} | keys, protocol=2))
    binary = formats.read_cifar_binary([tmp_path / "a.bin"], records=4, label_bytes=2)
    names = ["coarse_labels", "fine_labels"]
    plain = formats.read_cifar_pickle(tmp_path / "a", records=4, label_keys=names)
    for values, others in zip(binary, plain, strict=True):
        assert np.array_equal(values, others)
    assert np.array_equal(binary[0], images)
    assert np.array_equal(binary[1], labels)


def test_pictures_and_labels_that_are_not_what_they_should_be(tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n but no more")
    with pytest.raises(DataError, match=r"a.png: is damaged"):
        formats.read_image_rows(tmp_path / "a.png", records=10)
    (tmp_path / "a.json").write_text("[1, 2")
    with pytest.raises(DataError, match=r"a.json: is damaged"):
        formats.read_json_labels(tmp_path / "a.json", records=2)
    (tmp_path / "a.json").write_text("[1, 256]")
    with pytest.raises(DataError, match=r"a.json: holds labels outside"):
        formats.read_json_labels(tmp_path / "a.json", records=2)


def test_image_rows_are_read_as_images(tmp_path):
    from PIL import Image

    images = np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32), np.uint8)
    rows = images.transpose(0, 2, 3, 1).reshape(5, 1024, 3)
    Image.fromarray(rows).save(tmp_path / "a.png")
    assert np.array_equal(formats.read_image_rows(tmp_path / "a.png", records=5), images)


def test_nothing_half_written_takes_the_place_of_what_was_there(tmp_path):
    target = tmp_path / "set"
    target.mkdir()
    (target / "old").write_text("old")

    def fail():
        with replace_folder(target) as made:
            (made / "new").write_text("new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".set.lock", "old", "set"]
    with replace_folder(target) as made:
        (made / "new").write_text("new")
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".set.lock", "new", "set"]


def test_what_a_killed_process_left_is_repaired(tmp_path):
    """Killed between the two renames: the old set is put back, and the rest removed."""
    (tmp_path / ".set-old").mkdir()
    (tmp_path / ".set-old" / "old").write_text("old")
    (tmp_path / ".set-new").mkdir()
    with pytest.raises(RuntimeError), replace_folder(tmp_path / "set"):
        raise RuntimeError
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".set.lock", "old", "set"]


def test_two_who_write_at_once_take_turns(tmp_path):
    def write(number):
        for _ in range(20):
            with replace_folder(tmp_path / "set") as made:
                (made / "a").write_text(str(number))
                (made / "b").write_text(str(number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert (tmp_path / "set" / "a").read_text() == (tmp_path / "set" / "b").read_text()


def test_files_that_are_not_its_own_are_not_lost(folder, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    (home / "mnist").mkdir()
    (home / "mnist" / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match=r"notes.txt is none of its files"):
        MNIST.store(tiny(), home)
    assert (home / "mnist" / "notes.txt").read_text() == "mine"


def test_a_full_disk_leaves_nothing_behind(folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("full")
    script = (
        "import sys, signal\nfrom pathlib import Path\n"
        "from pacdp.data.images import MNIST\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "paths = [Path(sys.argv[1]) / names[0] for names in MNIST.layouts[0].names]\n"
        "MNIST.store(MNIST.layouts[0].read(paths), Path(sys.argv[2]))\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", script, str(folder), str(place)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    assert "File too large" in found.stderr
    assert [path.name for path in place.iterdir()] == [".mnist.lock"]


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(InputError, match="did you mean mnist"):
        load_dataset("minst")
    with pytest.raises(InputError, match="there are heart, heart-full, mnist"):
        load_dataset("xyz")
    with pytest.raises(InputError, match="heart: has no option sead; there are split"):
        load_dataset("heart", sead=1)


def test_what_is_not_here_says_how_to_get_it(tmp_path):
    with pytest.raises(DataError, match=r"cifar10: is not in .*pacdp data get cifar10"):
        load_dataset("cifar10", folder=tmp_path)


def test_other_programs_folders_are_found(folder, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    shutil.copytree(folder, home / "MNIST" / "raw")
    assert MNIST.locate(home) == home / "MNIST" / "raw"
    assert CIFAR100.locate(home) is None
