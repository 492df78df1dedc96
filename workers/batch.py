"""One batch, computed the same way on every rank, with a boundary after each stage and each denoising step."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pixelpod.v1 import group_pb2
from workers.boundary import NO_PART, Boundary, outcome_of
from workers.families import NotFinite
from workers.loading import overlaps_compiles
from workers.prompt_cache import PromptCache
from workers.run_ahead import RunAhead

if TYPE_CHECKING:
    import numpy as np

    from workers.compiles import CompileTracker
    from workers.devices import Device
    from workers.families import Conditioning, Denoising, Family

logger = logging.getLogger(__name__)

Stage = Literal["encode", "denoise", "decode"]
_COMPONENTS: dict[Stage, str] = {"encode": "text_encoder", "denoise": "transformer", "decode": "vae"}

T = TypeVar("T")


class BatchAborted(Exception):
    """The ranks gave a batch up together.

    Args:
        error: What this rank met; None where the batch was given up because nobody waits for it.
    """

    def __init__(self, error: Exception | None) -> None:
        super().__init__(f"batch given up: {type(error).__name__ if error else 'nobody waits for it'}")
        self.error = error


@dataclass
class StageSeconds:
    """Where a batch's time went, in seconds."""

    encode: float = 0.0
    denoise: float = 0.0
    decode: float = 0.0
    compile: float = 0.0
    """Within the others, on the slowest rank; `lead_batch` fills it in, since it takes all ranks to know."""


@dataclass(frozen=True)
class SlotNotes:
    """What a slot's encoders did not read, one sentence an encoder, without prompt text."""

    prompt: tuple[str, ...]
    negative_prompt: tuple[str, ...]


@dataclass
class BatchResult:
    """What came out of a batch."""

    pixels: np.ndarray[Any, Any] | None
    """(slots, height, width, 3) uint8, without the padding; None on ranks that don't decode."""
    not_finite: tuple[int, ...]
    """Slots whose pixels mean nothing, because the model computed values that are infinite or no numbers."""
    notes: list[SlotNotes]
    """One for each slot."""
    seconds: StageSeconds
    encoded: int
    """Prompts that went through the text encoders."""
    cached: int
    """Prompts whose embeddings were still there."""


class BatchRunner:
    """Computes batches on this rank.

    Args:
        family: The loaded model.
        device: Where it lies.
        compiles: Told for what a compile is paid.
        decodes: Whether this rank turns latents into pixels. Rank 0 does; the others have no part in that.
        run_ahead_steps: Denoising steps that may be in flight on the device when the host goes on.
        prompt_cache_bytes: Of embeddings of recent prompts, kept in host memory.
    """

    def __init__(
        self,
        family: Family,
        device: Device,
        compiles: CompileTracker,
        decodes: bool,
        run_ahead_steps: int,
        prompt_cache_bytes: int = 0,
    ) -> None:
        self.family = family
        self._device = device
        self.compiles = compiles
        self._decodes = decodes
        self._run_ahead_steps = run_ahead_steps
        self._prompts = PromptCache(prompt_cache_bytes)

    def run(
        self, batch: group_pb2.RunBatch, boundary: Boundary, on_step: Callable[[int], None] = lambda step: None
    ) -> BatchResult:
        """Compute `batch`, going past each boundary together with the other ranks.

        Args:
            batch: What to compute.
            boundary: Where this rank meets the others.
            on_step: Told the number of steps that the device has done, after each.

        Raises:
            BatchAborted: if rank 0 decided to give the batch up.
            WorldBroken: if the ranks no longer work together.
        """
        attempt = _Attempts(batch, boundary, self._device, self.compiles)
        try:
            prompts = attempt("encode", lambda: self._encode(batch))
            positives, negatives = prompts.positives, prompts.negatives
            denoising = attempt("denoise", lambda: self.family.start(batch, positives, negatives))
            run_ahead = RunAhead(self._device, self._run_ahead_steps)
            for step in range(1, batch.steps + 1):
                finish = run_ahead.step_dispatched if step < batch.steps else run_ahead.last_step_dispatched
                done_before = run_ahead.done
                attempt("denoise", lambda: self.family.step(denoising), finish)
                for done in range(done_before + 1, run_ahead.done + 1):
                    on_step(done)
            pixels: np.ndarray[Any, Any] | None = None
            not_finite: tuple[int, ...] = ()
            if self._decodes:
                pixels, not_finite = attempt("decode", lambda: self._decode(denoising))
            else:
                attempt.nothing()
        except BatchAborted:
            self.family.release()
            raise
        return BatchResult(
            pixels=None if pixels is None else pixels[: len(batch.slots)],
            not_finite=not_finite,
            notes=_notes(positives, negatives),
            seconds=attempt.seconds,
            encoded=prompts.encoded,
            cached=prompts.cached,
        )

    def out_of_memory(self, error: Exception) -> bool:
        """Tell whether a batch failed because the device's memory, or the host's, was full."""
        return self._device.out_of_memory(error)

    def submit_graphs(self, batches: Iterable[group_pb2.RunBatch]) -> None:
        """Compile the transformer's graphs for these batches at once, where that is possible, and compute nothing.

        It saves time only: whatever goes wrong here goes wrong again when one of the batches is run.
        """
        if not overlaps_compiles(self.family.model, self._device):
            return
        try:
            self._device.submit_graphs(partial(self._reach_transformer, batch) for batch in batches)
        except Exception as failure:  # noqa: BLE001 -- see above
            logger.warning("graphs will be compiled one after the other, because of %s", type(failure).__name__)

    def _reach_transformer(self, batch: group_pb2.RunBatch) -> None:
        try:
            bucket = f"{batch.width}x{batch.height}"
            with self.compiles.at(_COMPONENTS["encode"], bucket):
                prompts = self._encode(batch)
            with self.compiles.at(_COMPONENTS["denoise"], bucket, submits=True):
                self.family.step(self.family.start(batch, prompts.positives, prompts.negatives))
        finally:
            self.family.release()

    def _encode(self, batch: group_pb2.RunBatch) -> _Prompts:
        """Encode every slot's prompt, and its negative prompt where guidance has a pass of its own."""
        texts = [slot.prompt for slot in batch.slots]
        if guided := self.family.uses_guidance_pass(batch.guidance_scale):
            texts += [slot.negative_prompt for slot in batch.slots]
        found: dict[str, Conditioning] = {}
        encoded = 0
        for text in dict.fromkeys(texts):
            key = (text, batch.max_sequence_length)
            conditioning = self._prompts.get(key)
            if conditioning is None:
                conditioning = self.family.encode(text, batch.max_sequence_length)
                self._prompts.put(key, conditioning)
                encoded += 1
            found[text] = conditioning
        return _Prompts(
            positives=[found[slot.prompt] for slot in batch.slots],
            negatives=[found[slot.negative_prompt] for slot in batch.slots] if guided else None,
            encoded=encoded,
            cached=len(found) - encoded,
        )

    def _decode(self, denoising: Denoising) -> tuple[np.ndarray[Any, Any], tuple[int, ...]]:
        """Return the pixels of a batch and its slots that are not finite: these fail alone, their mates are good."""
        try:
            return self.family.decode(denoising), ()
        except NotFinite as error:
            return error.pixels, error.slots


