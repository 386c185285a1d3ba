"""How the vectors of each family are read."""

from ..checks import Family
from . import llamagen

FAMILIES: dict[str, Family] = {"llamagen": llamagen.KINDS}
PLANNED = ("infinity", "janus", "lumina", "mar", "var")  # families of the design without a model class
