"""Folders of images as data sets come: what is a class, what is tested, what becomes of an image's sides."""

import io
import shutil
import struct
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest
from damaged_files import flipped, png
from PIL import Image

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.data.sources.cache import load_dataset
from hedgerow.platform.data.sources.client_folders import ClientFolders
from hedgerow.platform.data.sources.image_folder import ImageFolder


def folder_of(root, name="x", **options):
    return load_dataset(ImageFolder(path=name, **options), root)


def laid_out(root, names, content=None):
    """Small pictures by name, each with a value of its own. content: of files that are none."""
    for value, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((6, 6, 3), [value, 0, 9], np.uint8)).save(root / name, format="PNG")
    for name, text in (content or {}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


WORDS = ("n01443537", "n01629819", "n01641577")
TINY = [
    *(f"train/{word}/images/{word}_{i}.JPEG" for word in WORDS for i in range(3)),
    *(f"val/images/val_{i}.JPEG" for i in range(4)),
    *(f"test/images/test_{i}.JPEG" for i in range(2)),
]
ANNOTATIONS = "".join(f"val_{i}.JPEG\t{WORDS[word]}\t0\t32\t44\t62\n" for i, word in enumerate((2, 0, 0, 1)))
TOLD = {f"train/{word}/{word}_boxes.txt": f"{word}_0.JPEG\t0\t0\t62\t63\n" for word in WORDS} | {
    "val/val_annotations.txt": ANNOTATIONS, "wnids.txt": "\n".join(WORDS),
}  # fmt: skip


@pytest.mark.parametrize("zipped", [False, True], ids=["folder", "zip"])
def test_tiny_imagenet_as_it_is_unpacked(tmp_path, zipped):
    """Its test images have no class: val is the test set, whose classes are in a file."""
    laid_out(tmp_path / "tiny-imagenet-200", TINY, TOLD)
    if zipped:
        shutil.make_archive(str(tmp_path / "tiny-imagenet-200"), "zip", tmp_path, "tiny-imagenet-200")
    data = folder_of(tmp_path, "tiny-imagenet-200" + (".zip" if zipped else ""))
    assert data.class_names == WORDS
    assert data.y_train.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert data.y_test.tolist() == [2, 0, 0, 1]
    assert data.x_test[:, 0, 0, 0].tolist() == [9, 10, 11, 12]


def test_images_that_are_overwritten_in_place_are_read_anew(tmp_path):
    names = ["x/a/0.png", "x/a/1.png", "x/b/0.png", "x/b/1.png"]
    laid_out(tmp_path, names)
    assert folder_of(tmp_path).x_train.max() == 9
    folder = tmp_path / "x" / "a"
    before = folder.stat().st_mtime_ns
    laid_out(tmp_path, [*[f"spare/{value}.png" for value in range(50)], *names])
    # An image that is overwritten in place does not change the time of its folder.
    assert folder.stat().st_mtime_ns == before
    assert folder_of(tmp_path).x_train.max() >= 50


def test_classes_that_a_file_names_are_read_anew_when_it_changes(tmp_path):
    laid_out(tmp_path / "x", TINY, TOLD)
    folder_of(tmp_path)
    (tmp_path / "x" / "val" / "val_annotations.txt").write_text(ANNOTATIONS.replace(WORDS[2], WORDS[1], 1) + "\n")
    assert folder_of(tmp_path).y_test.tolist() == [1, 0, 0, 1]
    (tmp_path / "x" / "val" / "val_annotations.txt").unlink()
    with pytest.raises(UserError, match=r"val/images/val_0\.JPEG under .* has no class; sort val/ into val/CLASS"):
        folder_of(tmp_path)


@pytest.mark.parametrize(
    ("others", "test"),
    [
        ([], [2, 3]),
        (["test/ILSVRC2012_test_1.JPEG"], [2, 3]),
        (["test/images/1.JPEG"], [2, 3]),
        (["test/Images/1.JPEG"], [2, 3]),
        (["test/a/1.JPEG", "test/b/2.JPEG"], [4, 5]),
    ],
    ids=["no test", "a test without classes", "one in images", "one in Images", "a test with classes"],
)
def test_val_is_the_test_set_where_no_other_has_classes(tmp_path, others, test):
    laid_out(tmp_path / "imagenet", ["train/a/1.JPEG", "train/b/2.JPEG", "val/a/1.JPEG", "val/b/2.JPEG", *others])
    data = folder_of(tmp_path, "imagenet")
    assert data.x_train[:, 0, 0, 0].tolist() == [0, 1]
    assert data.x_test[:, 0, 0, 0].tolist() == test
    assert data.y_train.tolist() == data.y_test.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        ([f"{label}/images/{i}.png" for label in "ab" for i in range(5)], ("a", "b")),
        ([f"x/{label}/{i}.png" for label in ("images", "val") for i in range(5)], ("images", "val")),
        ([f"train/{label}/{i}.png" for label in ("images", "test") for i in range(5)], ("images", "test")),
        (
            [f"{label}/{year}/{i}.png" for label in ("cat", "dog") for year in (2021, 2022) for i in range(3)][:10],
            ("cat", "dog"),
        ),
        ([f"y/{label}/{i}.png" for label in ("cat", "dog") for i in range(5)], ("cat", "dog")),
        (
            [f"{label}/{i}.png" for label in ("cat", "dog") for i in range(5)]
            + ["cat/.ipynb_checkpoints/0.png", ".cache/owl/0.png", "cat/._0.png", "__MACOSX/cat/0.png"],
            ("cat", "dog"),
        ),
    ],
)
def test_folders_of_images_that_are_classes_or_not(tmp_path, names, classes):
    laid_out(tmp_path / "x", names)
    data = folder_of(tmp_path)
    assert data.class_names == classes
    assert (len(data.x_train), len(data.x_test)) == (8, 2)


