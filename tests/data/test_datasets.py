"""Data sets: digits, torchvision's real file formats, image folders, the synthetic family, the cache."""

import gzip
import hashlib
import io
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from damaged_files import DAMAGES, flipped
from PIL import Image
from pydantic import TypeAdapter

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.registries import DataConfig
from hedgerow.platform.data.content_hash import content_hash
from hedgerow.platform.data.sources.cache import _read, load_dataset

RNG = np.random.default_rng(0)


def source(name: str, **options):
    return TypeAdapter(DataConfig).validate_python({"name": name, **options})


def idx(array: np.ndarray) -> bytes:
    """An array in MNIST's file format."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return header + array.astype(np.uint8).tobytes()


def test_digits_are_the_embedded_default():
    data = load_dataset(source("digits"))
    assert data.x_train.shape == (1438, 1, 8, 8)
    assert data.x_test.shape == (359, 1, 8, 8)
    assert data.x_train.dtype == np.uint8
    assert (data.x_train.max(), data.std.item()) == (16, 16)
    # Stratified: each class is tested in the same share.
    shares = np.bincount(data.y_test) / (np.bincount(data.y_test) + np.bincount(data.y_train))
    assert np.abs(shares - 0.2).max() < 0.01


def test_digits_come_from_the_cache_without_scikit_learn():
    load_dataset(source("digits"))
    code = (
        "import sys; from hedgerow.platform.data.sources.cache import load_dataset; "
        "from hedgerow.platform.config.registries import datasets; load_dataset(datasets.section('digits')()); "
        "print('sklearn' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("packed", [False, True], ids=["raw", "gz"])
@pytest.mark.parametrize("nested", [False, True], ids=["root", "named folder"])
@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_mnist_files(tmp_path, name, folder, nested, packed):
    raw = (tmp_path / name if nested else tmp_path) / folder / "raw"
    raw.mkdir(parents=True)
    arrays = {
        "train-images-idx3-ubyte": RNG.integers(0, 256, (12, 28, 28)),
        "train-labels-idx1-ubyte": np.arange(12) % 10,
        "t10k-images-idx3-ubyte": RNG.integers(0, 256, (4, 28, 28)),
        "t10k-labels-idx1-ubyte": np.arange(4),
    }
    for file, array in arrays.items():
        if packed:
            (raw / f"{file}.gz").write_bytes(gzip.compress(idx(array)))
        else:
            (raw / file).write_bytes(idx(array))
    data = load_dataset(source(name), tmp_path)
    assert (data.x_train[:, 0] == arrays["train-images-idx3-ubyte"]).all()
    assert data.y_test.tolist() == [0, 1, 2, 3]
    assert data.classes == 10


@pytest.fixture
def mnist(tmp_path):
    """Folder of MNIST's files: training images and labels packed, test images and labels as they are."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, n in (("train", 12), ("t10k", 4)):
        for ending, array in (("images-idx3", RNG.integers(0, 256, (n, 28, 28))), ("labels-idx1", np.arange(n) % 10)):
            content = idx(array)
            if part == "train":
                (raw / f"{part}-{ending}-ubyte.gz").write_bytes(gzip.compress(content))
            else:
                (raw / f"{part}-{ending}-ubyte").write_bytes(content)
    (raw / "train-images-idx3-ubyte").write_bytes(gzip.decompress((raw / "train-images-idx3-ubyte.gz").read_bytes()))
    (raw / "train-images-idx3-ubyte.gz").unlink()
    return raw


def refusal(name, root, **options):
    with pytest.raises(UserError) as caught:
        load_dataset(source(name, **options), root)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_of_mnist_are_refused_in_one_sentence(tmp_path, mnist, damage):
    assert len(load_dataset(source("mnist"), tmp_path).x_train) == 12
    for file in sorted(mnist.iterdir()):
        sound = file.read_bytes()
        DAMAGES[damage](file)
        message = refusal("mnist", tmp_path)
        assert message.startswith("task.data: mnist ")
        shutil.rmtree(file, ignore_errors=True)
        file.write_bytes(sound)
    assert len(load_dataset(source("mnist"), tmp_path).x_train) == 12


