"""Loading a checkpoint as a diffusers pipeline: placed on the device, sharded across ranks, compiled."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import diffusers
import torch
import transformers
from diffusers import TensorParallelConfig
from transformers import DistributedConfig

from workers.checkpoint import sharing_ranks
from workers.devices import Device
from workers.model_file import CompileScope, Execution, ModelFile, Placement

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_REPEATED_BLOCKS = {"SD3Transformer2DModel": ["JointTransformerBlock"]}
"""The blocks of transformers for which diffusers names none."""

_SPARE_GRAPHS = 8
"""Recompiles allowed beyond the shapes that a model file names: torch's own default."""


class _Copies(DistributedConfig):
    """Tensor parallelism within each of several copies, which all compute the same."""

    @property
    def dp_size(self) -> int:
        """One batch for all copies. Of more transformers would synchronize gradients, which nobody computes here."""
        return 1


def load_pipeline(pipeline_class: Any, model: ModelFile, device: Device, **components: Any) -> Any:
    """Load a pipeline from the model's folder, never from the network, and make it ready to run.

    Args:
        pipeline_class: The diffusers pipeline class.
        model: Which weights, how they are placed and executed.
        device: Where they run.
        components: Parts of the pipeline that the caller loaded itself, such as a sharded transformer.
    """
    for library in (diffusers.utils.logging, transformers.utils.logging):
        library.disable_progress_bar()
    pipeline = pipeline_class.from_pretrained(
        model.path, dtype=_dtype(model), local_files_only=True, use_safetensors=True, **components
    )
    keep_prompts_out_of_logs(pipeline_class)
    device.adapt(pipeline)
    if model.execution is Execution.COMPILED:
        _compile(pipeline, model, device)
    if model.placement is Placement.OFFLOAD:
        pipeline.enable_model_cpu_offload(device=rank_device(device))
    else:
        pipeline.to(rank_device(device))
    return pipeline


def load_sharded_transformer(transformer_class: Any, model: ModelFile, device: Device, mesh: DeviceMesh) -> Any:
    """Load this rank's share of a diffusers transformer, by the class's own tensor-parallel plan.

    Only the rank's slices of planned weights are read from disk.
    """
    with device.sharding():
        return transformer_class.from_pretrained(
            model.path / "transformer",
            dtype=_dtype(model),
            local_files_only=True,
            use_safetensors=True,
            parallel_config=TensorParallelConfig(mesh=mesh),
        )


def load_sharded_text_encoder(encoder_class: Any, model: ModelFile, mesh: DeviceMesh) -> Any:
    """Load this rank's share of a transformers text encoder, by the class's own tensor-parallel plan.

    transformers shards over the whole world, which the mesh of a group is, or over parts of it that each hold a copy.
    With one rank nothing is sharded and the encoder comes back on the CPU, for the pipeline to move.
    """
    sharing = sharing_ranks(model, "text_encoder", mesh.size())
    return encoder_class.from_pretrained(
        model.path / "text_encoder",
        dtype=_dtype(model),
        local_files_only=True,
        use_safetensors=True,
        distributed_config=_Copies(tp_plan="auto", tp_size=sharing, dp_replicate_size=mesh.size() // sharing),
    )


def rank_device(device: Device) -> torch.device:
    """Return this process's device; torchrun tells a rank its number on the host in LOCAL_RANK."""
    return device.torch_device(int(os.environ.get("LOCAL_RANK", "0")))


def keep_prompts_out_of_logs(pipeline_class: Any) -> None:
    """Silence warnings that quote the part of a prompt an encoder did not read (law 9).

    diffusers logs them under the pipeline's module; transformers adds one about the length. `Conditioning.truncated`
    tells the same without the text.
    """
    for name in (pipeline_class.__module__, "transformers.tokenization_utils_base"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _dtype(model: ModelFile) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, model.dtype)
    return dtype


def _compile(pipeline: Any, model: ModelFile, device: Device) -> None:
    """Compile what the model file's scope says, each module at first use of each shape.

    It is the forward method that gets compiled, not the module: offload puts its hooks around the method, and they
    can't be traced.
    """
    shapes = sum(len(bucket.batch_sizes) for bucket in model.buckets) * len(model.limits.max_sequence_lengths)
    graphs = 2 * shapes + _SPARE_GRAPHS  # a guided batch has a shape of its own
    # Over either limit fullgraph raises. They count for this thread only.
    torch._dynamo.config.recompile_limit = graphs
    torch._dynamo.config.accumulated_recompile_limit = max(graphs, torch._dynamo.config.accumulated_recompile_limit)
    for module in _modules_in_scope(pipeline, model.compile_scope):
        overlapped = module is pipeline.transformer and overlaps_compiles(model, device)
        module.forward = device.compile(module.forward, overlapped)


def overlaps_compiles(model: ModelFile, device: Device) -> bool:
    """Tell whether the transformer's graphs of all buckets can be compiled at once.

    Not the graphs of its blocks, since the second block needs what the first one computes. Not with several ranks:
    whether torch_tpu compiles sharded graphs in any order was never tried on a slice.
    """
    whole = model.execution is Execution.COMPILED and model.compile_scope is not CompileScope.REPEATED_BLOCKS
    return whole and device.can_overlap_compiles and model.placement is not Placement.TENSOR_PARALLEL


def _modules_in_scope(pipeline: Any, scope: CompileScope) -> list[Any]:
    """Return the modules that are compiled, each on its own."""
    transformer = pipeline.transformer
    if scope is CompileScope.REPEATED_BLOCKS:
        names = transformer._repeated_blocks or _REPEATED_BLOCKS[type(transformer).__name__]
        return [module for module in transformer.modules() if type(module).__name__ in names]
    if scope is CompileScope.TRANSFORMER:
        return [transformer]
    encoders = [module for name, module in pipeline.components.items() if name.startswith("text_encoder")]
    for encoder in encoders:
        _install_capture_hooks(encoder)
    return [transformer, *encoders, pipeline.vae.decoder]


def _install_capture_hooks(encoder: Any) -> None:
    """Run a text encoder once as it is.

    transformers installs the hooks that capture hidden states at the first call that asks for them, which can't be
    traced.
    """
    with torch.no_grad():
        tokens = torch.zeros(1, 1, dtype=torch.long, device=encoder.device)
        encoder(input_ids=tokens, output_hidden_states=True)
