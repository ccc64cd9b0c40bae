"""Fail if the type of a public name is not known to every type checker: run it with the Python of the environment.

The names of `jqueue.django` are exempt. Django has no types, so the bases of our classes are unknown. django-stubs
would give types to them. But it makes classes generic that are not so in Django, and refuses the options that our
tasks have beside Django's. Some 20 annotations and 50 lines of tests would need another form. Users would see none of
it: their code is checked against the backend of the stubs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

EXEMPT = "jqueue.django."

# pyright looks for packages where the `python` of PATH does.
path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
command = [sys.executable, "-m", "pyright", "--verifytypes", "jqueue", "--ignoreexternal", "--outputjson"]
env = {**os.environ, "PATH": path, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
ended = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
symbols = json.loads(ended.stdout)["typeCompleteness"]["symbols"]
public = [each for each in symbols if each["isExported"] and not each["name"].startswith(EXEMPT)]
unknown = [each for each in public if not each["isTypeKnown"] or each["isTypeAmbiguous"]]
for each in unknown:
    print(each["name"], *(f"  {problem['message']}" for problem in each["diagnostics"]), sep="\n")
print(f"pyright: the types of {len(public) - len(unknown)} of {len(public)} public names are known")
sys.exit(bool(unknown) or not public)
