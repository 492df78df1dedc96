"""What a checkpoint must be before a group loads it: whole, of the model file's family, and fit for its shapes.

Nothing here reads a tensor or imports torch, so a refusal costs milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workers.checkpoint_files import Config, verify_weights
from workers.errors import ModelRefused
from workers.model_file import FamilyName, ModelFile, Placement

SCHEDULER_CLASS = "FlowMatchEulerDiscreteScheduler"
"""The only scheduler whose steps the denoise loop takes."""

WEIGHTS_STEMS = {"diffusers": "diffusion_pytorch_model", "transformers": "model"}
"""What each library calls the file of a component's weights, without its ending."""

TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "spiece.model", "tokenizer.model", "tekken.json")
"""The files that hold a vocabulary; any of them will do."""


@dataclass(frozen=True)
class Layout:
    """What a family's checkpoint consists of, and how it splits over ranks."""

    pipeline_class: str
    """model_index.json's `_class_name`."""
    components: Mapping[str, tuple[str, str]]
    """Folders with weights: their library and class, as model_index.json states them."""
    tokenizers: tuple[str, ...]
    """Folders of tokenizers."""
    sharded: tuple[tuple[str, ...], ...]
    """What tensor parallelism splits: a component, then the key of a number in its config.json. Empty: no plan."""


LAYOUTS: Mapping[FamilyName, Layout] = {
    FamilyName.FLUX: Layout(
        pipeline_class="FluxPipeline",
        components={
            "transformer": ("diffusers", "FluxTransformer2DModel"),
            "vae": ("diffusers", "AutoencoderKL"),
            "text_encoder": ("transformers", "CLIPTextModel"),
            "text_encoder_2": ("transformers", "T5EncoderModel"),
        },
        tokenizers=("tokenizer", "tokenizer_2"),
        sharded=(("transformer", "num_attention_heads"),),
    ),
    FamilyName.FLUX2: Layout(
        pipeline_class="Flux2Pipeline",
        components={
            "transformer": ("diffusers", "Flux2Transformer2DModel"),
            "vae": ("diffusers", "AutoencoderKLFlux2"),
            "text_encoder": ("transformers", "Mistral3ForConditionalGeneration"),
        },
        tokenizers=("tokenizer",),
        sharded=(
            ("transformer", "num_attention_heads"),
            ("text_encoder", "text_config", "num_attention_heads"),
            ("text_encoder", "text_config", "num_key_value_heads"),
            ("text_encoder", "text_config", "intermediate_size"),
        ),
    ),
    FamilyName.SD3: Layout(
        pipeline_class="StableDiffusion3Pipeline",
        components={
            "transformer": ("diffusers", "SD3Transformer2DModel"),
            "vae": ("diffusers", "AutoencoderKL"),
            "text_encoder": ("transformers", "CLIPTextModelWithProjection"),
            "text_encoder_2": ("transformers", "CLIPTextModelWithProjection"),
            "text_encoder_3": ("transformers", "T5EncoderModel"),
        },
        tokenizers=("tokenizer", "tokenizer_2", "tokenizer_3"),
        sharded=(),
    ),
}


def verify_checkpoint(model: ModelFile, ranks: int) -> None:
    """Check that `model`'s checkpoint can be served on `ranks` ranks.

    Raises:
        ModelRefused: if it can't; the message names the file or the key at fault, and the mend.
    """
    layout = LAYOUTS[model.family]
    _verify_placement(model, ranks)
    _verify_pipeline(model, layout)
    for component, (library, _) in layout.components.items():
        verify_weights(model.path / component, WEIGHTS_STEMS[library])
    configs = {name: Config.read(model.path / name / "config.json") for name in layout.components}
    _verify_tokenizers(model, layout)
    _verify_scheduler(model)
    if model.placement is Placement.TENSOR_PARALLEL:
        _verify_degree(model, ranks)
    _verify_buckets(model, configs)
    _verify_sequence_lengths(model, configs)
    if model.family is FamilyName.FLUX2:
        _verify_out_layers(model, configs)


def valid_degrees(model: ModelFile) -> list[int]:
    """Return the numbers of ranks that tensor parallelism can split `model` over, ascending; none without a plan.

    The transformer is split over all ranks. A text encoder with fewer heads is split over as many as it can be, and is
    there in several copies.

    Raises:
        ModelRefused: if a config is missing or damaged.
    """
    if not LAYOUTS[model.family].sharded:
        return []
    transformer, encoder = _common_factor(model, "transformer"), _common_factor(model, "text_encoder")
    return [
        ranks
        for ranks in range(1, transformer + 1)
        if transformer % ranks == 0 and (encoder % ranks == 0 or ranks % encoder == 0)
    ]


def sharing_ranks(model: ModelFile, component: str, ranks: int) -> int:
    """Return over how many of a group's `ranks` a component is split; there are ranks / that many copies of it."""
    return math.gcd(ranks, _common_factor(model, component))


def _common_factor(model: ModelFile, component: str) -> int:
    """Return the greatest number of ranks that can share a component; 0, which every number divides, without a plan."""
    sharded = (keys for name, *keys in LAYOUTS[model.family].sharded if name == component)
    return math.gcd(*(_sharded_number(model, component, keys) for keys in sharded))


