//! `POST /v1/completions`: text in, text out, without a chat template.

use serde::Deserialize;

use super::{Stop, StreamOptions, TokenLimit};
use crate::requests::fields::{Field, label, only, refused, yes};

/// The endpoint's own fields; those of sampling come from `sampling_fields`.
pub const FIELDS: &[Field] = &[
    yes("model", ""),
    yes(
        "prompt",
        "text, in which control tokens written out are control tokens, token ids, or a list of either",
    ),
    yes("max_tokens", "default 16; -1: the rest of the context"),
    yes(
        "n_predict",
        "extension, as in llama.cpp; the same as `max_tokens`",
    ),
    yes("n", ""),
    yes("best_of", "only equal to `n`"),
    yes("stream", ""),
    yes("stream_options", "`include_usage`"),
    yes(
        "logprobs",
        "how many of the likeliest tokens to report, at most 20",
    ),
    yes(
        "echo",
        "the prompt stands before the answer; with `logprobs` the prompt's tokens are scored too",
    ),
    only(
        "add_special_tokens",
        &["true"],
        "a prompt begins with the model's own token for that; give token ids for another",
    ),
    yes("stop", "a string or up to 16, together up to 4 KiB"),
    yes("ignore_eos", "extension, as in vLLM and llama.cpp"),
    yes(
        "return_token_ids",
        "extension, as in vLLM; `prompt_token_ids` and `token_ids` of each choice; a stream has a chunk for each token then, also where \
         its text is held back",
    ),
    yes(
        "prompt_logprobs",
        "extension, as in vLLM; `prompt_logprobs` of each choice has the log-probability of each token of the prompt, and of as many of \
         the likeliest, at most 20",
    ),
    yes(
        "response_format",
        "extension, as in vLLM; as on `/v1/chat/completions`",
    ),
    label("user"),
    yes(
        "suffix",
        "the text after the answer, for models whose vocabulary has tokens for filling in the middle",
    ),
    refused(
        "messages",
        "this endpoint continues a `prompt`; `/v1/chat/completions` answers messages",
    ),
];

/// Most log-probabilities per token.
pub const MAX_LOGPROBS: u32 = 20;

/// A completion request.
#[derive(Clone, Debug, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "fields of the API")]
pub struct CompletionRequest {
    /// Model name.
    pub model: Option<String>,
    /// Prompt to continue.
    pub prompt: PromptInput,
    /// Most tokens to generate.
    pub max_tokens: Option<TokenLimit>,
    /// The same field under llama.cpp's name.
    pub n_predict: Option<TokenLimit>,
    /// Choices per prompt.
    pub n: Option<u32>,
    /// Candidates per prompt.
    pub best_of: Option<u32>,
    /// Whether the answer is streamed.
    #[serde(default)]
    pub stream: bool,
    /// Options of the stream.
    pub stream_options: Option<StreamOptions>,
    /// Log-probabilities per token.
    pub logprobs: Option<u32>,
    /// Whether the prompt stands before the answer.
    #[serde(default)]
    pub echo: bool,
    /// Text after the answer.
    #[serde(default)]
    pub suffix: String,
    /// Strings that end the answer.
    pub stop: Option<Stop>,
    /// Whether generation continues past the end-of-text token.
    #[serde(default)]
    pub ignore_eos: bool,
    /// Whether the answer includes token ids.
    #[serde(default)]
    pub return_token_ids: bool,
    /// Alternatives to report with each token of the prompt.
    pub prompt_logprobs: Option<u32>,
}

/// A prompt: text or token ids, one or several.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(
    untagged,
    expecting = "expected a string, a list of token ids, or a list of either"
)]
pub enum PromptInput {
    /// One text.
    Text(String),
    /// One list of token ids.
    Tokens(Vec<u32>),
    /// Several texts.
    Texts(Vec<String>),
    /// Several lists of token ids.
    TokenLists(Vec<Vec<u32>>),
}

/// One prompt of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum OnePrompt {
    /// Text, to be tokenized.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

impl PromptInput {
    /// The prompts, in order.
    pub fn into_prompts(self) -> Vec<OnePrompt> {
        match self {
            Self::Text(text) => vec![OnePrompt::Text(text)],
            Self::Tokens(tokens) => vec![OnePrompt::Tokens(tokens)],
            Self::Texts(texts) => texts.into_iter().map(OnePrompt::Text).collect(),
            Self::TokenLists(lists) => lists.into_iter().map(OnePrompt::Tokens).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_text_or_tokens_or_a_list_of_either() {
        let check = |json: &str, expected: &[OnePrompt]| {
            let prompt: PromptInput = serde_json::from_str(json).expect(json);
            assert_eq!(prompt.into_prompts(), expected);
        };
        let text = |text: &str| OnePrompt::Text(text.to_owned());
        check(r#""a""#, &[text("a")]);
        check("[1,2]", &[OnePrompt::Tokens(vec![1, 2])]);
        check(r#"["a","b"]"#, &[text("a"), text("b")]);
        check(
            "[[1],[2,3]]",
            &[OnePrompt::Tokens(vec![1]), OnePrompt::Tokens(vec![2, 3])],
        );
        assert!(serde_json::from_str::<PromptInput>("[1,\"a\"]").is_err());
    }
}