@pytest.mark.parametrize("zipped", [False, True], ids=["folder", "zip"])
@pytest.mark.parametrize(
    ("train", "test"), [("Train", "TEST"), ("training", "testing"), ("y/train", "y/Val"), ("train", "valid")]
)
def test_parts_by_the_names_of_their_folders(tmp_path, train, test, zipped):
    laid_out(tmp_path / "x", [f"{part}/{label}/2021/{i}.PNG" for part in (train, test) for label in "ab" for i in "01"])
    if zipped:
        shutil.make_archive(str(tmp_path / "x"), "zip", tmp_path, "x")
    data = folder_of(tmp_path, "x.zip" if zipped else "x")
    assert data.class_names == ("a", "b")
    assert data.x_train[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert data.x_test[:, 0, 0, 0].tolist() == [4, 5, 6, 7]


def test_val_is_the_test_set_where_test_has_other_classes_than_train(tmp_path):
    """As VisDA comes: the images of test/ are in folders without a meaning."""
    names = [f"{part}/{label}/{i}.png" for part in ("train", "validation") for label in ("bus", "car") for i in "01"]
    laid_out(tmp_path / "x", [*names, "test/trunk00/0.png", "test/trunk01/1.png"])
    data = folder_of(tmp_path)
    assert data.class_names == ("bus", "car")
    assert data.y_test.tolist() == [0, 0, 1, 1]
    assert data.x_test[:, 0, 0, 0].tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("train", "others", "unknown"),
    [
        ("train/", ["test/bus/0.png", "test/cars/0.png"], "cars"),
        ("", ["test/cars/0.png", "test/buses/0.png"], "buses, cars"),
        ("train/", ["test/cars/0.png", "val/vans/0.png"], "cars"),
        ("train/", ["test/cars/0.png", "val/car/0.png", "val/vans/0.png"], "vans"),
        ("train/", ["val/cars/0.png", "val/car/0.png"], "cars"),
        ("train/", [f"test/{label}/0.png" for label in "abcdef"], "a, b, c, d, e, ..."),
    ],
)
def test_classes_of_test_images_alone_are_refused(tmp_path, train, others, unknown):
    laid_out(tmp_path / "x", [*(f"{train}{label}/{i}.png" for label in ("bus", "car") for i in "01"), *others])
    assert refusal(tmp_path) == (
        f"task.data.path: test images under {tmp_path}/x have classes that no training image has ({unknown}); "
        "remove their folders, or give training and test images the same classes"
    )


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train/images", "test/images"),
        ("train/Images", "test/Images"),
        ("train", "test/IMAGES"),
        ("train/images", "val"),
    ],
)
def test_classes_below_a_folder_of_all_images(tmp_path, train, test):
    laid_out(tmp_path / "x", [f"{part}/{label}/{i}.png" for part in (train, test) for label in "ab" for i in "01"])
    data = folder_of(tmp_path)
    assert data.class_names == ("a", "b")
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([0, 0, 1, 1], [0, 0, 1, 1])
    assert data.x_test[:, 0, 0, 0].tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("logo", ["logo.png", "data/logo.png", "data/inner/logo.png"])
