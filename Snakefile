include: "workflow/Snakefile"


# an include does not carry the default target over
workflow.default_target = "all"
