"""How the vectors of each family are read."""

from ..checks import Family
from . import llamagen, mar, var

FAMILIES: dict[str, Family] = {"llamagen": llamagen.KINDS, "mar": mar.KINDS, "var": var.KINDS}
PLANNED = ("infinity", "janus", "lumina")  # families of the design without a model class