@pytest.mark.parametrize("parts", [("train/", "test/"), ("",)], ids=["divided", "undivided"])
def test_a_stray_image_next_to_the_folders_is_left_out(tmp_path, logo, parts):
    names = [f"data/inner/{part}{label}/{i}.png" for part in parts for label in ("bus", "car") for i in range(5)]
    laid_out(tmp_path / "x", [*names, logo])
    data = folder_of(tmp_path)
    assert data.class_names == ("bus", "car")
    assert (len(data.x_train), len(data.x_test)) == ((10, 10) if parts[0] else (8, 2))


def test_a_class_without_deeper_folders_is_no_stray_image(tmp_path):
    laid_out(tmp_path / "x", [f"{folder}/{i}.png" for folder in ("cat/2021", "dog") for i in range(5)])
    assert folder_of(tmp_path).class_names == ("cat", "dog")


@pytest.mark.parametrize(
    ("tops", "classes", "fix"),
    [
        (("training_set", "test_set"), ("cats", "dogs"), ""),
        (("training_set", "test"), ("cats", "dogs"), ""),
        (("Train_Data", "Test_Data"), ("0", "1"), ""),
        (("train_x/images", "test_x/images"), ("cats", "dogs"), ""),
        (("seg_train/seg_train", "seg_test/seg_test", "seg_pred/seg_pred"), ("forest", "sea"), ""),
        (("photo", "sketch", "cartoon"), ("cat", "dog"), "give `path: {}/cartoon`, or "),
        (("PACS/photo", "PACS/sketch"), ("cat", "dog"), "give `path: {}/PACS/photo`, or "),
        (("train/photo", "train/sketch", "test/photo", "test/sketch"), ("cat", "dog"), None),
    ],
)
def test_folders_above_the_classes_are_no_classes(tmp_path, tops, classes, fix):
    names = [f"{top}/{label}/{i}.png" for top in tops if "pred" not in top for label in classes for i in "01"]
    laid_out(tmp_path / "x", [*names, *(f"{top}/2.png" for top in tops if "pred" in top)])
    place = f"{tmp_path}/x" + ("/PACS" if "PACS" in tops[0] else "/train" if fix is None else "")
    assert refusal(tmp_path) == (
        f"task.data.path: several folders at the top of {place} have the same folders ({', '.join(classes)}); "
        + (
            "put the images of each class directly into train/CLASS/, without further folders"
            if fix is None
            else fix.format(tmp_path / "x")
        )
        + ("rename the folders to train/ and test/, directly above the classes" if fix is not None else "")
    )


def test_folders_above_the_classes_in_a_zip_and_of_a_client(tmp_path):
    laid_out(tmp_path / "y", [f"{top}/{label}/0.png" for top in ("photo", "sketch") for label in ("cat", "dog")])
    shutil.make_archive(str(tmp_path / "x"), "zip", tmp_path / "y")
    assert "; unpack the file and give one of them as `path`, or rename the folders" in refusal(tmp_path, name="x.zip")
    (tmp_path / "clients").mkdir()
    (tmp_path / "y").rename(tmp_path / "clients" / "anna")
    with pytest.raises(UserError, match=r"anna have the same folders \(cat, dog\); rename the folders to train/"):
        load_dataset(ClientFolders(path="clients"), tmp_path)


@pytest.mark.parametrize("below", ["photos", "2021", "2021-11-28/front", "images/01"])
def test_classes_may_be_above_equal_folders(tmp_path, below):
    laid_out(tmp_path / "x", [f"{label}/{below}/{i}.png" for label in ("cat", "dog") for i in range(5)])
    laid_out(tmp_path / "x", [f"cat/2022/{i}.png" for i in range(5)] if below[0] == "2" else [])
    assert folder_of(tmp_path).class_names == ("cat", "dog")


