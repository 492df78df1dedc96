"""The model file: one YAML document that says which model a group serves, how, and within which limits.

Unknown, mistyped and repeated keys are refused by name, so that a typing error never turns into a silent default.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from workers.errors import ModelRefused


class FamilyName(StrEnum):
    """The pipeline families that a group can run."""

    FLUX = "flux"
    FLUX2 = "flux2"
    SD3 = "sd3"


class Placement(StrEnum):
    """How a model lies on devices."""

    SINGLE = "single"
    OFFLOAD = "offload"
    TENSOR_PARALLEL = "tensor_parallel"


class Execution(StrEnum):
    """How operators run."""

    EAGER = "eager"
    FUSED = "fused"
    COMPILED = "compiled"


class CompileScope(StrEnum):
    """What execution `compiled` compiles."""

    TRANSFORMER = "transformer"
    REPEATED_BLOCKS = "repeated_blocks"
    ALL = "all"


class OnWarmUpFailure(StrEnum):
    """What a group does about a bucket that fails in warm-up."""

    REFUSE = "refuse"
    SERVE_WITHOUT = "serve_without"


PositiveInt = Annotated[int, Field(ge=1)]
Dtype = Literal["float32", "bfloat16", "float16"]
OutputFormatName = Literal["PNG", "JPEG", "WEBP"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Bucket(_Section):
    """A static shape that the group warms and serves."""

    width: PositiveInt
    """Pixels."""
    height: PositiveInt
    """Pixels."""
    batch_sizes: tuple[PositiveInt, ...] = Field(default=(1,), min_length=1, strict=False)
    """Images computed together, ascending; a smaller batch is padded to the next of these."""

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        _require_ascending("batch_sizes", self.batch_sizes)
        return self

    def padded_batch_size(self, images: int) -> int:
        """Return the smallest batch size that holds `images`, or the largest where none does."""
        return next((size for size in self.batch_sizes if size >= images), self.batch_sizes[-1])


class IntegerRange(_Section):
    """Inclusive bounds of a whole number."""

    min: PositiveInt = 1
    max: PositiveInt

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError("min must not be above max")
        return self


class NumberRange(_Section):
    """Inclusive bounds of a number."""

    min: float
    max: float

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not (math.isfinite(self.max) and 0 <= self.min <= self.max):
            raise ValueError("min and max must be finite, 0 or more, min not above max")
        return self


class Limits(_Section):
    """What requests may ask for."""

    steps: IntegerRange = IntegerRange(min=1, max=50)
    """Denoising steps."""
    steps_served: tuple[PositiveInt, ...] = Field(default=(), strict=False)
    """The only numbers of steps served, ascending; empty: all within `steps`."""
    guidance_scale: NumberRange = NumberRange(min=0.0, max=20.0)
    """How strongly the prompt steers."""
    num_images: IntegerRange = IntegerRange(min=1, max=4)
    """Images per request."""
    max_sequence_lengths: tuple[PositiveInt, ...] = Field(min_length=1, strict=False)
    """Prompt lengths served, in tokens of the long text encoder; each is a static shape of its own."""
    max_prompt_bytes: PositiveInt = 16384
    """Bytes of the prompt, and of the negative prompt, in UTF-8."""

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        _require_ascending("max_sequence_lengths", self.max_sequence_lengths)
        _require_ascending("steps_served", self.steps_served)
        if not all(self.steps.min <= steps <= self.steps.max for steps in self.steps_served):
            raise ValueError("steps_served must be within steps")
        return self


class Defaults(_Section):
    """What a request gets that does not ask."""

    width: PositiveInt
    height: PositiveInt
    steps: PositiveInt
    guidance_scale: float
    max_sequence_length: PositiveInt
    num_images: PositiveInt = 1
    output_format: OutputFormatName = "PNG"
    quality: Annotated[int, Field(ge=1, le=100)] = 90


class ModelFile(_Section):
    """A validated model file. See docs/model-file.md."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
    """The name that requests use."""
    revision: str = ""
    """Which weights; part of every answer."""
    family: Annotated[FamilyName, Field(strict=False)]
    """The pipeline family."""
    path: Annotated[Path, Field(strict=False)]
    """The checkpoint's folder in diffusers layout; a relative path starts at the model file's folder."""
    dtype: Dtype = "bfloat16"
    """Type of weights and activations."""
    placement: Annotated[Placement, Field(strict=False)] = Placement.SINGLE
    """How the model lies on devices."""
    execution: Annotated[Execution, Field(strict=False)] = Execution.EAGER
    """How operators run."""
    compile_scope: Annotated[CompileScope, Field(strict=False)] = CompileScope.TRANSFORMER
    """What `compiled` compiles: the transformer, its repeated blocks, or text encoders and VAE decoder too."""
    cache_dir: Annotated[Path | None, Field(strict=False)] = None
    """Where compiled programs are kept for the next start; a relative path starts at the model file's folder."""
    on_warm_up_failure: Annotated[OnWarmUpFailure, Field(strict=False)] = OnWarmUpFailure.REFUSE
    """What happens when a bucket fails in warm-up: the group ends, or serves without the bucket."""
    deterministic: bool = False
    """Whether an image is bit-identical whatever else is computed at the same time: every batch then has the size of
    its bucket's largest."""
    buckets: tuple[Bucket, ...] = Field(min_length=1, strict=False)
    """The sizes served."""
    limits: Limits
    """What requests may ask for."""
    defaults: Defaults
    """What requests get that do not ask."""
    text_encoder_out_layers: tuple[int, ...] = Field(default=(10, 20, 30), min_length=1, strict=False)
    """flux2 only: the hidden layers of the text encoder that the transformer reads."""

    @model_validator(mode="after")
    def _largest_batches_only(self) -> Self:
        if self.deterministic:
            largest = [bucket.model_copy(update={"batch_sizes": bucket.batch_sizes[-1:]}) for bucket in self.buckets]
            object.__setattr__(self, "buckets", tuple(largest))  # frozen, but not before it is there
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        sizes = [(bucket.width, bucket.height) for bucket in self.buckets]
        if len(set(sizes)) != len(sizes):
            raise ValueError("buckets must have different sizes")
        defaults, limits = self.defaults, self.limits
        if (defaults.width, defaults.height) not in sizes:
            raise ValueError("defaults.width and defaults.height must be one of the buckets")
        if not limits.steps.min <= defaults.steps <= limits.steps.max:
            raise ValueError("defaults.steps must be within limits.steps")
        if limits.steps_served and defaults.steps not in limits.steps_served:
            raise ValueError("defaults.steps must be one of limits.steps_served")
        if not limits.guidance_scale.min <= defaults.guidance_scale <= limits.guidance_scale.max:
            raise ValueError("defaults.guidance_scale must be within limits.guidance_scale")
        if not limits.num_images.min <= defaults.num_images <= limits.num_images.max:
            raise ValueError("defaults.num_images must be within limits.num_images")
        if defaults.max_sequence_length not in limits.max_sequence_lengths:
            raise ValueError("defaults.max_sequence_length must be one of limits.max_sequence_lengths")
        if "text_encoder_out_layers" in self.model_fields_set and self.family is not FamilyName.FLUX2:
            raise ValueError("text_encoder_out_layers is for family flux2 only")
        return self

    @property
    def default_bucket(self) -> Bucket:
        """The bucket of the default size."""
        size = (self.defaults.width, self.defaults.height)
        return next(b for b in self.buckets if (b.width, b.height) == size)

    @property
    def largest_batch(self) -> int:
        """Images of the largest batch of any bucket."""
        return max(bucket.batch_sizes[-1] for bucket in self.buckets)

    def bucket(self, width: int, height: int) -> Bucket | None:
        """Return the bucket of this size in pixels, or None where it is not served."""
        return next((b for b in self.buckets if (b.width, b.height) == (width, height)), None)


