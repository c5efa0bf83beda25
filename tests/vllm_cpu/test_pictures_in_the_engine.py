"""Covers how often a picture is decoded and preprocessed by the trainer and by the engine together."""

import datasets

PROMPTS = 8
"""Two a step, four steps: one epoch."""


def test_a_picture_is_decoded_once_and_preprocessed_once_on_each_side_a_prompt(trainer_of, monkeypatch):
    trainer, _ = trainer_of(batch_size=4, gradient_accumulation_steps=2, max_steps=4)
    processor = type(trainer.processing_class.image_processor)
    counts = {"decoded": 0, "trainer": 0, "engine": 0}
    decode, preprocess = datasets.Image.decode_example, processor._preprocess

    def decode_counted(self, value, **named):
        counts["decoded"] += 1
        return decode(self, value, **named)

    def preprocess_counted(self, images, *arguments, **named):
        counts["trainer" if self is trainer.processing_class.image_processor else "engine"] += len(images)
        return preprocess(self, images, *arguments, **named)

    monkeypatch.setattr(datasets.Image, "decode_example", decode_counted)
    monkeypatch.setattr(processor, "_preprocess", preprocess_counted)
    trainer.train()
    assert counts == {"decoded": PROMPTS, "trainer": PROMPTS, "engine": PROMPTS}