def test_parts_below_a_class_are_refused(tmp_path):
    laid_out(tmp_path / "x", [f"{label}/{part}/0.png" for label in "ab" for part in ("train", "test")])
    with pytest.raises(UserError, match=r"a/test/0\.png under .* has its class above train/ or test/; sort the images"):
        folder_of(tmp_path)


def test_members_of_a_zip_that_are_one_file_count_once(tmp_path):
    content = io.BytesIO()
    Image.new("RGB", (2, 2)).save(content, "PNG")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for label in "ab":
            for start in ("", "./", "__MACOSX/", "./.hidden/"):
                for i in range(5):
                    archive.writestr(f"{start}{label}/{i}.png", content.getvalue())
    data = folder_of(tmp_path, "x.zip")
    assert (data.class_names, len(data.x_train), len(data.x_test)) == (("a", "b"), 8, 2)


def test_images_of_other_formats_are_read_or_refused_but_not_left_out(tmp_path):
    laid_out(tmp_path / "x", [f"{label}/{i}.png" for label in "ab" for i in range(5)])
    (tmp_path / "x" / "c").mkdir()
    for name in ("0.tif", "1.TIFF", "2.ppm", "3.webp", "4.gif", "5.bmp"):
        Image.new("RGB", (6, 6)).save(tmp_path / "x" / "c" / name)
    data = folder_of(tmp_path)
    assert (np.bincount(data.y_train) + np.bincount(data.y_test)).tolist() == [5, 5, 6]
    (tmp_path / "x" / "c" / "6.heic").write_bytes(b"\0\0\0\x18ftypheic")
    assert "c/6.heic is not a readable image (its format is none of PNG, JPEG, BMP, GIF, WEBP, TIFF, PPM); " in refusal(
        tmp_path
    )


def test_images_without_classes_are_refused(tmp_path):
    laid_out(tmp_path / "flat", ["train/a/1.JPEG", "train/b/1.JPEG", "val/ILSVRC2012_val_00000001.JPEG"])
    with pytest.raises(UserError, match=r"val/ILSVRC2012_val_00000001\.JPEG under .* has no class"):
        folder_of(tmp_path, "flat")
    laid_out(tmp_path / "one", ["train/cat/1.png", "test/cat/1.png"])
    with pytest.raises(UserError, match="are of one class, cat; give each class a folder of its own"):
        folder_of(tmp_path, "one")
    laid_out(tmp_path / "none", ["train/images/1.png"])
    with pytest.raises(UserError, match="no images under"):
        folder_of(tmp_path, "none")


def test_images_with_more_than_8_bits_are_refused(tmp_path):
    def write(name, pixels):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / name, format="TIFF" if pixels.dtype == np.float32 else "PNG")

    for client in "ab":
        for label, value in (("dark", 40), ("light", 250)):
            for number in range(5):
                write(f"x/{client}/{label}/{number}.png", np.full((6, 6), value + number % 2, np.uint16))
    # Such a file may also have values of 8 bits.
    data = folder_of(tmp_path, "x/a")
    assert data.sample_shape == (1, 6, 6)
    assert set(data.x_train[data.y_train == 0].flat) == {40, 41}
    assert set(data.x_train[data.y_train == 1].flat) == {250, 251}
    for pixels, found in (
        (np.full((6, 6), 40_000, np.uint16), "40000 to 40000"),
        (np.linspace(0, 1, 36, dtype=np.float32).reshape(6, 6), "0 to 1"),
    ):
        write("x/b/dark/3.png", pixels)
        for source in (ImageFolder(path="x/b"), ClientFolders(path="x")):
            with pytest.raises(UserError, match=rf"dark/3.png has pixels from {found}, and images have 8 bits here"):
                load_dataset(source, tmp_path)


