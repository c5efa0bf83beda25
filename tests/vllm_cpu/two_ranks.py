"""Two processes of one run on this CPU, started as torch does it and without the product's launcher."""

import os
import subprocess
import sys
from pathlib import Path

import yaml

HERE = Path(__file__).parent


def started(script, config, folder, **variables):
    """Write the config, let two processes run `script CONFIG` in the folder, and return what they printed; fails if one of them does."""
    (folder / "two.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True)))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", str(HERE / script), "two.yaml"]
    own = {"PYTHONPATH": os.pathsep.join(map(str, (HERE.parents[1] / "src", HERE))), "GRPO_HOME": str(folder / "home")}
    done = subprocess.run(command, env=os.environ | own | variables, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout
