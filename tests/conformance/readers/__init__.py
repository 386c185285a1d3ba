"""Readers of each family's vectors."""

from ..checks import Family
from . import (
    emu3,
    fastvar,
    glm_image,
    infinity,
    infinity_rivals,
    janus,
    llamagen,
    llamagen_headkv,
    llamagen_zipar,
    lumina,
    mar,
    mar_disa,
    mar_halton,
    mar_lazy,
    mar_recap,
    mar_vae,
    skipvar,
    var,
)

FAMILIES: dict[str, Family] = {
    "emu3": emu3.KINDS, "glm_image": glm_image.KINDS,
    "infinity": {**infinity.KINDS, **infinity_rivals.KINDS, **fastvar.KINDS, **skipvar.KINDS},
    "janus": janus.KINDS, "llamagen": {**llamagen.KINDS, **llamagen_zipar.KINDS, **llamagen_headkv.KINDS},
    "lumina": lumina.KINDS,
    "mar": {**mar.KINDS, **mar_vae.KINDS, **mar_lazy.KINDS, **mar_recap.KINDS, **mar_halton.KINDS, **mar_disa.KINDS}, "var": var.KINDS,
}
