rule preflight:
    input:
        probe=dag.probe,
    output:
        plan="results/{experiment}/plan.json",
        page=report(
            "results/{experiment}/plan.html",
            caption="../report/plan.rst",
            category="{experiment}",
        ),
    log:
        "logs/rules/preflight-{experiment}.log",
    # no other input of the stages that experiments share: another experiment would make them run again
    priority: 100
    conda:
        "../../envs/orchestrator/environment.yaml"
    resources:
        **dag.asks_for("train_grpo"),  # its job is checked, and shown to Slurm
        runtime=DEFAULT_WALL_TIME,
    params:
        run=dag.run_hash,
    message:
        "Check and plan {wildcards.experiment}"
    script:
        "../scripts/stage.py"
