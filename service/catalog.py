"""The catalog: what all groups together serve, by model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pixelpod.server.errors import InvalidRequest, RequestError, Unavailable, UnknownModel
from pixelpod.v1 import images_pb2
from service.availability import Availability
from service.group_connection import CONTRACT_VERSION, GroupConnection

NAMES_LISTED = 10
"""How many model names an error message lists."""

NAME_CHARACTERS_SHOWN = 64
"""How much of an unknown model's name an error message repeats."""

RETRY_UNHEARD_SECONDS = 1.0
"""Groups that run answer a new frontend within this time."""

RETRY_INCOMPATIBLE_SECONDS = 10.0
"""During an update, groups of the frontend's own release may come."""


def served_models(groups: Iterable[GroupConnection]) -> dict[str, images_pb2.Model]:
    """Return the models of `groups` by name, sorted; also of groups that load, drain or are gone for now.

    Groups of one model are merged: a bucket is warm if it is on any ready group. Limits, defaults and measured times
    are those of a ready group where there is one.
    """
    models: dict[str, images_pb2.Model] = {}
    for group in sorted(groups, key=lambda group: (not group.ready, group.address)):
        if group.model is None:
            continue
        published = images_pb2.Model()
        published.CopyFrom(group.model)
        published.ready_groups = int(group.ready)
        for bucket in published.buckets:
            bucket.warm = bucket.warm and group.ready
        if published.name in models:
            _merge(models[published.name], published)
        else:
            models[published.name] = published
    return dict(sorted(models.items()))


def find_model(
    name: str, models: Mapping[str, images_pb2.Model], groups: Iterable[GroupConnection]
) -> images_pb2.Model:
    """Return the model called `name`, or the only one served where `name` is empty.

    Raises:
        UnknownModel: if no group serves it.
        InvalidRequest: if `name` is empty and there is a choice.
        Unavailable: if a group may serve it that was not heard yet, or that speaks another version of the contract.
    """
    if name in models:
        return models[name]
    if not name and len(models) == 1:
        return next(iter(models.values()))
    raise _no_model(name, models, groups)


def _no_model(name: str, models: Mapping[str, images_pb2.Model], groups: Iterable[GroupConnection]) -> RequestError:
    if not name and models:
        return InvalidRequest("model", f"model is empty and several are served; choose one of {_listed(models)}")
    incompatible = [group for group in groups if group.availability is Availability.INCOMPATIBLE]
    if incompatible:
        versions = " and ".join(str(version) for version in sorted({group.contract_version for group in incompatible}))
        return Unavailable(
            f"no group that can be used serves {_shown(name)}: {len(incompatible)} groups speak version {versions} of "
            f"the contract between frontends and groups, this frontend speaks {CONTRACT_VERSION}; frontends and groups "
            "must be of one release",
            reason="GROUPS_INCOMPATIBLE",
            retry_after_seconds=RETRY_INCOMPATIBLE_SECONDS,
        )
    unheard = [group for group in groups if group.model is None and group.availability is Availability.GONE]
    if unheard:
        return Unavailable(
            f"{len(unheard)} of the groups known did not answer yet, and the others do not serve "
            f"{_shown(name)}; try again",
            reason="GROUPS_UNREACHABLE",
            retry_after_seconds=RETRY_UNHEARD_SECONDS,
        )
    if not models:
        return Unavailable(
            "this frontend knows no group of a model that you may use: its DNS names or its file list none so far; "
            "try again",
            reason="NO_GROUP",
            retry_after_seconds=RETRY_UNHEARD_SECONDS,
        )
    return UnknownModel(f"{_shown(name)} is not served; choose one of {_listed(models)}")


def _merge(model: images_pb2.Model, other: images_pb2.Model) -> None:
    """Add to `model` what another group publishes of it."""
    model.ready_groups += other.ready_groups
    buckets = {(bucket.width, bucket.height): bucket for bucket in model.buckets}
    for bucket in other.buckets:
        known = buckets.get((bucket.width, bucket.height))
        if known is None:
            model.buckets.add().CopyFrom(bucket)
        else:
            known.warm = known.warm or bucket.warm


def _listed(models: Mapping[str, images_pb2.Model]) -> str:
    names = ", ".join(list(models)[:NAMES_LISTED])
    more = len(models) - NAMES_LISTED
    return f"{names} and {more} more (ListModels tells all)" if more > 0 else names


def _shown(name: str) -> str:
    """Return a model's name for a message: quoted, without control characters, not too long."""
    return f"model {name[:NAME_CHARACTERS_SHOWN]!a}" if name else "any model"
