"""What a request may ask of the sampling chain, with llama.cpp's names, order and sentinels. No MLX."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from mlxcel_engine.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_BREAKERS: Final = ("\n", ":", '"', "*")

_Fraction = Annotated[float, Field(ge=0, le=1)]
_Positive = Annotated[float, Field(ge=1e-6, le=1e6)]  # these bounds keep every step finite in float32
_NonNegative = Annotated[float, Field(ge=0, le=1e6)]
_Signed = Annotated[float, Field(ge=-1e6, le=1e6)]
_Window = Annotated[int, Field(ge=-1)]
_Count = Annotated[int, Field(ge=0, lt=2**31)]  # the device's whole numbers


def _bias_keys(value: object) -> object:
    """JSON has string keys, and ``false`` for "never", as llama.cpp's server takes it."""
    if not isinstance(value, dict):
        return value
    return {
        int(key) if isinstance(key, str) and key.isdigit() else key: -math.inf if bias is False else bias
        for key, bias in value.items()
    }


def _bias_values(value: dict[int, float]) -> dict[int, float]:
    for token, bias in value.items():
        if token < 0:
            raise ValueError(f"token {token}: ids are 0 or more")
        if not (0 < abs(bias) <= 1e6 or bias == -math.inf):
            raise ValueError(f"token {token}: {bias} is no bias; give one up to 1e6, not 0, or -inf (JSON: false)")
    return value


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


_Bias = Annotated[
    dict[int, Annotated[float, Field(allow_inf_nan=True)]], BeforeValidator(_bias_keys), AfterValidator(_bias_values)
]
_Breakers = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_as_tuple)]

# An option that refines another one, and what has to be on for it to act.
_REFINES: Final = {
    "repeat_last_n": ("repeat_penalty", "frequency_penalty", "presence_penalty"),
    "dry_base": ("dry_multiplier",),
    "dry_allowed_length": ("dry_multiplier",),
    "dry_penalty_last_n": ("dry_multiplier",),
    "dry_sequence_breakers": ("dry_multiplier",),
    "dynatemp_exponent": ("dynatemp_range",),
    "xtc_threshold": ("xtc_probability",),
    "mirostat_tau": ("mirostat",),
    "mirostat_eta": ("mirostat",),
    "min_keep": ("typical_p", "top_p", "min_p", "xtc_probability"),
}
_FILTERS: Final = ("top_k", "typical_p", "top_p", "min_p", "xtc_probability")


