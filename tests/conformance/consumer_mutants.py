from __future__ import annotations

from mutants import Mutant

MUTANTS: list[Mutant] = []
