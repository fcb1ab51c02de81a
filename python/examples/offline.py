"""Many prompts at once, in the way of a DeepInfer script: only the import differs. usage: offline.py MODEL_DIRECTORY"""
import sys

from deepinfer import LLM, SamplingParams

PROMPTS = ["The capital of France", "The capital of Japan", "Once upon a time"]


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    llm = LLM(sys.argv[1], trust_remote_code=True, max_model_len=2048, max_num_seqs=8, gpu_memory_utilization=0.9)
    params = SamplingParams(temperature=0.7, top_p=0.95, max_tokens=24, seq_seed=0xFEDCBA9876543210, first_n_token_no_eos=1)
    for prompt, text in zip(PROMPTS, llm.generate(PROMPTS, params, use_tqdm=False)):
        print(repr(prompt), "->", repr(str(text)))
    tokenizer = llm.get_tokenizer()
    ids = [tokenizer.encode(prompt) for prompt in PROMPTS]
    again = llm.generate(prompt_token_ids=ids, sampling_params=params, use_tqdm=False)
    print("by ids:", "the same" if again == llm.generate(PROMPTS, params, use_tqdm=False) else "something else")
    llm.close()


if __name__ == "__main__":
    main()
