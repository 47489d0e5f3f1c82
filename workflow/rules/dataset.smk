rule cache_dataset:
    input:
        data=dag.data_files,
        model=dag.base_model,
        plugin=dag.reward_plugin,
    output:
        "results/shared/dataset/{dataset}/manifest.json",
    log:
        "logs/rules/cache_dataset-{dataset}.log",
    conda:
        "../../envs/orchestrator/environment.yaml"
    resources:
        mem_mb=8000,
        runtime=120,
        cpus_per_task=8,
    message:
        "Validate and freeze the prompts"
    script:
        "../scripts/stage.py"


rule cache_sft:
    input:
        data=dag.sft_files,
        model=dag.base_model,
    output:
        "results/shared/sft_data/{sft_data}/manifest.json",
    log:
        "logs/rules/cache_sft-{sft_data}.log",
    conda:
        "../../envs/orchestrator/environment.yaml"
    resources:
        mem_mb=8000,
        runtime=120,
        cpus_per_task=8,
    message:
        "Validate and tokenise the conversations"
    script:
        "../scripts/stage.py"
