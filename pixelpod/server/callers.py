"""Callers: who they are, by their tokens, and what they may do. The tokens file lists them.

{"callers": [{"name": "shop", "token_sha256": ["9f86d0..."], "models": ["flux2-dev"], "images_per_minute": 120}]}

Only hashes of tokens are kept. Tokens are drawn with 256 bits, so a plain SHA-256 can't be searched for them.
"""

from __future__ import annotations

import hashlib
import hmac
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pixelpod.server.errors import PermissionDenied
from pixelpod.server.reloading import FileRefused, Reloaded, read_file

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Caller(BaseModel):
    """One who calls, as the tokens file has it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)

    name: str = Field(pattern=r"^[A-Za-z0-9._:-]{1,64}$")
    """Stands in logs."""
    token_sha256: list[Digest] = Field(repr=False)
    """SHA-256 of each valid token, in lower case hexadecimal: one, and while it is replaced two."""
    models: Literal["all"] | list[str]
    """Names of the models that it may use."""
    max_concurrent_requests: int | None = Field(default=None, ge=1)
    """Requests of its own in flight on one frontend."""
    images_per_minute: int | None = Field(default=None, ge=1)
    """Images it may ask one frontend for, a minute; as many may come at once."""

    @property
    def limited(self) -> bool:
        """Whether there is a limit on how much it may ask for."""
        return self.max_concurrent_requests is not None or self.images_per_minute is not None

    def may_use(self, model: str) -> bool:
        """Tell whether it may use the model of this name."""
        return self.models == "all" or model in self.models

    def check_model(self, model: str) -> None:
        """Check that it may use the model of this name, whether or not there is one.

        Raises:
            PermissionDenied: if it may not.
        """
        if not self.may_use(model):
            raise PermissionDenied(
                f"{self.name} may not use this model; ListModels tells which ones it may, and who keeps the tokens "
                "file can change that",
                reason="MODEL_NOT_ALLOWED",
                field="model",
            )


ANONYMOUS = Caller(name="anonymous", token_sha256=[], models="all")
"""Everybody, where no tokens are asked for."""

_current: ContextVar[Caller] = ContextVar("caller", default=ANONYMOUS)


def current_caller() -> Caller:
    """Return who made the call that this task, or the one that started it, handles."""
    return _current.get()


def enter_caller(caller: Caller) -> None:
    """From now on this task handles a call of `caller`. gRPC gives every call a task of its own."""
    _current.set(caller)


class TokensFile(BaseModel):
    """What the tokens file holds."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    callers: list[Caller]

    @model_validator(mode="after")
    def _unique(self) -> Self:
        names = [caller.name for caller in self.callers]
        tokens = [token for caller in self.callers for token in caller.token_sha256]
        if len(set(names)) < len(names) or len(set(tokens)) < len(tokens):
            raise ValueError("names and tokens must be unique")
        return self

    def find(self, token: str) -> Caller | None:
        """Return whose token this is. The time it takes does not tell how much of a token is right."""
        digest, found = token_digest(token), None
        for caller in self.callers:
            for known in caller.token_sha256:
                if hmac.compare_digest(known, digest):
                    found = caller
        return found


def token_digest(token: str) -> str:
    """Return the SHA-256 of `token` as the tokens file has it."""
    return hashlib.sha256(token.encode()).hexdigest()


def read_tokens_file(file: Path, *, limits_apply: bool) -> Reloaded[TokensFile]:
    """Return the callers, which follow their file.

    Args:
        file: The tokens file.
        limits_apply: Whether the server holds callers to limits; if not, a file that sets some is refused.

    Raises:
        FileRefused: if the file can't be used.
    """

    def load() -> TokensFile:
        try:
            tokens = TokensFile.model_validate_json(read_file(file))
        except ValidationError as error:
            # Without what stands there: it may be a token in the place of its hash.
            faults = (
                f"{'.'.join(map(str, fault['loc'])) or 'file'}: {fault['msg']}"
                for fault in error.errors(include_url=False, include_context=False, include_input=False)
            )
            raise FileRefused(f"tokens file {file}: {'; '.join(faults)}") from None
        if not limits_apply and any(caller.limited for caller in tokens.callers):
            raise FileRefused(f"tokens file {file}: limits of callers are for frontends; a group has none")
        return tokens

    return Reloaded([file], load)
