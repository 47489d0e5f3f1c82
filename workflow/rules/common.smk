from pathlib import Path

from grpoflow.launch.interrupt import lead_stages
from grpoflow.preflight import Refused, refuse_faults
from grpoflow.preflight.subject import DEFAULT_WALL_TIME
from grpoflow.stages.dag import Dag, share_resources

try:
    refuse_faults(config, map(Path, workflow.configfiles))
except Refused as error:
    raise WorkflowError(str(error))
dag = Dag(config)
lead_stages()

# two rules drive one job: a resource that is set for one of them is set for the job. preflight checks its runtime
share_resources(
    workflow.resource_settings.overwrite_resources,
    "rollout_server",
    "train_grpo",
    "preflight",
)


wildcard_constraints:
    experiment="|".join(dag.experiments),
    dataset="[0-9a-f]{12}",
    sft="[0-9a-f]{12}",
    sft_data="[0-9a-f]{12}",
    mcore="[0-9a-f]{12}",
    probe="[0-9a-f]{12}",
    kind="text|vlm|moe_text|moe_vlm",