def test_files_of_mnist_are_what_their_headers_say(tmp_path, mnist):
    labels, images = mnist / "train-labels-idx1-ubyte.gz", mnist / "train-images-idx3-ubyte"
    for content, reason in (
        (idx(np.arange(11) % 10), "train has images of shape (12, 28, 28) and labels of shape (11,)"),
        (idx(np.full(12, 10)), "train has a label that is none of the 10 classes"),
        (idx(np.arange(12))[:-1], "labels-idx1-ubyte.gz does not have the 12 bytes that its header announces"),
        (idx(np.arange(12)) + b"0", "does not have the 12 bytes that its header announces"),
        (b"\0\0\x0d\1" + idx(np.arange(12))[4:], "has no header of such a file"),
    ):
        labels.write_bytes(gzip.compress(content))
        assert reason in refusal("mnist", tmp_path)
    labels.write_bytes(gzip.compress(idx(np.arange(12) % 10)))
    images.unlink()
    head = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (10**6, 28, 28))
    images.with_suffix(".gz").write_bytes(gzip.compress(head + bytes(10**5)))
    message = refusal("mnist", tmp_path)
    assert "train-images-idx3-ubyte.gz has 0.000" in message
    assert "MB and would become 784 MB; restore it" in message


def test_the_pickles_of_earlier_versions_of_torchvision_are_not_read(tmp_path, mnist):
    """They are in MNIST/processed, and torchvision prefers them."""
    ran = tmp_path / "ran"

    class Opened:
        def __reduce__(self):
            return os.mkdir, (str(ran),)

    before = load_dataset(source("mnist"), tmp_path)
    old = mnist.parent / "processed"
    old.mkdir()
    for name in ("training.pt", "test.pt"):
        (old / name).write_bytes(pickle.dumps(Opened()))
    (mnist / "t10k-labels-idx1-ubyte").touch()
    assert content_hash(load_dataset(source("mnist"), tmp_path)) == content_hash(before)
    (mnist / "t10k-labels-idx1-ubyte").unlink()
    assert "there is no t10k-labels-idx1-ubyte" in refusal("mnist", tmp_path)
    message = refusal("mnist", tmp_path, download=True)
    assert f"torchvision would read its old copies in {old} and download nothing; remove them" in message
    assert not ran.exists()


def test_emnist_letters_are_upright_and_cut_to_the_first_ten(tmp_path):
    raw = tmp_path / "EMNIST" / "raw"
    raw.mkdir(parents=True)
    images = RNG.integers(0, 256, (26, 28, 28))
    for part in ("train", "test"):
        (raw / f"emnist-letters-{part}-images-idx3-ubyte").write_bytes(idx(images))
        (raw / f"emnist-letters-{part}-labels-idx1-ubyte").write_bytes(idx(np.arange(1, 27)))
    data = load_dataset(source("emnist_letters"), tmp_path)
    assert data.y_train.tolist() == list(range(10))
    assert data.class_names == tuple("ABCDEFGHIJ")
    assert (data.x_train[3, 0] == images[3].T).all()
    assert load_dataset(source("emnist_letters", classes=26), tmp_path).classes == 26


