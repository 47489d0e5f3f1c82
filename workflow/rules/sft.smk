rule sft:
    input:
        dataset=dag.sft_data,
        model=dag.base_model,
    output:
        "results/shared/sft/{sft}/manifest.json",
    log:
        "logs/rules/sft-{sft}.log",
    conda:
        "../../envs/orchestrator/environment.yaml"
    resources:
        **dag.asks_for("sft"),
        runtime=1440,
    message:
        "Warm start: supervised fine-tuning"
    script:
        "../scripts/stage.py"
