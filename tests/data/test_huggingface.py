"""Data sets of the package `datasets`: folders of save_to_disk and Parquet files, with columns of several kinds."""

import io
import sys

import numpy as np
import pytest
from damaged_files import png
from own_formats import CLIENTS, IMAGES, RNG, X, Y, accuracy, loaded, refusal
from PIL import Image

datasets = pytest.importorskip("datasets")

LENGTHS = RNG.integers(3, 6, 60)
TOKENS = [RNG.integers(1, 500, length).tolist() for length in LENGTHS]


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def rows(count):
    features = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=["low", "middle", "high"]),
        "writer": datasets.Value("string"),
        "vector": datasets.Sequence(datasets.Value("float32")),
        "tokens": datasets.Sequence(datasets.Value("int64")),
        "text": datasets.Value("string"),
        "age": datasets.Value("float64"),
        "height": datasets.Value("int32"),
    }
    columns = {
        "image": [Image.fromarray(image) for image in IMAGES[:count]],
        "label": Y[:count],
        "writer": CLIENTS[:count],
        "vector": list(X[:count]),
        "tokens": TOKENS[:count],
        "text": ["text"] * count,
        "age": X[:count, 0],
        "height": np.arange(count),
    }
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The same rows in every form: with a split for testing, without, in Parquet."""
    folder = tmp_path_factory.mktemp("huggingface")
    datasets.DatasetDict(train=rows(60), test=rows(9)).save_to_disk(folder / "both")
    rows(60).save_to_disk(folder / "one")
    (folder / "parquet").mkdir()
    rows(60).to_parquet(folder / "parquet" / "train-00000-of-00001.parquet")
    rows(9).to_parquet(folder / "parquet" / "test-00000-of-00001.parquet")
    return folder


def read(home, path="both", **settings):
    return loaded(home, **{"name": "huggingface", "path": path, "features": "image"} | settings)


@pytest.mark.parametrize("path", ["both", "parquet"])
def test_images_labels_and_clients(home, path, monkeypatch, tmp_path):
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path))
    data = read(home, path, client_column="writer")
    assert data.x_train.dtype == np.uint8
    assert np.array_equal(data.x_train[:, 0], IMAGES)
    assert np.array_equal(data.x_test[:, 0], IMAGES[:9])
    assert data.class_names == ("low", "middle", "high")
    assert data.y_train.tolist() == Y.tolist()
    assert data.train_clients.tolist() == np.unique(CLIENTS, return_inverse=True)[1].tolist()
    # Files of the package itself are not kept.
    assert all(file.is_relative_to(tmp_path / "data") for file in tmp_path.rglob("*") if file.is_file())


@pytest.mark.parametrize("path", ["one", "parquet/train-00000-of-00001.parquet"])
def test_without_a_split_for_it_a_part_is_for_testing(home, path):
    data = read(home, path, features="vector", test_fraction=0.4)
    assert np.bincount(data.y_test).tolist() == [8, 8, 8]
    assert sorted(map(tuple, np.r_[data.x_train, data.x_test])) == sorted(map(tuple, X.astype(np.float32)))


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train/0", "test/0"),
        ("digits-train", "digits-test"),
        ("data/training_0", "data/testing_0"),
        ("train", "eval"),
    ],
)
@pytest.mark.parametrize("validation", ["validation", "valid", "val", "dev"])
def test_splits_by_the_names_of_files(tmp_path, train, test, validation):
    """As the package assigns them; files of the validation samples are for neither."""
    for name, count in ((train, 60), (test, 9), (train.replace("training", "train").replace("train", validation), 30)):
        (tmp_path / "x" / name).parent.mkdir(parents=True, exist_ok=True)
        rows(count).to_parquet(tmp_path / "x" / f"{name}.parquet")
    (tmp_path / "x" / "README.txt").write_text("x")
    data = read(tmp_path, "x", features="height")
    assert (len(data.x_train), len(data.x_test)) == (60, 9)


@pytest.mark.parametrize("folder", ["x[1]", "x[ab]*", "[x]?"])
def test_paths_are_no_patterns(tmp_path, folder):
    for name, count in (("train", 60), ("test[0]", 9)):
        (tmp_path / folder / "deep").mkdir(parents=True, exist_ok=True)
        rows(count).to_parquet(tmp_path / folder / "deep" / f"{name}.parquet")
    # A folder that matches the first pattern.
    (tmp_path / "x1").mkdir()
    rows(5).to_parquet(tmp_path / "x1" / "train.parquet")
    data = read(tmp_path, folder, features="height", test=None)
    assert len(data.x_train) + len(data.x_test) == 60
    alone = read(tmp_path, f"{folder}/deep/test[0].parquet", features="height")
    assert len(alone.x_train) + len(alone.x_test) == 9


def labelled(codes, names):
    features = {"x": datasets.Value("float32"), "label": datasets.ClassLabel(names=names)}
    columns = {"x": np.arange(len(codes)), "label": codes}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def test_classes_of_the_test_samples_are_found_by_their_names(tmp_path):
    train = labelled([0, 1, 1], ["cat", "dog"])
    for name, test in (
        ("x", labelled([1, 0, 0], ["dog", "cat"])),
        ("unused", labelled([2, 0, 0], ["dog", "owl", "cat"])),
        ("new", labelled([2, 0, 1], ["dog", "owl", "cat"])),
        ("unknown", labelled([-1, 0, 1], ["dog", "cat"])),
    ):
        datasets.DatasetDict(train=train, test=test).save_to_disk(tmp_path / name)
    for name in ("x", "unused"):
        data = read(tmp_path, name, features="x")
        assert data.class_names == ("cat", "dog")
        assert (data.y_train.tolist(), data.y_test.tolist()) == ([0, 1, 1], [0, 1, 1])
    for name, found in (("new", "'owl'"), ("unknown", "-1")):
        sentence = (
            f"task.data.label: {name} has the class {found} in split 'test' and not in 'train'; remove its samples"
        )
        assert sentence in refusal(tmp_path, name="huggingface", path=name, features="x")


@pytest.mark.parametrize("mode", [None, "RGB"])
def test_images_are_read_as_those_in_folders(tmp_path, mode):
    def write(name, image, **options):
        content = io.BytesIO()
        image.save(content, "PNG", **options)
        features = datasets.Features({"image": datasets.Image(mode=mode), "label": datasets.Value("int64")})
        columns = {"image": [{"bytes": content.getvalue(), "path": None}] * 10, "label": [0, 1] * 5}
        datasets.Dataset.from_dict(columns, features=features).save_to_disk(tmp_path / name)

    exif = Image.Exif()
    exif[0x0112] = 6
    write("turned", Image.fromarray(np.array([[0, 0], [90, 90]], np.uint8)), exif=exif)
    assert read(tmp_path, "turned").x_train[0, 0].tolist() == [[90, 0], [90, 0]]
    write("transparent", Image.new("RGBA", (2, 2), (0, 0, 0, 9)))
    write("deep", Image.fromarray(np.full((2, 2), 300, np.uint16)))
    for name, sentence in (("transparent", "is transparent in places"), ("deep", "has pixels from 300 to 300")):
        message = refusal(tmp_path, name="huggingface", path=name, features="image")
        assert f"{name}: the image in row 0 {sentence}" in message


def test_damaged_and_oversized_images_are_refused(home, tmp_path):
    sound = io.BytesIO()
    Image.fromarray(IMAGES[0]).save(sound, "PNG")
    sound = sound.getvalue()
    for content, sentence in (
        (sound[:60], "the image in row 4 is not a readable image ("),
        (b"", "the image in row 4 is not a readable image ("),
        (png(30_000, 30_000), "the image in row 4 has too many pixels (Image size (900000000 pixels) exceeds limit"),
        (png(9000, 6000), "the image in row 4, of 9000 x 6000 pixels, has 0.00979 MB and would become 162 MB; make it"),
    ):
        images = [{"bytes": content if row == 4 else sound, "path": None} for row in range(60)]
        features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
        path = tmp_path / str(len(content))
        datasets.Dataset.from_dict({"image": images, "label": Y}, features=features).save_to_disk(path)
        message = refusal(home, name="huggingface", path=str(path), features="image")
        assert f"task.data.features: {path}: {sentence}" in message


def test_columns_of_numbers_of_lists_and_of_tokens(home):
    data = read(home, features=["age", "height", "vector"], label="label")
    assert np.array_equal(data.x_train, np.c_[X[:, 0], np.arange(60), X].astype(np.float32))
    data = read(home, features="tokens", tokens=True, length=4)
    assert (data.is_tokens, data.x_train.dtype) == (True, np.int32)
    assert data.x_train.tolist() == [[*tokens, 0][:4] for tokens in TOKENS]
    assert read(home, size=4).sample_shape == (1, 4, 4)
    swapped = read(home, train="test", test="train", features="vector")
    assert (len(swapped.x_train), len(swapped.x_test)) == (9, 60)


def test_missing_numbers_and_images_with_more_than_8_bits_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("hedgerow.platform.data.sources.huggingface.ROWS", 10)
    columns = {"age": [*range(58), None, 3], "pair": [[1, i if i - 44 else None] for i in range(60)], "label": list(Y)}
    columns["image"] = [Image.fromarray(np.full((4, 4), 200 + 20 * i, np.uint16)) for i in range(60)]
    features = {"age": "int64", "label": "int64"}
    features = {name: datasets.Value(kind) for name, kind in features.items()}
    features |= {"pair": datasets.Sequence(datasets.Value("int64")), "image": datasets.Image()}
    datasets.Dataset.from_dict(columns, features=datasets.Features(features)).save_to_disk(tmp_path / "holes")
    for column, sentence in (
        ("age", "column 'age' of holes has no value in row 58; fill it in, or remove the row or the column"),
        ("pair", "column 'pair' of holes has no value in row 44"),
        (
            "image",
            "task.data.features: holes: the image in row 3 has pixels from 260 to 260, and images have 8 bits here",
        ),
    ):
        assert sentence in refusal(tmp_path, name="huggingface", path="holes", features=column)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"features": ["image", "age"]}, "has images in column 'image', which cannot be joined with other columns"),
        ({"features": "imag"}, "task.data.features: both has no column 'imag'; did you mean 'image'? (columns: image"),
        ({"label": "lable"}, "task.data.label: both has no column 'lable'; did you mean 'label'?"),
        ({"client_column": "who"}, "task.data.client_column: both has no column 'who'"),
        ({"features": "text"}, "task.data.features: column 'text' of both has values that are not numbers"),
        ({"features": "tokens", "tokens": True}, "task.data.length: samples in column 'tokens' of both have different"),
        ({"train": "trian"}, "task.data.train: both has no split 'trian' (train, test); name one of these"),
        ({"test": "valid"}, "task.data.test: both has no split 'valid' (train, test)"),
        ({"path": "unknown/nothing"}, "task.data.path: unknown/nothing: there is no "),
        ({"path": ""}, "has neither Parquet files nor the files of save_to_disk"),
    ],
    ids=str,
)  # fmt: skip
def test_mistakes_are_refused_in_one_sentence(home, tmp_path, settings, sentence):
    if settings.get("path") == "":
        (tmp_path / "x.txt").write_text("x")
        home, settings = tmp_path, {"path": "."}
    assert sentence in refusal(home, **{"name": "huggingface", "path": "both", "features": "image"} | settings)


def test_without_the_package_it_is_said_what_to_install(home, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    sentence = refusal(home, name="huggingface", path="one", features="vector", test_fraction=0.3)
    assert "install it with `uv pip install -e '.[huggingface]'`" in sentence


def test_a_run_learns_from_it(home, tmp_path):
    data = {"name": "huggingface", "path": str(home / "both"), "features": "vector", "client_column": "writer"}
    assert accuracy(tmp_path, data, {"kind": "natural"}) > 0.5