def png_of_16_bits(values):
    """A PNG file of 16 bits per channel: PIL writes none of several channels. values: (H, W, channels)."""
    high, wide, channels = values.shape
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", wide, high, 16, colour, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def tiff_of_16_bits(values):
    """An uncompressed RGB TIFF file of 16 bits per channel."""
    high, wide, _ = values.shape
    body = values.astype("<u2").tobytes()
    fields = [
        (256, wide), (257, high), (258, 122), (259, 1), (262, 2), (273, 128), (277, 3), (278, high), (279, len(body)),
    ]  # fmt: skip
    entries = b"".join(struct.pack("<HHII", tag, 4 - (tag == 258), 1 + 2 * (tag == 258), v) for tag, v in fields)
    return b"II*\0" + struct.pack("<IH", 8, 9) + entries + struct.pack("<IHHH", 0, 16, 16, 16) + body


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *[(f"{n} channels.png", png_of_16_bits(np.full((4, 4, n), 65535))) for n in (2, 3, 4)],
        ("small.png", png_of_16_bits(np.full((4, 4, 3), 200))),
        ("0.tif", tiff_of_16_bits(np.full((4, 4, 3), 300))),
        ("0.ppm", b"P6 4 4 65535 " + bytes(96)),
        ("1.ppm", b"P3 1 1 1000 1 2 3 "),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_colours_with_16_bits_are_refused(tmp_path, name, content):
    laid_out(tmp_path / "x", ["b/0.png", "b/1.png"])
    (tmp_path / "x" / "a").mkdir()
    (tmp_path / "x" / "a" / name).write_bytes(content)
    assert f"a/{name} has 16 bits per channel, and images have 8 bits here; convert all images" in refusal(tmp_path)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_images_are_refused(tmp_path, mode):
    """A drawing in the alpha channel alone would become black."""
    laid_out(tmp_path / "x", ["b/0.png", "b/1.png"])
    (tmp_path / "x" / "a").mkdir()
    drawing = Image.new(mode, (6, 6))
    if mode == "P":
        drawing.info["transparency"] = 0
    else:
        drawing.putalpha(Image.fromarray(np.eye(6, dtype=np.uint8) * 255))
    drawing.save(tmp_path / "x" / "a" / "0.png")
    assert "a/0.png is transparent in places; flatten all images onto one background" in refusal(tmp_path)


def test_photographs_are_turned_upright(tmp_path):
    """Orientation 6 of EXIF: the first row is at the right."""
    photograph = Image.fromarray(np.repeat(np.array([[0], [90]], np.uint8), 3, axis=1))
    exif = Image.Exif()
    exif[0x0112] = 6
    for label in "ab":
        (tmp_path / "x" / label).mkdir(parents=True)
        for i in range(3):
            photograph.save(tmp_path / "x" / label / f"{i}.png", exif=exif)
    assert folder_of(tmp_path).x_train[0, 0].tolist() == [[90, 0]] * 3


def test_palettes_and_transparency_keep_their_colours(tmp_path):
    for label, value in (("dark", 50), ("light", 200)):
        (tmp_path / "x" / label).mkdir(parents=True)
        grey = Image.new("L", (8, 8), value)
        palette = Image.new("P", (8, 8), value)
        palette.putpalette([channel for level in range(256) for channel in (level, level, level)])
        for number, image in enumerate((grey, palette, *map(grey.convert, ("RGB", "LA", "RGBA")))):
            image.save(tmp_path / "x" / label / f"{number}.png")
    data = folder_of(tmp_path)
    assert data.sample_shape == (1, 8, 8)
    for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test)):
        assert (x == np.array([50, 200])[y][:, None, None, None]).all()


def test_of_an_image_the_shorter_side_is_resized_and_the_middle_cropped(tmp_path):
    """What is square is resized, and nothing else."""
    random = np.random.default_rng(0)
    wanted = []
    for label, (high, wide) in (("a", (4, 12)), ("b", (12, 4)), ("c", (7, 7))):
        image = Image.fromarray(random.integers(0, 256, (high, wide, 3), dtype=np.uint8))
        (tmp_path / "x" / "train" / label).mkdir(parents=True)
        image.save(tmp_path / "x" / "train" / label / "1.png")
        shorter = {"a": (6, 2), "b": (2, 6), "c": (2, 2)}[label]
        whole = np.asarray(image.resize(shorter, Image.Resampling.BILINEAR)).transpose(2, 0, 1)
        wanted.append({"a": whole[:, :, 2:4], "b": whole[:, 2:4], "c": whole}[label])
    laid_out(tmp_path / "x", ["test/a/1.png"])
    assert (folder_of(tmp_path, size=2).x_train == np.stack(wanted)).all()


