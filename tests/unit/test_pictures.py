"""Covers decoding and sizing: every kind of picture becomes RGB, resized once to what the real processor keeps."""

import numpy
import pytest
from PIL import Image

from demo.tiny_qwen import FAMILIES
from qwen_vl_grpo import dataset, policy
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.tasks.visual_reasoning import open_picture

SIZES = [(8, 8), (56, 56), (57, 83), (300, 40), (40, 300), (1500, 1000)]
SLIVERS = [(28, 4000), (4000, 28), (20, 3000)]
QUESTION = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "Which colour <is> this?\nSay it."}]


def saved(picture, path, **options):
    picture.save(path, **options)
    return open_picture(str(path))


def near(given, wanted):
    return all(abs(a - b) <= 3 for a, b in zip(given, wanted, strict=True))


def test_a_transparent_picture_is_laid_on_white(tmp_path):
    picture = saved(Image.new("RGBA", (60, 60), (255, 0, 0, 0)), tmp_path / "a.png")
    assert (picture.mode, picture.getpixel((5, 5))) == ("RGB", (255, 255, 255))


def test_a_half_transparent_picture_is_mixed_with_white(tmp_path):
    picture = saved(Image.new("RGBA", (60, 60), (255, 0, 0, 128)), tmp_path / "a.png")
    assert near(picture.getpixel((5, 5)), (255, 127, 127))


def test_a_palette_with_a_transparent_colour_is_laid_on_white(tmp_path):
    palette = Image.new("P", (60, 60), 0)
    palette.putpalette([0, 0, 0, 255, 0, 0])
    picture = saved(palette, tmp_path / "a.png", transparency=0)
    assert (picture.mode, picture.getpixel((5, 5))) == ("RGB", (255, 255, 255))


def test_a_print_picture_keeps_its_colour(tmp_path):
    picture = saved(Image.new("CMYK", (60, 60), (0, 255, 255, 0)), tmp_path / "a.jpg", quality=100)
    assert picture.mode == "RGB"
    assert near(picture.getpixel((5, 5)), (255, 0, 0))


@pytest.mark.parametrize(("mode", "grey"), [("L", 100), ("LA", (100, 255)), ("1", 1)])
def test_a_grey_picture_keeps_its_brightness(tmp_path, mode, grey):
    picture = saved(Image.new(mode, (60, 60), grey), tmp_path / "a.png")
    assert picture.mode == "RGB"
    assert near(picture.getpixel((5, 5)), (255,) * 3 if mode == "1" else (100,) * 3)


def test_a_picture_of_16_bits_keeps_its_brightness(tmp_path):
    grey = numpy.full((60, 60), 100 * 257, dtype=numpy.uint16)
    picture = saved(Image.fromarray(grey), tmp_path / "a.png")
    assert picture.mode == "RGB"
    assert near(picture.getpixel((5, 5)), (100, 100, 100))


def test_a_photo_that_lies_on_its_side_is_turned_up(tmp_path):
    photo = Image.new("RGB", (80, 40), "red")
    photo.paste("blue", (0, 0, 40, 40))
    exif = photo.getexif()
    exif[0x0112] = 6  # turn right by a quarter to see it upright
    picture = saved(photo, tmp_path / "a.jpg", exif=exif, quality=100)
    assert picture.size == (40, 80)
    assert near(picture.getpixel((20, 10)), (0, 0, 255))


@pytest.mark.parametrize("value", [None, 7, {"bytes": None, "path": None}, {"bytes": b"junk", "path": None}], ids=repr)
def test_what_is_no_picture_is_refused(value):
    with pytest.raises(DataError, match=r"picture that cannot be opened|holds no picture"):
        open_picture(value)


def kept_size(processor, picture):
    """Width and height at which the real processor hands a picture to the model."""
    _, high, wide = processor.image_processor(images=[picture], return_tensors="pt")["image_grid_thw"][0].tolist()
    return wide * processor.image_processor.patch_size, high * processor.image_processor.patch_size


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [*SIZES, *SLIVERS], ids=str)
@pytest.mark.parametrize("limits", [{}, {"min_pixels": 64 * 64, "max_pixels": 100 * 100}], ids=["default", "small"])
def test_a_fitted_picture_is_never_resized_again(checkpoint, config_of, family, size, limits):
    config = config_of(model_name=checkpoint(family), data=limits)
    processor = policy.load_processor(config)
    fitted = dataset.fit(Image.new("RGB", size, "red"), processor, config)
    assert kept_size(processor, fitted) == fitted.size
    assert dataset.fit(fitted, processor, config) is fitted


def test_a_picture_that_no_size_between_the_limits_fits_is_refused(checkpoint, config_of):
    config = config_of(model_name=checkpoint("qwen2_5_vl"), data={"min_pixels": 3136, "max_pixels": 4000})
    with pytest.raises(DataError, match="no size for a picture of 56x84 lies between"):
        dataset.fit(Image.new("RGB", (56, 84)), policy.load_processor(config), config)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_fitted_picture_has_the_size_that_the_processor_would_choose(checkpoint, config_of, family, size):
    config = config_of(model_name=checkpoint(family))
    processor = policy.load_processor(config)
    picture = Image.new("RGB", size, "red")
    assert dataset.fit(picture, processor, config).size == kept_size(processor, picture)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sizes", [(), ((56, 84),), ((56, 84), (300, 100))], ids=["no picture", "one", "two"])
def test_the_length_of_a_prompt_is_that_of_the_real_processor(checkpoint, config_of, family, sizes):
    from trl.data_utils import prepare_multimodal_messages

    config = config_of(model_name=checkpoint(family))
    processor = policy.load_processor(config)
    pictures = [dataset.fit(Image.new("RGB", size, "red"), processor, config) for size in sizes]
    chat = prepare_multimodal_messages(QUESTION, images=pictures)
    encoded = processor.apply_chat_template([chat], add_generation_prompt=True, tokenize=True, return_dict=True)
    assert dataset.prompt_length(processor, QUESTION, pictures) == len(encoded["input_ids"][0])
