//! Fields of other servers' APIs that clients and gateways send by default, with the values that match this
//! server's behaviour.
//!
//! Gateways rewrite requests and add the defaults of the server that they were made for. Such a default is
//! accepted and any other value is refused, so no wish is ignored silently.

use crate::requests::fields::{Field, all_but, ignored, label, only};

const REASONING: &str = "reasoning is always separate from the answer";
const ONE_CHOICE: &str = "tokens are drawn one after the other";
pub(crate) const OWN_TEMPLATE: &str =
    "the model's own template renders conversations; `chat_template_kwargs` gives it variables";
pub(crate) const IMAGES: &str = "the model's encoder determines how images are read";
const ONE_ENGINE: &str = "a request is prefilled and decoded by this engine";
const NO_CODE: &str = "requests cannot contain code; use `logit_bias` or a grammar";
const NOT_IMPLEMENTED: &str = "this sampler is not implemented";

/// The fields, for the tables of the endpoints that generate.
pub(crate) const FOREIGN: &[Field] = &[
    // vLLM, SGLang and their gateways.
    only(
        "no_stop_trim",
        &["false"],
        "a stop string is never part of the answer",
    ),
    only(
        "include_stop_str_in_output",
        &["false"],
        "a stop string is never part of the answer",
    ),
    only(
        "skip_special_tokens",
        &["true"],
        "control tokens are never part of the answer",
    ),
    only(
        "spaces_between_special_tokens",
        &["true", "false"],
        "control tokens are never part of the answer, so there is nothing between them",
    ),
    only("separate_reasoning", &["true"], REASONING),
    only("stream_reasoning", &["true"], REASONING),
    only("include_reasoning", &["true"], REASONING),
    only(
        "return_hidden_states",
        &["false"],
        "hidden states are what `/v1/embeddings` is made from",
    ),
    only(
        "return_token_ids",
        &["false"],
        "`/tokenize` and the render endpoints give token ids",
    ),
    only(
        "return_tokens_as_token_ids",
        &["false"],
        "tokens are written as text",
    ),
    only(
        "return_meta_info",
        &["false"],
        "the answer has `usage` and `timings`",
    ),
    only("detokenize", &["true"], "answers are text"),
    only("use_beam_search", &["false"], ONE_CHOICE),
    only("early_stopping", &["false"], ONE_CHOICE),
    only("length_penalty", &["1", "1.0"], ONE_CHOICE),
    only("bad_words", &["[]"], "use `logit_bias`"),
    only(
        "prompt_logprobs",
        &[],
        "use `echo` and `logprobs` of `/v1/completions`",
    ),
    only(
        "truncate_prompt_tokens",
        &[],
        "a prompt that is too long is refused, never cut",
    ),
    only("lora_path", &[], "an adapter is named as the `model`"),
    only("session_params", &[], "there are no sessions of this kind"),
    only("allowed_token_ids", &[], "use `logit_bias` or a grammar"),
    only("chat_template", &[], OWN_TEMPLATE),
    only("documents", &["[]"], "write them into a message"),
    only("mm_processor_kwargs", &["{}"], IMAGES),
    only("media_io_kwargs", &["{}"], IMAGES),
    only("kv_transfer_params", &[], ONE_ENGINE),
    only("bootstrap_host", &[], ONE_ENGINE),
    only("bootstrap_port", &[], ONE_ENGINE),
    only("bootstrap_room", &[], ONE_ENGINE),
    only("data_parallel_rank", &["0"], ONE_ENGINE),
    only("vllm_xargs", &["{}"], "there are no extensions of vLLM here"),
    only("logits_processors", &["[]"], NO_CODE),
    only("custom_logit_processor", &[], NO_CODE),
    only("custom_params", &[], NO_CODE),
    only("structural_tag", &[], "use `tools`"),
    only(
        "guided_decoding_backend",
        &[],
        "there is one implementation of shapes",
    ),
    only(
        "guided_whitespace_pattern",
        &[],
        "space between the parts of JSON is that of JSON; use `grammar`",
    ),
    only("stop_regex", &["[]"], "use `stop`"),
    label("request_id"),
    label("rid"),
    // llama.cpp and ollama.
    only(
        "n_keep",
        &["0", "-1"],
        "the server's `--keep` sets the tokens that stay when a context is shifted",
    ),
    only(
        "n_discard",
        &["0"],
        "a context shift drops half of the tokens after `--keep`",
    ),
    only("n_probs", &["0"], "use `logprobs`"),
    only("n_indent", &["0"], NOT_IMPLEMENTED),
    only(
        "t_max_predict_ms",
        &["0", "-1"],
        "the server's `--request-timeout` bounds an answer",
    ),
    // These ask for progress reports or tune the computation; the answer is the same.
    ignored(
        "timings_per_token",
        "`/v1/chat/completions`, `/completion` and `/infill` have them in each piece",
    ),
    ignored(
        "return_progress",
        "`/v1/chat/completions`, `/completion` and `/infill` report it",
    ),
    ignored("backend_sampling", "the server chooses where tokens are sampled"),
    ignored("speculative.n_max", "the server's `--spec-max` sets it"),
    ignored("speculative.n_min", "drafts change no answer"),
    ignored("speculative.p_min", "drafts change no answer"),
    ignored("speculative.type", "the server's `--spec` sets it"),
    only(
        "return_tokens",
        &["false"],
        "`/tokenize` and the render endpoints give token ids",
    ),
    only(
        "post_sampling_probs",
        &["false"],
        "log-probabilities are those of the model; `/v1/chat/completions`, `/completion` and `/infill` report those of the draw",
    ),
    only("min_keep", &["0", "1"], NOT_IMPLEMENTED),
    only("typ_p", &["1", "1.0"], "use `typical_p`"),
    only("reasoning_in_content", &["false"], REASONING),
    only(
        "grammar_lazy",
        &["false"],
        "a grammar holds from the beginning of the answer",
    ),
    only(
        "grammar_triggers",
        &["[]"],
        "a grammar holds from the beginning of the answer",
    ),
    only("reasoning_format", &["\"auto\"", "\"deepseek\""], REASONING),
    only(
        "think",
        &["false"],
        "use `chat_template_kwargs` with the variables of the model's template",
    ),
    all_but(
        "keep_alive",
        &["0", "0.0", "\"0\"", "\"0s\"", "\"0m\""],
        "the model stays loaded as long as the server runs",
    ),
];