class SamplingConfig(BaseModel):
    """The settings of one request; the default instance is greedy with nothing else on.

    Refused, because it would have no effect: a filter, dynamic temperature or mirostat at temperature 0 (greedy),
    a filter or dynamic temperature beside mirostat (which replaces them), and a refining option whose subject is
    off. A window of 0 is an explicit "off" and is accepted beside what it turns off. A negative ``top_k`` is off,
    as in llama.cpp. ``seed`` None means: draw one (see :func:`resolve_sampling`); it does not matter to greedy.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    logit_bias: _Bias = Field(default_factory=dict)
    repeat_penalty: _Positive = 1.0
    frequency_penalty: _Signed = 0.0
    presence_penalty: _Signed = 0.0
    repeat_last_n: _Window = 64
    dry_multiplier: _NonNegative = 0.0
    dry_base: Annotated[float, Field(ge=1, le=1e6)] = 1.75
    dry_allowed_length: _Count = 2
    dry_penalty_last_n: _Window = -1
    dry_sequence_breakers: _Breakers = DEFAULT_BREAKERS
    top_k: int = 0
    typical_p: _Fraction = 1.0
    top_p: _Fraction = 1.0
    min_p: _Fraction = 0.0
    xtc_probability: _Fraction = 0.0
    xtc_threshold: Annotated[float, Field(ge=0, le=0.5)] = 0.1
    temperature: _NonNegative = 0.0
    dynatemp_range: _NonNegative = 0.0
    dynatemp_exponent: _NonNegative = 1.0
    mirostat: Literal[0, 1, 2] = 0
    mirostat_tau: _Positive = 5.0
    mirostat_eta: _Positive = 0.1
    min_keep: _Count = 0
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None

    @classmethod
    def parse(cls, mapping: Mapping[str, Any]) -> SamplingConfig:
        """Make a config of a parsed JSON object (anything else is refused too).

        Raises:
            UsageError: an unknown key, a value outside its range, or an option without effect; one line.

        """
        try:
            return cls.model_validate(mapping)
        except ValidationError as error:
            raise UsageError(_one_line(error)) from None

    @classmethod
    def seeded(cls, seed: int) -> SamplingConfig:
        """The ``seeded`` parity case: every stage that llama.cpp users commonly switch on, drawn from ``seed``.

        Penalties and DRY look back over 64 tokens.
        """
        return cls(
            temperature=0.8,
            top_k=40,
            top_p=0.95,
            min_p=0.05,
            repeat_penalty=1.1,
            frequency_penalty=0.1,
            presence_penalty=0.1,
            dry_multiplier=0.8,
            dry_penalty_last_n=64,
            seed=seed,
        )

    @property
    def greedy(self) -> bool:
        """Whether the token is the likeliest one (after bias and penalties), without a draw."""
        return self.temperature == 0

    @property
    def penalizes(self) -> bool:
        """Whether repetition, frequency or presence penalties change anything."""
        return self.repeat_last_n != 0 and any(self.is_on(name) for name in _REFINES["repeat_last_n"])

    @property
    def dry(self) -> bool:
        """Whether DRY changes anything."""
        return self.dry_multiplier > 0 and self.dry_penalty_last_n != 0

    @property
    def order(self) -> tuple[str, ...]:
        """The stages that act, in the order in which they do."""
        stages = {
            "logit_bias": bool(self.logit_bias),
            "penalties": self.penalizes,
            "dry": self.dry,
            "top_k": self.is_on("top_k"),
            "typical_p": self.is_on("typical_p"),
            "top_p": self.is_on("top_p"),
            "min_p": self.is_on("min_p"),
            "xtc": self.is_on("xtc_probability"),
            "greedy": self.greedy,
            "temperature": not self.greedy and not self.dynatemp_range,
            "dynamic_temperature": self.dynatemp_range > 0,
            f"mirostat_{self.mirostat}": self.mirostat > 0,
        }
        return tuple(name for name, acts in stages.items() if acts)

    def effective(self) -> dict[str, Any]:
        """What a record has to say beside the settings: order, windows in tokens (0 off, -1 all) and seed."""
        return {
            "order": list(self.order),
            "repeat_last_n": self.repeat_last_n if self.penalizes else 0,
            "dry_penalty_last_n": self.dry_penalty_last_n if self.dry else 0,
            "seed": None if self.greedy else self.seed,
        }

    def is_on(self, name: str) -> bool:
        """Whether the option ``name`` is set to something that acts (a negative ``top_k`` is off)."""
        value = getattr(self, name)
        return bool(value > 0) if name == "top_k" else bool(value != type(self).model_fields[name].default)

    @model_validator(mode="after")
    def _refuse_what_has_no_effect(self) -> SamplingConfig:
        for name, subjects in _REFINES.items():
            if self.is_on(name) and not any(self.is_on(subject) for subject in subjects):
                raise ValueError(f"{name}={getattr(self, name)!r} has no effect without {' or '.join(subjects)}")
        if 0 < self.temperature < 1e-6:
            raise ValueError(f"temperature={self.temperature} is not in its range: {_RANGES['temperature']}")
        needed = max(self.dry_allowed_length, 1)
        if self.dry and 0 < self.dry_penalty_last_n <= needed:
            last_n = f"dry_penalty_last_n={self.dry_penalty_last_n}"
            raise ValueError(f"{last_n} has no effect: it must be above dry_allowed_length (and 1), so above {needed}")
        drawing = [name for name in (*_FILTERS, "dynatemp_range", "mirostat") if self.is_on(name)]
        if self.greedy and drawing:
            raise ValueError(f"{drawing[0]} has no effect at temperature 0 (greedy); set a temperature or remove it")
        if self.mirostat and len(drawing) > 1:
            raise ValueError(f"{drawing[0]} has no effect beside mirostat, which replaces it; remove one of them")
        return self


def _one_line(error: ValidationError) -> str:
    """Name the first thing that is wrong with its value and, where it has one, its range."""
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"sampling option {name!r} is not known; known: {', '.join(sorted(SamplingConfig.model_fields))}"
    message = first["msg"].removeprefix("Value error, ")
    if not name:
        return f"sampling: {message}"
    if first["type"] == "value_error":
        return f"sampling {name}: {message}"
    return f"sampling {name}={first['input']!r}: {message}{_range(str(first['loc'][0]))}"


def _range(name: str) -> str:
    """The range of a field in words, or nothing."""
    text = _RANGES.get(name)
    return f" (range: {text})" if text else ""


_RANGES: Final = {
    **dict.fromkeys(("typical_p", "top_p", "min_p", "xtc_probability"), "0 to 1"),
    **dict.fromkeys(("repeat_penalty", "mirostat_tau", "mirostat_eta"), "1e-6 to 1e6"),
    **dict.fromkeys(("dynatemp_range", "dynatemp_exponent", "dry_multiplier"), "0 to 1e6"),
    **dict.fromkeys(("dry_allowed_length", "min_keep"), "0 or more, whole"),
    **dict.fromkeys(("repeat_last_n", "dry_penalty_last_n"), "-1 for all, 0 for off, or more, whole"),
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), "-1e6 to 1e6"),
    "xtc_threshold": "0 to 0.5",
    "dry_base": "1 to 1e6",
    "temperature": "0 for greedy, or 1e-6 to 1e6",
    "mirostat": "0, 1 or 2",
    "top_k": "a whole number, 0 or less for off",
    "seed": "0 to 2**64-1, whole",
    "dry_sequence_breakers": "a list of strings, none empty",
    "logit_bias": "an object of token id: bias",
}
