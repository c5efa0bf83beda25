"""When the frames of a clip were seen, told to the engine by a vLLM that does not do so by itself.

Qwen2.5-VL: vLLM leaves it out before vllm#47736, and transformers then takes every clip for one of 24 frames a second, so that the words
after it stand elsewhere than in the trainer. Qwen3-VL: vLLM before 0.26 drops the marks around the times, which transformers 5.10 keeps.
The file goes when requirements/ asks for no vLLM before MENDED.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

MENDED = "0.31.0"
"""The first release of vLLM that does both by itself."""


def told() -> None:
    """Let the next engine read clips as the trainer does; a vLLM that does so is left as it is."""
    from vllm.model_executor.models import qwen2_5_vl, qwen3_vl  # pyright: ignore[reportMissingImports]

    if "get_data_parser" not in vars(qwen2_5_vl.Qwen2_5_VLProcessingInfo):
        hand_over(qwen2_5_vl.Qwen2_5_VLProcessingInfo, qwen2_5_vl.Qwen2_5_VLMultiModalProcessor)
    if not hasattr(qwen3_vl.Qwen3VLMultiModalProcessor, "_expands_only_video_token"):
        keep_marks(qwen3_vl.Qwen3VLMultiModalProcessor)


def hand_over(reads: Any, processes: Any) -> None:
    """Keep a clip's times beside its frames, in the keys of vLLM's caches too, as far as Qwen2.5-VL's processor."""
    from transformers.video_utils import VideoMetadata

    parser_of, data_of = reads.get_data_parser, processes._get_hf_mm_data

    def get_data_parser(self: Any) -> Any:
        """vLLM's; the clips that it makes up to measure memory have no times."""
        parser = parser_of(self)
        parser.video_needs_metadata, read = True, parser._get_video_with_metadata

        def timed(video: Any) -> tuple[Any, dict[str, Any]]:
            frames, known = read(video)
            return frames, known or {"fps": 2.0, "total_num_frames": len(frames), "frames_indices": list(range(len(frames)))}

        parser._get_video_with_metadata = timed
        return parser

    def _get_hf_mm_data(self: Any, mm_items: Any) -> Any:
        data, passed = data_of(self, mm_items)
        if clips := data.get("videos"):
            known = [{key: value for key, value in metadata.items() if key != "do_sample_frames"} for _, metadata in clips]
            data = {**data, "videos": [frames for frames, _ in clips], "video_metadata": [VideoMetadata(**times) for times in known]}
        return data, passed

    reads.get_data_parser, processes._get_hf_mm_data = get_data_parser, _get_hf_mm_data


def keep_marks(processes: Any) -> None:
    """Let the times and frames of a clip take the place of its token alone."""
    updates_of = processes._get_prompt_updates

    def _get_prompt_updates(self: Any, *arguments: Any, **named: Any) -> list[Any]:
        token = self.info.get_hf_processor().video_token
        return [replace(each, target=token) if each.modality == "video" else each for each in updates_of(self, *arguments, **named)]

    processes._get_prompt_updates, processes._expands_only_video_token = _get_prompt_updates, lambda *_: True
