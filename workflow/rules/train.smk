# Two views of one job (grpoflow.launch): both attach to it, and the first one submits it. The job is tried again
# as often as trainer.max_restarts says; a retry of the rule would do the same once more.


rule rollout_server:
    input:
        dataset=dag.dataset,
        start=dag.start,
        mcore=dag.mcore,
        plugin=dag.reward_plugin,
        plan="results/{experiment}/plan.json",
    output:
        "results/{experiment}/endpoints.json",
    log:
        "logs/rules/rollout_server-{experiment}.log",
    retries: 0
    conda:
        "../../envs/orchestrator/environment.yaml"
    resources:
        **dag.asks_for("rollout_server"),
        runtime=DEFAULT_WALL_TIME,
    params:
        run=dag.run_hash,
    message:
        "Start the GRPO job of {wildcards.experiment} and wait for its rollout servers"
    script:
        "../scripts/stage.py"


rule train_grpo:
    input:
        dataset=dag.dataset,
        start=dag.start,
        mcore=dag.mcore,
        plugin=dag.reward_plugin,
        plan="results/{experiment}/plan.json",
        endpoints=dag.endpoints,
    output:
        "results/{experiment}/train.json",
    log:
        "logs/rules/train_grpo-{experiment}.log",
    retries: 0
    conda:
        "../../envs/orchestrator/environment.yaml"
    resources:
        **dag.asks_for("train_grpo"),
        runtime=DEFAULT_WALL_TIME,
    params:
        run=dag.run_hash,
    message:
        "Train {wildcards.experiment} with GRPO"
    script:
        "../scripts/stage.py"
