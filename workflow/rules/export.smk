rule export_hf:
    input:
        dataset=dag.dataset,
        start=dag.start,
        train="results/{experiment}/train.json",
        evaluation="results/{experiment}/evaluation/manifest.json",
    output:
        "results/{experiment}/export/manifest.json",
    log:
        "logs/rules/export_hf-{experiment}.log",
    conda:
        "../../envs/orchestrator/environment.yaml"
    resources:
        **dag.asks_for("export_hf"),
        runtime=240,
    params:
        settings=dag.export_keys,
    message:
        "Export {wildcards.experiment} to Hugging Face format"
    script:
        "../scripts/stage.py"
