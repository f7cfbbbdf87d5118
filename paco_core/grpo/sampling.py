"""Sampling in training: batches of images, at once or panel by panel, that the processes share and the rewards score.

A story is an image whose panels are sampled one by one, each with panels before it as reference images. Any other
image has a single part, so one function samples both: :func:`sample_images`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image as pil

from paco_core.config.params import PolicyRecipe
from paco_core.data.records.panels import split_grid
from paco_core.data.records.records import PromptRecord
from paco_core.grpo.encoded_prompts import EncodedPrompts, starts
from paco_core.grpo.rollout import NoisyStep, Sampling, Trajectory, rollout
from paco_core.grpo.scoring import Scores, Scoring
from paco_core.grpo.sizes import ImageGrid, buckets
from paco_core.policies.base import NoiseKey, Policy, Size
from paco_core.policies.encoded import Condition, Encoded
from paco_core.training.processes import Processes

if TYPE_CHECKING:
    from PIL.Image import Image


Batches = Sequence[tuple[ImageGrid, Sequence[int]]]  # the grid of a batch's images, and their places in the epoch


def part_key(key: NoiseKey, part: int, grid: ImageGrid) -> NoiseKey:
    """The noise key of a part: that of a prompt ``<id>-<part>``."""
    return key if grid.parts == 1 else replace(key, prompt_id=f"{key.prompt_id}-{part}")


def sample_images(
    policy: Policy,
    prompts: EncodedPrompts,
    rows: Sequence[int],
    keys: Sequence[NoiseKey],
    sampling: Sampling,
    grid: ImageGrid,
) -> tuple[list[Image], list[Trajectory]]:
    """Sample images of one grid, part by part; the trajectories have one entry per part.

    Args:
        rows: of the images in ``prompts``.
        keys: the noise key of each image.
        sampling: of a part.
    """
    panels: list[list[Image]] = [[] for _ in rows]
    trajectories: list[Trajectory] = []
    for part in range(grid.parts):
        encoded, encoded_rows = prompts.conditions(policy, rows, part, panels, grid.part_size)
        part_keys = [part_key(key, part, grid) for key in keys]
        trajectories.append(rollout(policy, encoded, encoded_rows, part_keys, sampling))
        images = policy.decode(trajectories[-1].latents, grid.part_size)
        for finished, image in zip(panels, images, strict=True):
            finished.append(image)
    return [compose_grid(finished, grid.grid) for finished in panels], trajectories


def compose_grid(panels: Sequence[Image], grid: tuple[int, int]) -> Image:
    """An image from its panels, all of one size, in reading order."""
    if len(panels) == 1:
        return panels[0]
    (rows, columns), (width, height) = grid, panels[0].size
    image = pil.new("RGB", (columns * width, rows * height))
    for number, panel in enumerate(panels):
        image.paste(panel, (number % columns * width, number // columns * height))
    return image


def split_batches(places: Sequence[int], most: int, shares: int = 1, group_size: int = 1) -> list[list[int]]:
    """Split the places of images into batches of at most ``most``, whose number divides among processes.

    So no process waits for another one's last batch: 16 images in batches of at most 2 are 14 batches for seven
    processes, two of which hold 2. If there are fewer images than processes, each is a batch.

    Args:
        shares: processes that sample; for one process the batches are full.
        group_size: number of images of a prompt, which stay in one batch because a groupwise reward compares them.
    """
    if shares == 1:
        return [list(places[start : start + most]) for start in range(0, len(places), most)]
    groups = np.array(places).reshape(-1, group_size)
    batches = -(-len(groups) // max(1, most // group_size))
    batches = min(len(groups), -(-batches // shares) * shares)
    return [part.ravel().tolist() for part in np.array_split(groups, batches)]


def sample_batches(
    policy: Policy,
    prompts: EncodedPrompts,
    batches: Batches,
    rows: Sequence[int],
    keys: Sequence[NoiseKey],
    samplings: Mapping[Size, Sampling],
    processes: Processes,
) -> Iterator[tuple[int, list[Image], list[Trajectory]]]:
    """Sample this process's share of the batches: number, images, and trajectories of each.

    Args:
        rows, keys: row of the prompts and noise key of each image, by its place.
        samplings: by the size of a part.
    """
    for number, (grid, places) in enumerate(batches):
        if processes.owns(number):
            batch_rows, batch_keys = [rows[place] for place in places], [keys[place] for place in places]
            images, trajectories = sample_images(
                policy, prompts, batch_rows, batch_keys, samplings[grid.part_size], grid
            )
            yield number, images, trajectories
    size = batches[0][0].part_size
    passes = [number for number, (grid, _) in enumerate(batches) for _ in range(grid.parts)]
    for _ in range(processes.dummy_passes(passes)):
        rollout(policy, *prompts.conditions(policy, rows[:1], 0, [[]], size), keys[:1], samplings[size])


def gather_image(image: Image | None, size: Size, processes: Processes) -> Image:
    """An image in every process, from the process that sampled it; ``image`` is None in the other processes."""
    if processes.world_size == 1 and image is not None:
        return image
    pixels = np.zeros((*size, 3), np.uint8) if image is None else np.asarray(image)
    return pil.fromarray(processes.all_reduce_array(pixels))


@dataclass(frozen=True)
class Bucket:
    """Samples of one size.

    ``samples``: their places in the epoch, ascending, (B,); ``noisy_steps``: one entry per trained noise step, B rows
    each; ``clean``: latents (B, L, C) if the loss needs them.
    """

    sampling: Sampling
    samples: np.ndarray
    noisy_steps: dict[int, NoisyStep]
    clean: torch.Tensor | None = None


@dataclass(frozen=True)
class Experience:
    """One epoch's samples, group after group: encoded prompt, noise key and advantage of each (N,).

    The advantage is NaN if a sample has no score: no loss learns from it. ``kl_mask``: 1 where the KL counts and 0
    where it does not (N,); None = it counts everywhere. ``first``: if an image has several samples, the panels of a
    story, the first sample of each image and the number of all (images + 1,); None = one sample per image.
    """

    encoded: Encoded
    rows: Sequence[int]
    keys: Sequence[NoiseKey]
    advantages: np.ndarray
    buckets: Sequence[Bucket]
    kl_mask: np.ndarray | None = None
    first: Sequence[int] | None = None

    def conditions(self, samples: Sequence[int]) -> Condition:
        return self.encoded.take([self.rows[sample] for sample in samples])

    def spans(self, updates: int) -> list[range]:
        """The samples of each update; each update has its own share of the groups."""
        first = range(len(self.rows) + 1) if self.first is None else self.first
        groups_per_update = (len(first) - 1) // updates
        return [
            range(first[number * groups_per_update], first[(number + 1) * groups_per_update])
            for number in range(updates)
        ]

    def with_advantages(self, advantages: np.ndarray, kl_mask: np.ndarray | None = None) -> Experience:
        """The same with the values of each image (images,) at all of its samples."""
        counts = 1 if self.first is None else np.diff(self.first)
        mask = None if kl_mask is None else np.repeat(kl_mask, counts)
        return replace(self, advantages=np.repeat(advantages, counts), kl_mask=mask)


@dataclass(frozen=True)
class Sampler:
    """Samples the groups of an epoch.

    Attributes:
        records: the training prompts, encoded in ``prompts``.
        keeps: tensors of :class:`NoisyStep` that the loss needs.
        keeps_clean: whether the loss needs the clean latents.
    """

    policy: Policy
    recipe: PolicyRecipe
    records: Sequence[PromptRecord]
    prompts: EncodedPrompts
    keeps: frozenset[str]
    keeps_clean: bool
    scoring: Scoring
    processes: Processes

    def sample(
        self, rows: Sequence[int], keys: Sequence[NoiseKey], noise_steps: Sequence[int]
    ) -> tuple[Experience, Callable[[], Scores]]:
        """Sample all groups; the advantages are NaN until the scores of the images are known.

        Args:
            rows: row of the prompts for each image, group after group.
            keys: the noise key of each image.
            noise_steps: steps of this epoch that are noisy.

        Returns:
            The same experience in every process, and a function that waits for the scores of all images.
        """
        grids = [self._grid(self.records[row]) for row in rows]
        batches = [
            (grid, batch)
            for grid, places in buckets(grids).items()
            for batch in split_batches(places, self.recipe.rollout_batch)
        ]
        samplings = {grid.part_size: self._sampling(grid.part_size, noise_steps) for grid, _ in batches}
        scoring = self.scoring.round(keys[0].seed)
        sampled: dict[int, Image] = {}
        trajectories: dict[int, list[Trajectory]] = {}
        for number, images, parts in sample_batches(
            self.policy, self.prompts, batches, rows, keys, samplings, self.processes
        ):
            places = batches[number][1]
            scoring.add([self.records[rows[place]] for place in places], images)
            sampled |= zip(places, images, strict=True)
            trajectories[number] = parts
        scoring.flush()
        first = starts([grid.parts for grid in grids])
        sample_buckets = [
            self._bucket(grid, part, samplings[grid.part_size], batches, first, trajectories)
            for grid in dict.fromkeys(grid for grid, _ in batches)
            for part in range(grid.parts)
        ]
        encoded, sample_rows = list(self.prompts.encoded.rows), [0] * first[-1]
        for number, (grid, places) in enumerate(batches):
            of_parts = self._conditions(grid, places, rows, sampled, trajectories.get(number))
            for part, (source, source_rows) in enumerate(of_parts):
                begin = 0 if source is self.prompts.encoded else len(encoded)
                encoded += [] if begin == 0 else source.rows
                for place, row in zip(places, source_rows, strict=True):
                    sample_rows[first[place] + part] = begin + row
        experience = Experience(
            Encoded(encoded, self.prompts.encoded.device),
            sample_rows,
            [part_key(key, part, grid) for key, grid in zip(keys, grids, strict=True) for part in range(grid.parts)],
            np.full(first[-1], np.nan),
            sample_buckets,
            first=first,
        )
        return experience, lambda: scoring.result().scatter(list(sampled), len(rows), self.processes)

    def _grid(self, record: PromptRecord) -> ImageGrid:
        recipe, multiple = self.recipe, self.policy.multiple
        return ImageGrid.from_record(record, recipe.train_size, recipe.record_size, multiple, self.prompts.predecessors)

    def _sampling(self, size: Size, noise_steps: Sequence[int]) -> Sampling:
        recipe = self.recipe
        return Sampling.for_policy(
            self.policy,
            size,
            recipe.sampling_steps,
            recipe.guidance,
            noise_steps=noise_steps,
            noise_level=recipe.noise_level,
            dynamics=recipe.dynamics,
            shared_noise=recipe.shared_noise,
            keeps=self.keeps,
            train_steps=recipe.train_steps or (),
        )

    def _conditions(
        self,
        grid: ImageGrid,
        places: Sequence[int],
        rows: Sequence[int],
        sampled: Mapping[int, Image],
        trajectories: Sequence[Trajectory] | None,
    ) -> list[tuple[Encoded, Sequence[int]]]:
        """The conditions of each part of a batch; ``trajectories`` is None if another process sampled the batch."""
        panels: list[list[Image]] = [[] for _ in places]
        if grid.parts > 1 and self.processes.world_size > 1:
            images = [gather_image(sampled.get(place), grid.size, self.processes) for place in places]
            panels = [
                split_grid(image, self.records[rows[place]].layout) for image, place in zip(images, places, strict=True)
            ]
        if trajectories is not None:
            return [(trajectory.encoded, trajectory.rows) for trajectory in trajectories]
        own_rows = [rows[place] for place in places]
        return [
            self.prompts.conditions(self.policy, own_rows, part, panels, grid.part_size) for part in range(grid.parts)
        ]

    def _bucket(
        self,
        grid: ImageGrid,
        part: int,
        sampling: Sampling,
        batches: Batches,
        first: Sequence[int],
        trajectories: Mapping[int, Sequence[Trajectory]],
    ) -> Bucket:
        """One part of the images of one grid, from all processes: an update may train any of them anywhere."""
        places = {number: batch for number, (of_batch, batch) in enumerate(batches) if of_batch == grid}
        by_number = {number: trajectories[number][part] for number in places if number in trajectories}
        one_process = self.processes.world_size == 1
        latent = () if one_process else self.policy.noise(sampling.size, [NoiseKey("shape", 0, 0)]).shape[1:]

        def join(tensors: Sequence[torch.Tensor], shape: Sequence[int] = latent) -> torch.Tensor:
            """The rows of all batches in their order; a row has this shape."""
            if one_process:
                return torch.cat(list(tensors))
            parts, rows = dict(zip(by_number, tensors, strict=True)), list[torch.Tensor]()
            for number, batch in places.items():
                empty = torch.zeros((len(batch), *shape), device=self.policy.device)
                rows.append(parts[number].to(empty.dtype) if number in parts else empty)
            return self.processes.all_reduce(torch.cat(rows))

        shapes = {"before": latent, "after": latent, "log_prob": (), "mean": latent}
        shapes = {name: shape for name, shape in shapes.items() if name in sampling.keeps | {"before", "after"}}
        noisy_steps: dict[int, NoisyStep] = {}
        for position, step in enumerate(filter(sampling.is_trained, sampling.noise_steps)):
            steps = [trajectory.noisy_steps[position] for trajectory in by_number.values()]
            tensors = {name: join([getattr(noisy, name) for noisy in steps], shape) for name, shape in shapes.items()}
            noisy_steps[step] = NoisyStep(step, **tensors)
        clean = join([trajectory.latents for trajectory in by_number.values()]) if self.keeps_clean else None
        samples = np.array([first[place] + part for batch in places.values() for place in batch])
        return Bucket(sampling, samples, noisy_steps, clean)
