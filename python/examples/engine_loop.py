"""An engine loop with its own requests, as a DeepInfer script has it: only the import differs. usage: engine_loop.py MODEL_DIRECTORY"""
import sys
import time

from deepinfer import EngineArgs, LLMEngine, SamplingParams


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    engine = LLMEngine.from_engine_args(EngineArgs(sys.argv[1], max_model_len=1024, max_num_seqs=4, chunked_prefill=True))
    tokenizer = engine.get_tokenizer()
    texts: dict[int, list[int]] = {}
    for i, word in enumerate(["France", "Japan", "Italy", "Spain", "Egypt", "Peru"]):
        params = SamplingParams(temperature=0, max_tokens=12, seq_seed=i, top_logprobs=2)
        engine.add_request(user_id=i % 2, request_id=i, sampling_params=params, prompt_token_ids=tokenizer.encode(f"The capital of {word}"),
                           arrival_time=time.time())
        texts[i] = []
    print("aborted (requests, tokens):", engine.abort_request([5]))
    while engine.has_unfinished_requests():
        for out in engine.step():
            texts[out.request_id].append(out.token_id)
            assert out.num_output_tokens == len(texts[out.request_id]) and out.token_logprobs <= 0
            if out.finished:
                print(out.request_id, out.finish_reason, out.prompt_len, repr(tokenizer.decode(texts[out.request_id], skip_special_tokens=True)))
    engine.flush_inflight_reqs()
    print("left:", engine.get_num_unfinished_requests())


if __name__ == "__main__":
    main()
