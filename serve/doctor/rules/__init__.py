"""Every rule of the doctor, one file for each group or part of a group; importing the package registers them."""

import importlib
import pkgutil

from serve.doctor.rule import RULES, Rule

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def all_rules() -> list[Rule]:
    """Every rule, in the order of the groups and codes."""
    return sorted(RULES.values(), key=lambda rule: (rule.code[1:], rule.code))
