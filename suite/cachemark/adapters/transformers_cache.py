"""Cache methods as ``past_key_values`` of transformers models, with the attention that fills it.

A layer of transformers calls ``cache.update(k, v)`` and then an attention function with the queries. Methods need all three, so ``update``
returns its arguments and the attention function passes everything to the method.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin

from ..core.errors import Unsupported
from .decoding import MethodDecoding

NAME = "cachemark"  # of the attention function
KEYWORD = "cachemark_decoding"  # the decoder hands it on to the attention function
ARGUMENTS = ("cache", "past_key_values")  # names of the cache's argument: since transformers 5.24, and before


class AttachedLayer(CacheLayerMixin):
    """Length of a generation, in the form that transformers expects of each layer."""

    is_sliding = False

    def __init__(self, decoding: MethodDecoding) -> None:
        super().__init__()
        self._decoding = decoding

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the method allocates."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return keys and values of this pass; the attention function stores them."""
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the tokens so far, this pass included, and their offset."""
        return self._decoding.length + query_length, 0

    def get_seq_length(self) -> int:
        """Return the tokens of earlier passes, evicted ones included."""
        return self._decoding.length

    def get_max_length(self) -> int:
        """Return −1: positions are unlimited."""
        return -1

    get_max_cache_shape = get_max_length  # its name in earlier versions

    def reset(self) -> None:
        """Forget the current generation."""
        self._decoding.reset()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Raise Unsupported: rows of a method's state cannot be exchanged."""
        raise Unsupported("An attached cache cannot run beam search.", remedy="Generate with num_beams = 1.")


class AttachedCache(Cache):
    """A cache method as the ``past_key_values`` of ``generate``.

    Use it inside the block of :func:`cachemark.attach`, for one generation after the other with any batch size. After a generation that
    stopped before its last image token, call :meth:`reset`.
    """

    def __init__(self, decoding: MethodDecoding, unconditional: MethodDecoding | None = None) -> None:
        self._decoding, self._attached = decoding, False
        self._unconditional = AttachedCache(unconditional) if unconditional else None
        super().__init__(layers=[AttachedLayer(decoding) for _ in decoding.sites])

    def __repr__(self) -> str:
        return f"<cache {self._decoding.build().name}: {self.kv_bytes / 2**20:.2f} MiB of keys and values>"

    @property
    def _caches(self) -> list[AttachedCache]:
        return [self] if self._unconditional is None else [self, self._unconditional]

    @property
    def kv_bytes(self) -> int:
        """Bytes of live keys and values of all rows at the fullest step of the latest generation."""
        return sum(cache._decoding.kv_bytes for cache in self._caches)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return keys and values unchanged. Raises Unsupported outside of the block."""
        if not self._attached:
            raise Unsupported("The cache is used outside of its block.", remedy="Call generate inside `with cm.attach(…) as cache:`.")
        return key_states, value_states

    def reset(self) -> None:
        """Forget an unfinished generation."""
        for cache in self._caches:
            cache._decoding.reset()

    @contextmanager
    def attached_to(self, model: nn.Module, decoder: nn.Module, text: nn.Module | None = None) -> Iterator[AttachedCache]:
        """Run the attention of the model's decoder under the method inside the block.

        ``model.generate`` takes the cache under each of ``ARGUMENTS``. ``text``: the module that only text generation runs. Raises
        Unsupported if the decoder already has a cache.
        """
        config: Any = decoder.config
        before = config._attn_implementation
        if before == NAME:
            raise Unsupported("A cache is already attached to this model.", remedy="Leave its block first.")
        hooks = [decoder.register_forward_pre_hook(self._start_pass, with_kwargs=True)]
        if text is not None:
            hooks.append(text.register_forward_pre_hook(_refuse_text))
        own_generate = vars(model).get("generate")
        try:
            model.generate = _with_either_name(model.generate, _argument(decoder))  # type: ignore[assignment, arg-type]
            config._attn_implementation = NAME
            for cache in self._caches:
                cache._attached = True
            yield self
        finally:
            config._attn_implementation = before
            vars(model).pop("generate", None)
            if own_generate is not None:
                vars(model)["generate"] = own_generate
            for hook in hooks:
                hook.remove()
            for cache in self._caches:
                cache._attached = False

    def _start_pass(self, decoder: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Start a pass of the decoder: hook before its forward."""
        cache = self._of_pass(kwargs)
        inputs = kwargs["inputs_embeds"] if kwargs.get("inputs_embeds") is not None else kwargs["input_ids"]
        mask = kwargs.get("attention_mask")
        positions = cache._decoding.start_pass(inputs.size(0), inputs.size(1), None if mask is None else mask.to(inputs.device))
        if cache is self and self._unconditional and not self._decoding.fed:
            self._unconditional.reset()
        if positions is not None and kwargs.get("position_ids") is None:
            kwargs = {**kwargs, "position_ids": positions}
        kwargs = {name: value for name, value in kwargs.items() if name not in ARGUMENTS}
        return args, {**kwargs, _argument(decoder): cache, KEYWORD: cache._decoding}

    def _of_pass(self, kwargs: dict[str, Any]) -> AttachedCache:
        """Return the cache of a pass.

        Guidance by a second forward pass starts without one, and gets the unconditional one.
        """
        past = next((kwargs[name] for name in ARGUMENTS if kwargs.get(name) is not None), None)
        for cache in self._caches:
            if past is cache:
                return cache
        if past is None and self._unconditional and self._decoding.fed and kwargs.get("use_cache") is not False:
            self._unconditional.reset()
            return self._unconditional
        raise Unsupported("The model runs without its attached cache.", remedy="Pass it: generate(…, past_key_values=cache).")


def _argument(decoder: nn.Module) -> str:
    """Return the name under which a decoder takes its cache."""
    accepted = inspect.signature(type(decoder).forward).parameters
    return next(name for name in ARGUMENTS if name in accepted)


def _with_either_name(generate: Callable[..., Any], argument: str) -> Callable[..., Any]:
    """Return ``generate`` with the cache accepted under each name and passed on as ``argument``.

    transformers itself translates the older name in some classes only.
    """
    @wraps(generate)
    def renamed(*args: Any, **kwargs: Any) -> Any:
        return generate(*args, **{argument if name in ARGUMENTS else name: value for name, value in kwargs.items()})

    return renamed


def _refuse_text(*args: Any) -> None:
    raise Unsupported("The model generates text, but the attached cache is for images.",
                      remedy='Pass generation_mode = "image" to generate.')


def attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attend under the method of the pass, in the form of transformers: (rows, tokens, heads, head_dim)."""
    decoding: MethodDecoding | None = kwargs.get(KEYWORD)
    if decoding is None:
        raise Unsupported("A model that shares its config with an attached model is used.",
                          remedy="Use a separate config for each model: copy.deepcopy(config).")
    layer: Any = module.layer_idx
    return decoding.attend(layer, query, key, value).transpose(1, 2), None


AttentionInterface.register(NAME, attention)
