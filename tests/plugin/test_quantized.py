"""mlx-lm's quantised folders are served as mlx-lm computes them."""

from pathlib import Path

import pytest
from engines import PROMPTS, TARGET, engine, greedy, reference_tokens, token_ids

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("bits", [4, 8])
def test_greedy_tokens_of_a_quantised_folder_equal_mlx_lm(tmp_path: Path, bits: int) -> None:
    from mlx_lm import convert

    folder = tmp_path / "quantised"
    convert(str(TARGET), str(folder), quantize=True, q_bits=bits, q_group_size=32)
    prompts = PROMPTS[:4]
    with engine(folder) as llm:
        assert not llm.llm_engine.vllm_config.model_config.quantization
        outputs = llm.generate(list(prompts), greedy(32), use_tqdm=False)
    assert token_ids(outputs) == [list(reference_tokens(one, 32, folder)) for one in prompts]