def _sharded_number(model: ModelFile, component: str, keys: Sequence[str]) -> int:
    return Config.read(model.path / component / "config.json").integer(*keys)


def _verify_placement(model: ModelFile, ranks: int) -> None:
    tensor_parallel = model.placement is Placement.TENSOR_PARALLEL
    if tensor_parallel and not LAYOUTS[model.family].sharded:
        raise ModelRefused(
            f"model {model.name}: placement: family {model.family} has no tensor-parallel plan; use single or offload"
        )
    if ranks > 1 and not tensor_parallel:
        raise ModelRefused(
            f"model {model.name}: placement: a group of placement {model.placement} runs on one rank, not {ranks}; "
            "start one group for each device"
        )


def _verify_pipeline(model: ModelFile, layout: Layout) -> None:
    """Check what model_index.json says: the pipeline's class and the classes of its components."""
    if not model.path.is_dir():
        raise ModelRefused(f"model {model.name}: path: no folder {model.path}")
    index = Config.read(model.path / "model_index.json")
    found = index.value("_class_name")
    if found != layout.pipeline_class:
        raise ModelRefused(f"{index.file}: family {model.family} needs a {layout.pipeline_class}, not {found}")
    for component, expected in {**layout.components, "scheduler": ("diffusers", SCHEDULER_CLASS)}.items():
        if index.value(component) != list(expected):
            raise ModelRefused(f"{index.file}: {component} must be {' '.join(expected)}, not {index.value(component)}")


def _verify_tokenizers(model: ModelFile, layout: Layout) -> None:
    for tokenizer in layout.tokenizers:
        folder = model.path / tokenizer
        if not any((folder / name).is_file() for name in TOKENIZER_FILES):
            raise ModelRefused(f"{folder}: no tokenizer, one of {', '.join(TOKENIZER_FILES)} is needed")


def _verify_scheduler(model: ModelFile) -> None:
    config = Config.read(model.path / "scheduler" / "scheduler_config.json")
    found = config.value("_class_name")
    if found != SCHEDULER_CLASS:
        raise ModelRefused(f"{config.file}: _class_name must be {SCHEDULER_CLASS}, not {found}")
    if config.values.get("stochastic_sampling"):
        raise ModelRefused(f"{config.file}: stochastic_sampling must be false, or a seed would not fix its image")


def _verify_degree(model: ModelFile, ranks: int) -> None:
    degrees = valid_degrees(model)
    if ranks not in degrees:
        named = (
            f"{component}/config.json {'.'.join(keys)} {_sharded_number(model, component, keys)}"
            for component, *keys in LAYOUTS[model.family].sharded
        )
        raise ModelRefused(
            f"{model.path}: {ranks} ranks can't share {', '.join(named)}; valid degrees: {', '.join(map(str, degrees))}"
        )


def _verify_buckets(model: ModelFile, configs: Mapping[str, Config]) -> None:
    """Check the sizes against the pipelines' check_inputs, and SD3's against its table of positions."""
    transformer = configs["transformer"]
    # The three pipelines: vae_scale_factor = 2 ** (len(block_out_channels) - 1).
    pixels_per_latent = 2 ** (configs["vae"].length("block_out_channels") - 1)
    is_sd3 = model.family is FamilyName.SD3
    # FLUX packs 2 x 2 latents into a token, whatever its patch_size says.
    multiple = pixels_per_latent * (transformer.integer("patch_size") if is_sd3 else 2)
    largest = multiple * transformer.integer("pos_embed_max_size") if is_sd3 else None
    for bucket in model.buckets:
        for key, pixels in (("width", bucket.width), ("height", bucket.height)):
            where = f"model {model.name}: buckets: {bucket.width}x{bucket.height}: {key}"
            if pixels % multiple:
                raise ModelRefused(f"{where} must be a multiple of {multiple} for {model.path}")
            if largest is not None and pixels > largest:
                raise ModelRefused(f"{where} must be at most {largest}, by pos_embed_max_size in {transformer.file}")


def _verify_sequence_lengths(model: ModelFile, configs: Mapping[str, Config]) -> None:
    """Check against the pipelines' check_inputs, which take up to 512 tokens; FLUX.2 takes what its encoder does."""
    largest = 512
    if model.family is FamilyName.FLUX2:
        largest = configs["text_encoder"].integer("text_config", "max_position_embeddings")
    longest = max(model.limits.max_sequence_lengths)
    if longest > largest:
        raise ModelRefused(
            f"model {model.name}: limits.max_sequence_lengths: {longest} is above the {largest} tokens of {model.path}"
        )


def _verify_out_layers(model: ModelFile, configs: Mapping[str, Config]) -> None:
    """Check that the text encoder has the layers, and that together they are as wide as the transformer expects."""
    layers = model.text_encoder_out_layers
    where = f"model {model.name}: text_encoder_out_layers"
    last_layer = configs["text_encoder"].integer("text_config", "num_hidden_layers")
    if min(layers) < 0 or max(layers) > last_layer:
        raise ModelRefused(f"{where}: must be 0 to {last_layer} for {configs['text_encoder'].file}")
    width = len(layers) * configs["text_encoder"].integer("text_config", "hidden_size")
    expected = configs["transformer"].integer("joint_attention_dim")
    if width != expected:
        raise ModelRefused(f"{where}: {width} values a token, but {configs['transformer'].file} expects {expected}")
