"""Readers of each family's vectors."""

from ..checks import Family
from . import (
    codecs,
    emu3,
    glm_image,
    infinity,
    infinity_rivals,
    infinity_savers,
    janus,
    llamagen,
    lumina,
    mar,
    mar_lazy,
    mar_passes,
    var,
    var_code,
)

FAMILIES: dict[str, Family] = {
    "codecs": codecs.KINDS, "emu3": emu3.KINDS, "glm_image": glm_image.KINDS,
    "infinity": {**infinity.KINDS, **infinity_rivals.KINDS, **infinity_savers.KINDS},
    "janus": janus.KINDS, "llamagen": llamagen.KINDS, "lumina": lumina.KINDS,
    "mar": {**mar.KINDS, **mar_lazy.KINDS, **mar_passes.KINDS}, "var": {**var.KINDS, **var_code.KINDS},
}
