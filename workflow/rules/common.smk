from grpoflow.config import ConfigError
from grpoflow.stages.dag import Dag, share_resources

try:
    dag = Dag(config)
except ConfigError as error:
    raise WorkflowError(str(error))

# both rules drive one job: a resource that is set for one of them is set for the job
share_resources(workflow.resource_settings.overwrite_resources, "rollout_server", "train_grpo")


wildcard_constraints:
    experiment="|".join(dag.experiments),
    dataset="[0-9a-f]{12}",
    sft="[0-9a-f]{12}",
    mcore="[0-9a-f]{12}",
    kind="text|vlm|moe_text|moe_vlm",
