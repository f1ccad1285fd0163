"""An AutoGen agent writes Python and shell, and the cluster runs it.

The model is AutoGen's replay client with the answers below, so no API key is needed. Everything else is real: the agent
finds the code blocks in the answer, the executor runs them in a hardened pod, and the example prints the call's
OpenTelemetry span at the end.
"""

import asyncio

from autogen_agentchat.agents import ApprovalRequest, ApprovalResponse, CodeExecutorAgent
from autogen_agentchat.messages import CodeExecutionEvent
from autogen_ext.models.replay import ReplayChatCompletionClient
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from executor_client import KubernetesCodeExecutor

ANSWER = """\
Let me compute it, and look at the sandbox from inside.

```python
print("The sum of the first 100 squares is", sum(n * n for n in range(1, 101)))
```

```bash
echo "user:            $(id -u):$(id -g)"
grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status
touch /usr/probe 2>/dev/null && echo "root: writable" || echo "root file system: read-only"
test -e /var/run/secrets/kubernetes.io && echo "token: mounted" || echo "service account: no token"
```
"""
SUMMARY = "The sum of the first 100 squares is 338350. The sandbox has no privileges that could be abused."


def approve(request: ApprovalRequest) -> ApprovalResponse:
    """AutoGen asks this before each call. A real application would show `request.code` to a user."""
    return ApprovalResponse(approved=True, reason=f"{len(request.code)} characters, written above")


async def main() -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)

    model = ReplayChatCompletionClient([ANSWER, SUMMARY])
    async with KubernetesCodeExecutor(timeout=30, agent="hello-agent") as executor:
        agent = CodeExecutorAgent(
            "coder",
            code_executor=executor,
            model_client=model,
            supported_languages=["python", "bash"],
            approval_func=approve,
        )
        async for message in agent.run_stream(task="What is the sum of the first 100 squares?"):
            if isinstance(message, CodeExecutionEvent):
                print("--- output of the code, and the pod's security read from inside ---")
                print(message.result.output)
                assert message.result.exit_code == 0
            last = message
    print("--- the agent's answer ---")
    print(last.messages[-1].content)

    [span] = [one for one in spans.get_finished_spans() if one.name == "execute_code"]
    print("--- the audit span ---")
    for key, value in sorted(span.attributes.items()):
        print(f"{key} = {value}")


asyncio.run(main())
