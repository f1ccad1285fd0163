"""A file of 100 MB on its whole way: from the runner through the operator's hands to a store, and to the caller."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from factories import NOW, UID, an_execution, take_part

from codeexec_api import OutputStoreRef, Phase
from codeexec_api.names import part_name
from codeexec_api.v1alpha1.bounds import MAX_STORED_BYTES
from codeexec_operator.adapters.output_store import OutputStore
from codeexec_operator.core.output_parts import PART_BYTES
from codeexec_operator.core.transcript import Transcript
from executor_client.client.execution import read_contents
from executor_client.model.results import artifact_content
from executor_client.transport import output_store as client
from executor_client.transport.outage import Retries

SIZE = 100_000_000
CODE = f"import os\nwith open('large', 'wb') as file:\n    for _ in range(100): file.write(os.urandom({SIZE // 100}))"
"""It can't be compressed."""
RUN = an_execution()


async def test_a_file_of_100_mb_reaches_the_caller_and_the_operator_holds_a_part_at_a_time(
    run: Any, tmp_path: Path
) -> None:
    url = (tmp_path / "store").as_uri()
    wanted = {"list": "None", "fetch": ["large"]}
    report = await asyncio.to_thread(run, CODE, id=UID, artifacts=wanted, fetchBytes=MAX_STORED_BYTES)

    store = OutputStore.open(url)
    transcript, most = Transcript.of(store.place), 0
    for line in [*report.raw.splitlines(), None]:
        if line is None:
            transcript.finish()
        else:
            transcript.take(json.loads(line), UID)
        most = max(most, transcript.parts.held_bytes)
        while part := take_part(transcript.parts):
            assert await store.create_output(RUN, part, NOW) is None
    assert transcript.done, transcript.problem
    assert most < 2 * PART_BYTES < SIZE / 50

    stored = OutputStoreRef(url=url, parts=tuple(map(part_name, transcript.parts.frames)))
    status = {"artifacts": transcript.kept_artifacts(), "output_store": stored, "exit_code": 0}
    record = an_execution(phase=Phase.SUCCEEDED, status=status)
    reader: Any = SimpleNamespace(read_output=client.OutputStore(url).read, patiently=Retries().patiently)
    content = artifact_content(record, "large", await read_contents(reader, record))
    assert len(content) == SIZE, "and it has the digest of the record, or there was an error"
