"""deepinfer: exact inference for DeepSeek-V4.1-Flash. LLM for many prompts at once, AsyncLLM for streaming, LLMEngine step by step."""
from ._library import VERSION as __version__
from ._library import use_library
from .args import EngineArgs
from .async_llm import AsyncLLM
from .errors import DeepInferError, InvalidError, LimitError, NotFoundError, OutOfMemoryError, UnsupportedError
from .llm import LLM
from .llm_engine import LLMEngine
from .outputs import CompletionOutput, Delta, Histogram, Logprob, RequestMetrics, RequestOutput, TokenRecord, ToolCall, Usage
from .params import SamplingParams, StructuredOutputsParams
from .tokenizer import Tokenizer

__all__ = ["LLM", "AsyncLLM", "LLMEngine", "EngineArgs", "SamplingParams", "StructuredOutputsParams", "RequestOutput", "CompletionOutput", "TokenRecord", "Delta", "Logprob",
           "Histogram", "RequestMetrics", "ToolCall", "Usage", "Tokenizer", "DeepInferError", "InvalidError", "LimitError", "UnsupportedError", "NotFoundError",
           "OutOfMemoryError", "use_library", "__version__"]
