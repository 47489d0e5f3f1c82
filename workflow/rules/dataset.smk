rule cache_dataset:
    input:
        data=dag.data_files,
        model=dag.base_model,
        plugin=dag.reward_plugin,
        plans=dag.plans,
    output:
        "results/shared/dataset/{dataset}/manifest.json",
    log:
        "logs/rules/cache_dataset-{dataset}.log",
    conda:
        "../../envs/orchestrator/environment.yaml"
    message:
        "Validate and freeze the data"
    resources:
        mem_mb=8000,
        runtime=120,
        cpus_per_task=8,
    script:
        "../scripts/stage.py"
