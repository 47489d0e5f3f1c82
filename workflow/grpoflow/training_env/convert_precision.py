"""`megatron export --test_convert_precision` without network: `convert_precision IMAGE ARGUMENTS...`.

ms-swift 4.6.0 tests a multimodal model on an image that it downloads (swift/megatron/utils/convert_utils.py,
get_examples). Here the image is made on the spot at IMAGE. A model whose tokenizer has not the image token of
its template is tested on the text alone. Runs as the only rank: RANK, WORLD_SIZE and the like are set.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from swift.megatron import megatron_export_main
from swift.megatron.pipelines.export import export
from swift.megatron.utils import convert_utils
from swift.pipelines import prepare_model_template
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

SIZE = 256
IMAGE_TOKEN = 248056  # Qwen3_5Template.image_token_id (swift/template/templates/qwen.py)


def gradient(path: Path) -> Path:
    """An image with something to see."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.radial_gradient("L").resize((SIZE, SIZE)).convert("RGB").save(path)
    return path


def example(image: Path | None) -> dict[str, Any]:
    """A conversation; its answer is where logits are compared."""
    question = "<image>What is bright?" if image else "What is two plus two?"
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": "The edges are."}]
    return {"messages": messages} | ({"images": [str(image)]} if image else {})


def load_without_bridge(*args: Any, **kwargs: Any) -> Any:
    """Load a model when mcore-bridge has put its own `default` into the table of rotary embeddings, which
    transformers 5.19 takes instead of the model's (mcore_bridge/model/rope.py:115): 'Qwen3_5TextConfig'
    object has no attribute 'rope_theta'."""
    ROPE_INIT_FUNCTIONS.pop("default", None)
    return prepare_model_template(*args, **kwargs)


def main(argv: list[str]) -> int:
    path, *arguments = argv
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}.items():
        os.environ[name] = value
    os.environ["SWIFT_TEST_CONVERT_PRECISION"] = "1"  # compare, and save nothing
    config = AutoConfig.from_pretrained(arguments[arguments.index("--model") + 1])
    image = gradient(Path(path)) if getattr(config, "image_token_id", None) == IMAGE_TOKEN else None
    convert_utils.get_examples = lambda _: example(image)
    export.prepare_model_template = load_without_bridge
    megatron_export_main([*arguments, "--test_convert_precision", "true"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
