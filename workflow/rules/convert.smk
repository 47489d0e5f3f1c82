rule convert_to_mcore:
    input:
        start=dag.start,
    output:
        "results/shared/mcore/{mcore}/manifest.json",
    log:
        "logs/rules/convert_to_mcore-{mcore}.log",
    conda:
        "../../envs/orchestrator/environment.yaml"
    resources:
        **dag.asks_for("convert_to_mcore"),
        runtime=240,
    message:
        "Convert to Megatron-core and back, compare every tensor"
    script:
        "../scripts/stage.py"
