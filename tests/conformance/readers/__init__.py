"""How the vectors of each family are read."""

from ..checks import Family
from . import llamagen, var

FAMILIES: dict[str, Family] = {"llamagen": llamagen.KINDS, "var": var.KINDS}
PLANNED = ("infinity", "janus", "lumina", "mar")  # families of the design without a model class
