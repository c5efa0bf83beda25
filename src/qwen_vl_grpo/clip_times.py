"""How fast a clip runs, told to Qwen2.5-VL by a vLLM that leaves it out: what vllm#47736 mended, for the versions before it.

Without it transformers takes every clip for one of 24 frames a second, and the words after it stand elsewhere than in the trainer.
The file goes when requirements/ asks for no vLLM before MENDED.
"""

from __future__ import annotations

from typing import Any

MENDED = "0.31.0"
"""The first release of vLLM that tells it by itself."""


def told() -> None:
    """Let vLLM hand the times of clips to Qwen2.5-VL's processor, from the next engine on; a vLLM that does so is left as it is."""
    from transformers.video_utils import VideoMetadata
    from vllm.model_executor.models import qwen2_5_vl  # pyright: ignore[reportMissingImports]

    reads: Any = qwen2_5_vl.Qwen2_5_VLProcessingInfo
    processes: Any = qwen2_5_vl.Qwen2_5_VLMultiModalProcessor
    if "get_data_parser" in vars(reads):
        return
    parser_of, data_of = reads.get_data_parser, processes._get_hf_mm_data

    def get_data_parser(self: Any) -> Any:
        """vLLM's, which then keeps a clip's times beside its frames, in the keys of its caches too; its profiling clip has none."""
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
