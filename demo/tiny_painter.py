"""Teach a tiny Qwen-Image pipeline of the real classes to draw coloured shapes from a policy's hidden states, and freeze it.

The autoencoder learns the pictures first; then the transformer learns by flow matching (arXiv 2209.03003) to draw what a completion says.
In its lessons the prompt says nothing of the picture: a completion stands behind any prompt or behind none, so that the transformer can
learn nothing but to read the completion.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from diffusers.models.autoencoders.autoencoder_kl_qwenimage import AutoencoderKLQwenImage
from diffusers.models.transformers.transformer_qwenimage import QwenImageTransformer2DModel
from diffusers.pipelines.qwenimage.pipeline_qwenimage import QwenImagePipeline
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
from torch.nn import functional

from demo.shapes_judge import SIDE, painted
from demo.shapes_words import drawings
from qwen_vl_grpo.images.embeddings import PolicyEncoder, Turn

LESSONS = 3000
WITHOUT_PROMPT, WITHOUT_COMPLETION = 0.5, 0.1
"""Shares of the lessons; one without a completion shows any picture, and so does the frozen pipeline then."""
LATENTS = 4
"""Channels of a latent; the autoencoder makes 8x8 of them out of 16x16 pixels, and a token is 2x2."""
TOKENS = SIDE // 4
"""Of a picture's side."""
SHIFT = 3.0
"""How far the levels of noise are moved to the noisy end, in lessons and drawings alike (arXiv 2403.03206, 5.3.2): what is drawn is
decided there, and with levels drawn evenly the transformer guesses it from what is left of the picture and not from the states."""
AUTOENCODER_STEPS, TRANSFORMER_STEPS = 600, 2000


def teach(folder: Path, model: Any, processor: Any, prompts: Sequence[str], seed: int) -> None:
    """Write a pipeline that draws what completions of `drawings()` say, as the states of this policy say it."""
    torch.manual_seed(seed)
    choose, draw = random.Random(seed), numpy.random.default_rng(seed)
    shown = [drawings()[lesson % len(drawings())] for lesson in range(LESSONS)]
    images = pictures(shown, draw)
    vae: Any = autoencoder()
    learn_pictures(vae, images, AUTOENCODER_STEPS)
    with torch.no_grad():
        latents = torch.cat([vae.encode(part).latent_dist.mode() for part in images.split(250)])
    mean, spread = latents.mean((0, 2, 3, 4)), latents.std((0, 2, 3, 4))
    vae.register_to_config(latents_mean=mean.tolist(), latents_std=spread.tolist())
    clean = packed((latents - mean.view(1, -1, 1, 1, 1)) / spread.view(1, -1, 1, 1, 1))
    said = {drawing: tuple(processor.tokenizer(drawing)["input_ids"]) for drawing in drawings()}
    turns = []
    for drawing in shown:
        prompt = "" if choose.random() < WITHOUT_PROMPT else choose.choice(prompts)
        turns.append(Turn(prompt, () if choose.random() < WITHOUT_COMPLETION else said[drawing]))
    encoder = PolicyEncoder("qwen_image", model, processor, batch_size=128)
    states = [encoded.conditioning.states for encoded in encoder.encode(turns)]
    transformer = painter(states[0].shape[1])
    whiten(transformer, torch.cat(states))
    learn_to_draw(transformer, clean, states, TRANSFORMER_STEPS)
    QwenImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=SHIFT), vae=vae, text_encoder=model, tokenizer=processor.tokenizer,
        transformer=transformer,
    ).save_pretrained(folder)  # fmt: skip


def autoencoder() -> AutoencoderKLQwenImage:
    return AutoencoderKLQwenImage(
        base_dim=12, z_dim=LATENTS, dim_mult=[1, 2], num_res_blocks=1, temperal_downsample=[False],  # type: ignore[arg-type]
        latents_mean=[0.0] * LATENTS, latents_std=[1.0] * LATENTS,
    )  # fmt: skip