def test_cifar10_batches(tmp_path, monkeypatch):
    from torchvision.datasets import CIFAR10

    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    pixels = RNG.integers(0, 256, (6, 3072), dtype=np.uint8)

    def write(name: str, content: dict) -> tuple[str, str]:
        (folder / name).write_bytes(pickle.dumps(content))
        return name, hashlib.md5((folder / name).read_bytes()).hexdigest()

    names = [write(f"data_batch_{i}", {"data": pixels, "labels": [0, 1, 2, 3, 4, i]}) for i in range(1, 3)]
    test = write("test_batch", {"data": pixels[:2], "labels": [8, 9]})
    meta = write("batches.meta", {"label_names": [f"class {i}" for i in range(10)]})
    # torchvision unpickles nothing whose checksum it does not know: the test gives it those of these small files.
    monkeypatch.setattr(CIFAR10, "train_list", [list(n) for n in names])
    monkeypatch.setattr(CIFAR10, "test_list", [list(test)])
    monkeypatch.setattr(CIFAR10, "meta", {"filename": meta[0], "key": "label_names", "md5": meta[1]})
    data = load_dataset(source("cifar10"), tmp_path)
    assert data.x_train.shape == (12, 3, 32, 32)
    assert (data.x_train[:6].reshape(6, -1) == pixels).all()
    assert data.y_test.tolist() == [8, 9]
    assert data.class_names[3] == "class 3"


def picture(value: int, size: int = 6, ending: str = "png") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((size, size, 3), [value, 0, 9], np.uint8)).save(buffer, format=ending)
    return buffer.getvalue()


@pytest.mark.parametrize("zipped", [False, True], ids=["folder", "zip"])
def test_a_fifth_of_each_class_is_for_testing(tmp_path, zipped):
    files = {}
    for label, value in (("cat", 10), ("dog", 200)):
        for i in range(10):
            files[f"{label}/{i:02d}.png"] = picture(value + i)
    if zipped:
        with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    else:
        for name, content in files.items():
            path = tmp_path / "images" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    data = load_dataset(source("image_folder", path="images.zip" if zipped else "images"), tmp_path)
    assert data.class_names == ("cat", "dog")
    assert data.x_train.shape == (16, 3, 6, 6)
    assert data.x_test.shape == (4, 3, 6, 6)
    assert ((data.x_train[:, 0, 0, 0] >= 200) == (data.y_train == 1)).all()


def test_images_of_different_sizes_are_resized_or_refused(tmp_path):
    for label, size in (("a", 6), ("b", 9)):
        (tmp_path / "x" / label).mkdir(parents=True)
        for i in range(5):
            (tmp_path / "x" / label / f"{i}.png").write_bytes(picture(i, size))
    with pytest.raises(UserError, match="different sizes; set one size"):
        load_dataset(source("image_folder", path="x"), tmp_path)
    assert load_dataset(source("image_folder", path="x", size=4), tmp_path).sample_shape == (3, 4, 4)


def test_damaged_images_are_named(tmp_path):
    (tmp_path / "x" / "a").mkdir(parents=True)
    (tmp_path / "x" / "a" / "1.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"a/1\.png is not a readable image"):
        load_dataset(source("image_folder", path="x"), tmp_path)
    (tmp_path / "y.zip").write_bytes(b"no zip")
    with pytest.raises(UserError, match="neither a folder nor a complete zip"):
        load_dataset(source("image_folder", path="y.zip"), tmp_path)


def test_a_missing_data_set_says_what_is_expected_where(tmp_path):
    with pytest.raises(UserError, match=r"MNIST/raw/train-images-idx3-ubyte; set the right folder with --data-root"):
        load_dataset(source("mnist"), tmp_path)


def test_a_changed_file_is_converted_again_and_a_damaged_cache_rebuilt(tmp_path, monkeypatch):
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path / "cache"))
    for label in ("a", "b"):
        (tmp_path / "x" / label).mkdir(parents=True)
        for i in range(5):
            (tmp_path / "x" / label / f"{i}.png").write_bytes(picture(7))
    assert load_dataset(source("image_folder", path="x"), tmp_path).x_train.max() == 9
    for file in (tmp_path / "cache" / "data").glob("*/x_train.npy"):
        file.write_bytes(file.read_bytes()[:40])
    assert len(load_dataset(source("image_folder", path="x"), tmp_path).x_train) == 8
    (tmp_path / "x" / "a" / "new.png").write_bytes(picture(250))
    assert load_dataset(source("image_folder", path="x"), tmp_path).x_train.max() == 250


