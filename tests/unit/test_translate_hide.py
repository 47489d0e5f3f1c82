"""Secrets of a script: what is hidden, and what stays where it is."""

import pytest
from grpoflow.translate.hide import hide_secrets


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("export WANDB_API_KEY=abc", "export WANDB_API_KEY=***"),
        ("(export HF_TOKEN=abc)", "(export HF_TOKEN=***)"),
        ("f() { export HF_TOKEN=abc; run; }", "f() { export HF_TOKEN=***; run; }"),
        ("HF_TOKEN=abc \\\n  run", "HF_TOKEN=*** \\\n  run"),
        ("HF_TOKEN=abc\\\n run", "HF_TOKEN=***\\\n run"),
        ("HF_TOKEN=abc&&run|tee", "HF_TOKEN=***&&run|tee"),
        ("ARGS=(--hub_token abc)", "ARGS=(--hub_token ***)"),
        ("run --hub-token=abc --x 1", "run --hub-token=*** --x 1"),
        ("run --hub_token \\\n  abc", "run --hub_token \\\n  ***"),
        ("run --hub_token\nabc 1", "run --hub_token\nabc 1"),
        ("run --push_token --x 1", "run --push_token --x 1"),
        ("HF_TOKEN='a b' run", "HF_TOKEN=*** run"),
        ("HF_TOKEN=a\"b c\"'d'$'e\\'f' run", "HF_TOKEN=*** run"),
        ('SSH_KEY="a\nb" run', 'SSH_KEY="***\n" run'),
        ("API_KEYS=(a b)\nrun", "API_KEYS=(***)\nrun"),
        ("API_KEYS=(a b\nrun", "API_KEYS=***\nrun"),
        ("HF_TOKEN=$(echo abc) run", "HF_TOKEN=*** run"),
        ("HF_TOKEN=`echo abc` run", "HF_TOKEN=*** run"),
        ("bash -c 'HF_TOKEN=abc run' 1", "bash -c 'HF_TOKEN=*** run' 1"),
        ('bash -c "HF_TOKEN=abc" && echo "x"', 'bash -c "HF_TOKEN=***" && echo "x"'),
        ('bash -c "HF_TOKEN=\\"a b\\" run" 1', 'bash -c "HF_TOKEN=*** run" 1'),
        ("# don't\nHF_TOKEN=abc; run 'x'", "# don't\nHF_TOKEN=***; run 'x'"),
        ("# export HF_TOKEN=abc", "# export HF_TOKEN=***"),
        ("export HF_TOKEN=${HF_TOKEN:-abc}", "export HF_TOKEN=***"),
        ("run ${HF_TOKEN:-abc} $X", "run ${HF_TOKEN:-***} $X"),
        ("run ${HF_TOKEN:=${Y:-abc}} $X", "run ${HF_TOKEN:=***} $X"),
        ("wandb login abc", "wandb login ***"),
        ("wandb login --relogin abc && run b", "wandb login --relogin *** && run b"),
        ("wandb login abc --relogin", "wandb login *** --relogin"),
        ("huggingface-cli login --token abc", "huggingface-cli login --token ***"),
        ("hf auth login --token=abc --add", "hf auth login --token=*** --add"),
        ("swanlab login -k abc", "swanlab login -k ***"),
        ("x=$(wandb login abc)", "x=$(wandb login ***)"),
        ("http_proxy=http://me:abc@proxy:80 run", "http_proxy=http://***@proxy:80 run"),
        ("git clone https://abc@host/x", "git clone https://***@host/x"),
        ("curl -H 'Authorization: Bearer abc' u", "curl -H 'Authorization: Bearer ***' u"),
        ("curl https://hooks.slack.com/services/abc -d x", "curl https://hooks.slack.com/*** -d x"),
        (
            "curl https://oapi.x.com/robot/send?access_token=abc",
            "curl https://oapi.x.com/robot/send?access_token=***",
        ),
        ("curl -s -u me:abc https://host/x", "curl -s -u *** https://host/x"),
        ("curl -u'me:abc' https://host/x", "curl -u*** https://host/x"),
        ("/usr/bin/curl \\\n --user=me:abc u", "/usr/bin/curl \\\n --user=*** u"),
        ("U=me:abc\ncurl -u $U https://host/x", "U=***\ncurl -u $U https://host/x"),
        ("sshpass -p abc ssh host", "sshpass -p *** ssh host"),
        ("sshpass -p'abc' ssh host", "sshpass -p*** ssh host"),
        ("export LARK_WEBHOOK_URL=abc", "export LARK_WEBHOOK_URL=***"),
        ('run \'{"api_key": "abc", "n": 1}\'', 'run \'{"api_key": ***, "n": 1}\''),
        ('run "{\\"api_key\\": \\"abc\\"}"', 'run "{\\"api_key\\": ***}"'),
        ("T=abc\nexport HF_TOKEN=$T", "T=***\nexport HF_TOKEN=$T"),
        ('A=abc; T=$A\nrun --hub_token "${T}"', 'A=***; T=$A\nrun --hub_token "${T}"'),
        ("T=abc\nwandb login $T", "T=***\nwandb login $T"),
    ],
)
def test_what_is_hidden(text: str, expected: str) -> None:
    assert hide_secrets(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "HF_TOKEN=$HF_TOKEN run --hub_token ${HUB:?}",
        "HF_TOKEN= run",
        'HF_TOKEN="" run',
        "IMAGE_MAX_TOKEN_NUM=1024 run --moe_token_drop_policy probs --teacher_tag_key x",
        "http_proxy=http://$USER:${PASS}@proxy",
        "run http://host:80/x@y user@host",
        "bash --login\nrun /home/login x",
        "run --tokenizer abc --key 1",
        "curl https://host/x | tee -a y; srun -u python -u run.py; mkdir -p out; run --user me",
        "sshpass -e ssh -p 22 host",
    ],
)
def test_what_stays(text: str) -> None:
    assert hide_secrets(text) == text
