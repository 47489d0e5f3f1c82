rule demo_model:
    output:
        "resources/demo/{kind}/config.json",
    log:
        "logs/rules/demo_model-{kind}.log",
    conda:
        "../../envs/orchestrator/environment.yaml"
    resources:
        mem_mb=4000,
        runtime=10,
    message:
        "Build a tiny randomly initialised Qwen3.5 ({wildcards.kind})"
    script:
        "../scripts/stage.py"


rule demo_data:
    output:
        train="resources/demo/arithmetic/train.jsonl",
        val="resources/demo/arithmetic/val.jsonl",
        sft="resources/demo/arithmetic/sft.jsonl",
    log:
        "logs/rules/demo_data.log",
    conda:
        "../../envs/orchestrator/environment.yaml"
    resources:
        mem_mb=1000,
        runtime=10,
    message:
        "Write sums to learn from"
    script:
        "../scripts/stage.py"
