rule preflight:
    output:
        "results/{experiment}/plan.json",
    log:
        "logs/rules/preflight-{experiment}.log",
    conda:
        "../../envs/orchestrator/environment.yaml"
    params:
        run=dag.run_hash,
    message:
        "Check and plan {wildcards.experiment}"
    script:
        "../scripts/stage.py"
