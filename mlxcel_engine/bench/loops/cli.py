"""``cli``: ``stream_generate`` over ``generate_step``, as ``mlx_lm.generate`` and ``mlx_lm.benchmark`` call it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from mlxcel_engine.bench.loops.eos import ending_with
from mlxcel_engine.bench.timing import StreamToken
from mlxcel_engine.paths.evidence import mlx_lm_storage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlxcel_engine.bench.loops.base import LoopSettings, Prompts, StreamTokens
    from mlxcel_engine.loader.load import LoadedModel


class CliLoop:
    """The real command-line loop: one stream, its own EOS stop and detokenizer."""

    name = "cli"
    chooses_storage = False
    caches_prompts = False

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded

    def unavailable(self, settings: LoopSettings) -> str | None:
        """See :meth:`DecodeLoop.unavailable`."""
        return "it decodes one stream" if settings.batch > 1 else None

    @contextmanager
    def open(self, settings: LoopSettings) -> Iterator[CliSession]:
        """See :meth:`DecodeLoop.open`."""
        with ending_with(self._loaded.tokenizer, settings.eos_ids):
            yield CliSession(self._loaded, settings)


class CliSession:
    """Each request is a call of its own. Implements :class:`Session`."""

    attention_calls = None
    adopted_tokens = 0

    def __init__(self, loaded: LoadedModel, settings: LoopSettings) -> None:
        from mlx_lm.models.cache import make_prompt_cache

        self._loaded, self._settings = loaded, settings
        self.chunk = settings.chunk
        self.storage = mlx_lm_storage(type(cache).__name__ for cache in make_prompt_cache(loaded.model))

    def run(self, prompts: Prompts, max_tokens: int) -> StreamTokens:
        """See :meth:`Session.run`."""
        from mlx_lm.generate import stream_generate
        from mlx_lm.sample_utils import make_sampler

        (prompt,) = prompts
        for response in stream_generate(
            self._loaded.model,
            self._loaded.tokenizer,
            list(prompt),
            max_tokens=max_tokens,
            sampler=make_sampler(temp=0.0),
            prefill_step_size=self._settings.chunk,
            prompt_progress_callback=lambda done, _: self._settings.tell_prefill(done),
        ):
            yield StreamToken(0, response.token, response.finish_reason)