def load_model_file(file: Path) -> ModelFile:
    """Read and check a model file; its folders come back absolute.

    Raises:
        ModelRefused: if the file is missing, is no YAML, or breaks the schema; the message names file and key.
    """
    try:
        document = yaml.load(file.read_text(encoding="utf-8"), _Loader)  # a SafeLoader
    except OSError as error:
        raise ModelRefused(f"model file {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ModelRefused(f"model file {file} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise ModelRefused(f"model file {file}: a mapping of keys is expected")
    try:
        model = ModelFile.model_validate(document)
    except ValidationError as error:
        raise ModelRefused(f"model file {file}: {_explain(error)}") from error
    folders = {"path": model.path, "cache_dir": model.cache_dir}
    absolute = {key: (file.parent / folder).resolve() for key, folder in folders.items() if folder is not None}
    return model.model_copy(update=absolute)


class _Loader(yaml.SafeLoader):
    """Refuses repeated keys, of which YAML would keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(problem=f"key {key} is repeated", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)


def _require_ascending(key: str, values: Sequence[int]) -> None:
    if list(values) != sorted(set(values)):
        raise ValueError(f"{key} must be ascending without repeats")


def _explain(error: ValidationError) -> str:
    """Return one line that names every key at fault, without pydantic's links."""
    faults = {fault["loc"]: fault for fault in error.errors(include_url=False, include_context=False)}
    explained = []
    for location, fault in faults.items():
        # A list with bad items is also found too short: tell of the items only.
        if any(other[: len(location)] == location for other in faults if other != location):
            continue
        key = ".".join(str(part) for part in location)
        message = "unknown key" if fault["type"] == "extra_forbidden" else fault["msg"].removeprefix("Value error, ")
        explained.append(f"{key}: {message}" if key else message)
    return "; ".join(explained)
