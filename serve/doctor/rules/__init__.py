"""The rules of the doctor; importing the package registers them.

The first line of each file names the group of its rules (`B2: ...`), or says that it only helps other files.
"""

import importlib
import pkgutil

from serve.doctor.rule import RULES, Rule

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def all_rules() -> list[Rule]:
    """Every rule, in the order of the groups and codes."""
    return sorted(RULES.values(), key=lambda rule: (rule.code[1:], rule.code))
