rule benchmarks:
    input:
        start=dag.start,
        train="results/{experiment}/train.json",
    output:
        "results/{experiment}/benchmarks/manifest.json",
    log:
        "logs/rules/benchmarks-{experiment}.log",
    conda:
        "../../envs/orchestrator/environment.yaml"
    resources:
        **dag.asks_for("benchmarks"),
        runtime=480,
    params:
        settings=dag.benchmark_keys,
    message:
        "Public benchmarks of {wildcards.experiment} before and after GRPO"
    script:
        "../scripts/stage.py"
