"""Models that are wrong in ways people get wrong, by family and kind of vector."""

from .masked import LAZY, MAR, VAE_DECODER, VAE_ENCODER
from .next_scale import INFINITY, VAR, VAR_TOKENIZER
from .next_token import JANUS, JANUS_VQ, LLAMAGEN, LLAMAGEN_VQ, LUMINA, LUMINA_VQ
from .wrong_model import WrongModel

CONTROLS: dict[tuple[str, str], list[WrongModel]] = {
    ("infinity", "small"): INFINITY, ("janus", "small"): JANUS, ("janus", "small_vq"): JANUS_VQ, ("llamagen", "small"): LLAMAGEN,
    ("llamagen", "small_vq"): LLAMAGEN_VQ, ("lumina", "small"): LUMINA, ("lumina", "small_vq"): LUMINA_VQ, ("mar", "small"): MAR,
    ("mar", "lazy"): LAZY, ("mar", "vae_decoder"): VAE_DECODER, ("mar", "vae_encoder"): VAE_ENCODER, ("var", "small"): VAR,
    ("var", "vqvae_full"): VAR_TOKENIZER,
}