# ---- damaged files ---------------------------------------------------------------------------------------------------


def refusal(root, **options):
    with pytest.raises(UserError) as caught:
        folder_of(root, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def packed(tmp_path):
    """Writes a zip of pictures of two classes; further members as given."""

    def packed(members=(), name="x.zip", **options):
        laid_out(tmp_path, [f"spare/{label}/{i}.png" for label in "ab" for i in range(5)])
        with zipfile.ZipFile(tmp_path / name, "w", **options) as archive:
            for file in sorted((tmp_path / "spare").rglob("*.png")):
                archive.write(file, file.relative_to(tmp_path / "spare"))
            for member, content in members:
                archive.writestr(member, content, zipfile.ZIP_DEFLATED)
        return tmp_path / name

    return packed


def test_damaged_encrypted_and_oddly_packed_members_are_refused(tmp_path, packed):
    """Each flag and number is at its place in the member's header (APPNOTE.TXT, 4.3.7 and 4.3.12)."""
    sound = packed().read_bytes()
    local, central = sound.index(b"PK\x03\x04"), sound.index(b"PK\x01\x02")
    changes = {
        "password required": [(local + 6, 1), (central + 8, 1)],
        "compression method is not supported": [(local + 8, 99), (central + 10, 99)],
        "Bad CRC-32": [(local + 60, sound[local + 60] ^ 16)],
        "zip file version": [(central + 6, 99)],
    }
    for reason, bytes_ in changes.items():
        damaged = bytearray(sound)
        for place, value in bytes_:
            damaged[place] = value
        (tmp_path / "damaged.zip").write_bytes(damaged)
        message = refusal(tmp_path, name="damaged.zip")
        assert message.startswith("task.data.path: ")
        assert reason in message
    assert len(folder_of(tmp_path, "x.zip").x_train) == 8


def test_any_damage_to_a_zip_is_a_sentence_or_harmless(tmp_path, packed):
    sound = packed(compression=zipfile.ZIP_DEFLATED).read_bytes()
    whole = folder_of(tmp_path, "x.zip")
    rng = np.random.default_rng(0)
    refused = 0
    for trial in range(300):
        damaged = flipped(sound, int(rng.integers(8 * len(sound)))) if trial % 3 else sound[: rng.integers(len(sound))]
        (tmp_path / "damaged.zip").write_bytes(damaged)
        try:
            data = ImageFolder(path="damaged.zip").load(tmp_path)
        except UserError:
            refused += 1
        else:
            # Names and unused fields of a zip have no checksum.
            assert set(data.x_train[:, 0, 0, 0]) | set(data.x_test[:, 0, 0, 0]) <= set(range(10))
    assert refused > 150
    assert len(whole.x_train) == 8


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_sizes_are_looked_at_before_anything_is_unpacked(tmp_path, packed, monkeypatch):
    (tmp_path / "x" / "a").mkdir(parents=True)
    for width, height in ((30_000, 30_000), (13_000, 13_000), (9000, 6000)):
        (tmp_path / "x" / "a" / "0.png").write_bytes(png(width, height))
        tracemalloc.start()
        message = refusal(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 2e7
        tracemalloc.stop()
        assert "a/0.png" in message
        assert "; make it smaller or remove it" in message
    packed([("a/big.png", bytes(2 * 10**8))])
    message = refusal(tmp_path, name="x.zip")
    assert "task.data.path: a/big.png in" in message
    assert "MB and would become 200 MB; if that is right, unpack the file" in message
    # A photograph of 24 million pixels has a few MB. A blank one is small, and harmless.
    (tmp_path / "x" / "a" / "0.png").write_bytes(png(3000, 3000))
    laid_out(tmp_path, ["x/b/0.png"])
    assert folder_of(tmp_path, size=4, test_fraction=0.1).x_train.shape == (2, 3, 4, 4)
    # Together they would not fit.
    free = "hedgerow.platform.common.memory.system_memory"
    monkeypatch.setattr(free, lambda: 2e8)
    laid_out(tmp_path, ["x/c/0.png"])
    assert "the images under" in refusal(tmp_path, size=4000)
