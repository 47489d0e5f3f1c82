rule probe_nodes:
    output:
        "results/shared/probe/{probe}/probe.json",
    log:
        "logs/rules/probe_nodes-{probe}.log",
    conda:
        "../../envs/orchestrator/environment.yaml"
    resources:
        **dag.asks_for("probe_nodes"),
        runtime=15,
    message:
        "Look at the nodes: versions, GPUs, kernels, network"
    script:
        "../scripts/stage.py"
