"""``mlx-server``: ``mlx_lm.generate.BatchGenerator``, set up and driven as ``mlx_lm.server`` does."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mlxcel_engine.bench.loops.eos import ending_with
from mlxcel_engine.bench.timing import StreamToken
from mlxcel_engine.errors import RunError
from mlxcel_engine.paths.batch_generator import cannot_enter, open_generator
from mlxcel_engine.paths.evidence import mlx_lm_storage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlxcel_engine.bench.loops.base import LoopSettings, Prompts, StreamTokens
    from mlxcel_engine.loader.load import LoadedModel


class MlxServerLoop:
    """One batch generator for all requests, its prompt cache empty."""

    name = "mlx-server"
    chooses_storage = False
    caches_prompts = False

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded

    def unavailable(self, settings: LoopSettings) -> str | None:  # noqa: ARG002 - only the model matters
        """See :meth:`DecodeLoop.unavailable`."""
        return cannot_enter(self._loaded.model)

    @contextmanager
    def open(self, settings: LoopSettings) -> Iterator[MlxServerSession]:
        """See :meth:`DecodeLoop.open`."""
        generator = open_generator(self._loaded.model, settings.chunk, settings.batch)
        try:
            with ending_with(self._loaded.tokenizer, settings.eos_ids):
                yield MlxServerSession(self._loaded, generator, settings)
        finally:
            generator.close()


class MlxServerSession:
    """Requests join the generator; its steps are taken until all have ended. Implements :class:`Session`."""

    attention_calls = None
    adopted_tokens = 0

    def __init__(self, loaded: LoadedModel, generator: Any, settings: LoopSettings) -> None:
        from mlx_lm.models.cache import make_prompt_cache

        self._loaded, self._generator, self._settings = loaded, generator, settings
        self.chunk = settings.chunk
        caches = make_prompt_cache(loaded.model)
        self.storage = mlx_lm_storage(type(cache.merge([cache])).__name__ for cache in caches)

    def run(self, prompts: Prompts, max_tokens: int) -> StreamTokens:
        """See :meth:`Session.run`."""
        from mlx_lm.generate import make_stop_sequences
        from mlx_lm.sample_utils import make_sampler

        tokenizer, many = self._loaded.tokenizer, len(prompts)
        uids: list[int] = self._generator.insert_segments(
            segments=[[list(prompt)] for prompt in prompts],
            max_tokens=[max_tokens] * many,
            caches=[None] * many,
            all_tokens=[[] for _ in prompts],
            samplers=[make_sampler(temp=0.0) for _ in prompts],
            logits_processors=[[] for _ in prompts],
            stop_sequences=[make_stop_sequences(tokenizer) for _ in prompts],
        )
        streams = {uid: index for index, uid in enumerate(uids)}
        detokenizers = [tokenizer.detokenizer for _ in prompts]
        through = dict.fromkeys(uids, 0)
        running = many
        while running:
            processed, responses = self._generator.next()
            if not processed and not responses:
                raise RunError("BatchGenerator went idle before its requests ended")
            for part in processed:
                through[part.uid] = part.progress[0]
            if processed:
                self._settings.tell_prefill(sum(through.values()))
            for response in responses:
                stream = streams[response.uid]
                if response.finish_reason != "stop":
                    detokenizers[stream].add_token(response.token)
                if response.finish_reason is not None:
                    detokenizers[stream].finalize()
                    running -= 1
                yield StreamToken(stream, response.token, response.finish_reason)
