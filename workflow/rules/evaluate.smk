rule evaluate:
    input:
        dataset=dag.dataset,
        start=dag.start,
        train="results/{experiment}/train.json",
        plugin=dag.reward_plugin,
        benchmarks=dag.benchmarks,
    output:
        report(
            "results/{experiment}/evaluation/manifest.json",
            caption="../report/evaluation.rst",
            category="{experiment}",
        ),
    log:
        "logs/rules/evaluate-{experiment}.log",
    conda:
        "../../envs/orchestrator/environment.yaml"
    resources:
        **dag.asks_for("evaluate"),
        runtime=480,
    params:
        settings=dag.evaluate_keys,
    message:
        "Evaluate {wildcards.experiment} before and after GRPO"
    script:
        "../scripts/stage.py"
