"""Papers' claims, one file each: the system, the ablation that must lose, the figures that decide. The imports are the list."""

from . import bahdanau2014 as bahdanau2014
from . import bert2018 as bert2018
from . import completion2020 as completion2020
from . import complexity2017 as complexity2017
from . import gpt2018 as gpt2018
from . import gpt2020 as gpt2020
from . import linear2020 as linear2020
from . import longformer2020 as longformer2020
from . import lowrank2021 as lowrank2021
from . import luong2015 as luong2015
from . import memory2020 as memory2020
from . import mixers2021 as mixers2021
from . import performer2021 as performer2021
from . import recall2021 as recall2021
from . import reformer2020 as reformer2020
from . import sinkhorn2020 as sinkhorn2020
from . import span2019 as span2019
from . import transformer2017 as transformer2017
from . import xl2019 as xl2019
from ._base import Again as Again
from ._base import Claim as Claim
from ._base import Figures as Figures
from ._base import Outcome as Outcome
from ._base import Recipe as Recipe
from ._base import RecipeFacts as RecipeFacts
from ._base import Spread as Spread
from ._base import run as run

RECIPES: tuple[Recipe, ...] = tuple(
    sorted((part.recipe for part in list(vars().values()) if hasattr(part, "recipe")), key=lambda recipe: recipe.facts.year)
)