@pytest.fixture
def entry(tmp_path, monkeypatch):
    """Folder of a converted data set, whose source is gone."""
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path / "cache"))
    load_dataset(source("synthetic", clients=3, samples=20, features=5))
    (folder,) = (tmp_path / "cache" / "data").iterdir()
    return folder


def synthetic():
    return load_dataset(source("synthetic", clients=3, samples=20, features=5))


def test_one_flipped_bit_of_the_cache_is_never_served(entry):
    sound, names = content_hash(synthetic()), synthetic().class_names
    contents = {file: file.read_bytes() for file in entry.iterdir()}
    assert len(contents) > 5
    for file, content in contents.items():
        for bit in RNG.choice(8 * len(content), 20, replace=False):
            file.write_bytes(flipped(content, int(bit)))
            with pytest.raises((OSError, ValueError)):
                _read(entry)
        assert content_hash(synthetic()) == sound
        # The entry has been written again.
        assert (content_hash(_read(entry)), _read(entry).class_names) == (sound, names)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_written_again(entry, damage, capsys):
    sound = content_hash(synthetic())
    for name in [file.name for file in entry.iterdir()]:
        DAMAGES[damage](entry / name)
        assert content_hash(synthetic()) == sound
        assert content_hash(_read(entry)) == sound
    assert [folder.name for folder in entry.parent.iterdir()] == [entry.name]
    # Also of folders.
    for folder in (entry, entry.parent):
        shutil.rmtree(folder)
        folder.write_text("a file")
        assert content_hash(synthetic()) == sound
    assert capsys.readouterr().err.count("the converted data cannot be stored") == 1