@dataclass(frozen=True)
class _Prompts:
    """The conditionings of a batch."""

    positives: list[Conditioning]
    negatives: list[Conditioning] | None
    """None without a guidance pass."""
    encoded: int
    cached: int


class _Attempts:
    """Runs parts of one batch: each is tried, timed, and followed by a boundary."""

    def __init__(
        self,
        batch: group_pb2.RunBatch,
        boundary: Boundary,
        device: Device,
        compiles: CompileTracker,
    ) -> None:
        self.seconds = StageSeconds()
        self._bucket = f"{batch.width}x{batch.height}"
        self._boundary = boundary
        self._device = device
        self._compiles = compiles

    def __call__(self, stage: Stage, compute: Callable[[], T], finish: Callable[[], None] | None = None) -> T:
        """Return what `compute` returns, once all ranks may go on.

        Args:
            stage: What this is a part of.
            compute: Dispatches the work.
            finish: Waits for the device as long as it has to; None waits until all is computed.
        """
        started = time.monotonic()
        error: Exception | None = None
        try:
            with self._compiles.at(_COMPONENTS[stage], self._bucket):
                result = compute()
                # Asynchronous devices fail, and finish, only here.
                (finish or self._device.synchronize)()
        except Exception as failure:  # noqa: BLE001 -- whatever it is, the ranks decide together what it means
            error = failure
        setattr(self.seconds, stage, getattr(self.seconds, stage) + time.monotonic() - started)
        if error is not None:
            _log_failure(stage, error)
        self._meet(outcome_of(error), error)
        return result

    def nothing(self) -> None:
        """Have no part in a stage, but meet the others after it."""
        self._meet(NO_PART, None)

    def _meet(self, outcome: int, error: Exception | None) -> None:
        if self._boundary.agree(outcome) != group_pb2.VERDICT_CONTINUE:
            raise BatchAborted(error)


def _log_failure(stage: Stage, error: Exception) -> None:
    """Explain a failure. Where prompts are read, libraries may quote them in their messages: there only the place."""
    if stage == "encode":
        place = "".join(traceback.format_tb(error.__traceback__))
        logger.error("encode failed on this rank with %s at\n%s", type(error).__name__, place)
    else:
        logger.error("%s failed on this rank", stage, exc_info=error)


def _notes(positives: Sequence[Conditioning], negatives: Sequence[Conditioning] | None) -> list[SlotNotes]:
    unread_negatives = [negative.truncated for negative in negatives] if negatives else [()] * len(positives)
    return [SlotNotes(positive.truncated, unread) for positive, unread in zip(positives, unread_negatives, strict=True)]