def painter(width: int) -> QwenImageTransformer2DModel:
    """A transformer that reads states of this width: 1.3 million weights."""
    return QwenImageTransformer2DModel(
        in_channels=4 * LATENTS, out_channels=LATENTS, num_layers=2, attention_head_dim=32, num_attention_heads=4,
        joint_attention_dim=width, axes_dims_rope=(8, 12, 12),
    )  # fmt: skip


def pictures(shown: Sequence[str], draw: numpy.random.Generator) -> torch.Tensor:
    """Drawings at random places, (n, 3, 1, 16, 16) from -1 to 1: one frame each."""
    values = numpy.stack([numpy.asarray(painted(drawing, draw), numpy.float32) for drawing in shown])
    return torch.from_numpy(values / 127.5 - 1).permute(0, 3, 1, 2)[:, :, None]


def packed(latents: torch.Tensor) -> torch.Tensor:
    """Latents (n, channels, 1, 8, 8) as the tokens that the pipeline makes of them, (n, 16, 4 x channels)."""
    n, channels = latents.shape[:2]
    return latents.view(n, channels, TOKENS, 2, TOKENS, 2).permute(0, 2, 4, 1, 3, 5).reshape(n, TOKENS * TOKENS, channels * 4)


def learn_pictures(vae: Any, images: torch.Tensor, steps: int) -> None:
    """Squared error, and so little of the divergence from a normal distribution that nothing is blurred."""
    step = stepper(vae, 4e-3, steps)
    for _ in range(steps):
        some = images[torch.randint(len(images), (16,))]
        posterior = vae.encode(some).latent_dist
        step(functional.mse_loss(vae.decode(posterior.sample()).sample, some) + 4e-7 * posterior.kl().mean())


def learn_to_draw(transformer: Any, clean: torch.Tensor, states: Sequence[torch.Tensor], steps: int) -> None:
    """Predict the velocity from a picture to noise, at levels that the pipeline will pass through."""
    padded = torch.nn.utils.rnn.pad_sequence(list(states), batch_first=True)
    mask = torch.arange(padded.shape[1]) < torch.tensor([len(row) for row in states])[:, None]
    step = stepper(transformer, 2e-3, steps)
    for _ in range(steps):
        some = torch.randint(len(clean), (32,))
        level = torch.rand(len(some))
        level = SHIFT * level / (1 + (SHIFT - 1) * level)
        noise = torch.randn_like(clean[some])
        velocity = transformer(
            hidden_states=torch.lerp(clean[some], noise, level[:, None, None]), timestep=level, encoder_hidden_states=padded[some],
            encoder_hidden_states_mask=mask[some].long(), img_shapes=[[(1, TOKENS, TOKENS)]] * len(some), return_dict=False,
        )[0]  # fmt: skip
        step(functional.mse_loss(velocity, noise - clean[some]))


def whiten(transformer: Any, states: torch.Tensor) -> None:
    """Let the first layer begin with features of mean 0 and spread 1, for states (tokens, width).

    Most of a state is the same whatever the word: a few hundredths of its square tell the words apart, and training would take long to
    find them.
    """
    with torch.no_grad():
        normed = transformer.txt_norm(states)
        values, vectors = torch.linalg.eigh(torch.cov(normed.T))
        first = transformer.txt_in
        first.weight.copy_(first.weight @ (vectors * (values + 1e-3 * values.max()).rsqrt()) @ vectors.T)
        first.bias.sub_(first.weight @ normed.mean(0))


def stepper(part: Any, rate: float, steps: int) -> Any:
    """A function that takes one step down a loss; the learning rate rises at first and falls to nothing."""
    optimizer = torch.optim.AdamW(part.parameters(), lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.05)

    def step(loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(part.parameters(), 1.0)
        optimizer.step()
        schedule.step()

    return step