def test_data_are_loaded_where_the_cache_has_no_room(tmp_path):
    code = (
        "import resource; from hedgerow.platform.data.sources.cache import load_dataset; "
        "from hedgerow.platform.config.registries import datasets; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000)); data = load_dataset(datasets.section('digits')()); "
        "print(data.x_train.shape)"
    )
    env = os.environ | {"HEDGEROW_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == "(1438, 1, 8, 8)"
    assert f"the converted data cannot be stored in {tmp_path / 'cache' / 'data'} (" in done.stderr
    assert "and are converted by each command; set HEDGEROW_CACHE to a folder with room" in done.stderr
    assert not list((tmp_path / "cache" / "data").iterdir())


def test_homogeneous_synthetic_data_follow_one_linear_model():
    from scipy.optimize import linprog

    data = load_dataset(source("synthetic", clients=3, samples=150, features=6, classes=3))
    assert np.bincount(data.train_clients).tolist() == [150, 150, 150]
    assert np.abs(data.x_train.mean(0)).max() < 0.25
    assert np.abs(data.x_train.var(0) - np.arange(1, 7) ** -1.2).max() < 0.25
    # One (theta, b) separates everybody's labels: a linear programme finds it.
    x = np.c_[data.x_train, np.ones(450)].astype(float)
    rows = []
    for sample, label in zip(x, data.y_train, strict=True):
        for other in set(range(3)) - {int(label)}:
            row = np.zeros((3, 7))
            row[label], row[other] = -sample, sample
            rows.append(row.ravel())
    solved = linprog(np.zeros(21), A_ub=np.array(rows), b_ub=-1e-3 * np.ones(len(rows)), bounds=(-1e6, 1e6))
    assert solved.status == 0


def test_the_synthetic_types_differ_in_what_they_say():
    def of(**gammas):
        return load_dataset(source("synthetic", clients=60, **gammas))

    def means(data):
        return np.stack([data.x_train[data.train_clients == k].mean(0) for k in range(60)])

    plain, features, counts = of(), of(gamma2=1.0), of(gamma3=1.0)
    assert means(plain).std() < 0.1
    # The means of a client's features: N(beta_i, 1) around beta_i ~ N(0, 1).
    assert means(features).mean(1).std() == pytest.approx(1, abs=0.3)
    assert means(features).std(1).mean() == pytest.approx(1, abs=0.2)
    sizes = np.bincount(counts.train_clients)
    assert np.log(sizes).std() == pytest.approx(1, abs=0.25)
    assert sizes.mean() == pytest.approx(200, rel=0.5)
    # Type 1: the same features, but labels by another model for each client.
    models = of(gamma1=1.0)
    assert (np.bincount(models.train_clients) == 200).all()
    assert means(models).std() < 0.1


@pytest.mark.skipif("HEDGEROW_DATA_ROOT" not in os.environ, reason="HEDGEROW_DATA_ROOT names no real data")
def test_real_mnist_when_it_is_there():
    root = Path(os.environ["HEDGEROW_DATA_ROOT"])
    try:
        data = load_dataset(source("mnist"), root)
    except UserError as absent:
        pytest.skip(str(absent))
    assert data.x_train.shape == (60000, 1, 28, 28)
    assert np.bincount(data.y_train).tolist()[:3] == [5923, 6742, 5958]
    assert np.isclose(data.x_train.mean() / 255, 0.1307, atol=1e-4)


# ---- Omniglot -----------------------------------------------------------------------------------------------------


def omniglot(root: Path) -> None:
    """Two zips as its authors give them: black drawings on white; one alphabet is in both."""
    folder = root / "omniglot-py"
    folder.mkdir()
    for number, alphabets in ((1, ("Greek", "Latin")), (2, ("Latin", "Sanskrit"))):
        with zipfile.ZipFile(folder / f"images_background_small{number}.zip", "w") as archive:
            for alphabet in alphabets:
                for character in (1, 2):
                    for drawing in range(1, 5):
                        pixels = np.full((105, 105), 255, np.uint8)
                        pixels[: 20 * character] = 0
                        buffer = io.BytesIO()
                        Image.fromarray(pixels).convert("1").save(buffer, "PNG")
                        name = f"{alphabet}/character{character:02d}/{character:04d}_{drawing:02d}.png"
                        archive.writestr(f"images_background_small{number}/{name}", buffer.getvalue())


def test_omniglot_counts_every_drawing_once_and_is_white_on_black(tmp_path):
    omniglot(tmp_path)
    data = load_dataset(source("omniglot", test_fraction=0.25), tmp_path)
    assert data.class_names == tuple(f"{a}/character0{c}" for a in ("Greek", "Latin", "Sanskrit") for c in (1, 2))
    assert data.x_train.shape == (18, 1, 28, 28)
    assert np.bincount(data.y_train).tolist() == [3] * 6
    assert np.bincount(data.y_test).tolist() == [1] * 6
    for x, y in zip(data.x_train, data.y_train, strict=True):
        drawn = 20 * (y % 2 + 1) / 105
        assert x.mean() / 255 == pytest.approx(drawn, abs=0.02)
        assert x[0, 0].min() == 255
        assert x[0, -1].max() == 0


def test_omniglot_that_is_unpacked_is_read_anew_when_a_drawing_is_overwritten(tmp_path):
    omniglot(tmp_path)
    folder = tmp_path / "omniglot-py"
    for archive in folder.glob("*.zip"):
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
        archive.unlink()
    before = load_dataset(source("omniglot"), tmp_path)
    for file in folder.rglob("*.png"):
        Image.new("1", (105, 105)).save(file)
    after = load_dataset(source("omniglot"), tmp_path)
    assert before.x_train.min() == 0
    assert after.x_train.min() == 255


def test_where_omniglot_is_absent_it_is_said_what_to_put_where(tmp_path):
    with pytest.raises(UserError, match=r"there is no images_background\*.zip in .*; put Omniglot's zips there"):
        load_dataset(source("omniglot"), tmp_path)
