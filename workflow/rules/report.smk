rule report:
    input:
        dataset=dag.dataset,
        start=dag.start,
        mcore=dag.mcore,
        endpoints=dag.endpoints,
        train="results/{experiment}/train.json",
        evaluation="results/{experiment}/evaluation/manifest.json",
        export="results/{experiment}/export/manifest.json",
    output:
        report(
            "results/{experiment}/report.html",
            caption="../report/report.rst",
            category="{experiment}",
        ),
    log:
        "logs/rules/report-{experiment}.log",
    conda:
        "../../envs/orchestrator/environment.yaml"
    message:
        "Report {wildcards.experiment}"
    script:
        "../scripts/stage.py"
