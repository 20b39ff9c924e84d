//! `options` of Ollama's requests: sampling, lengths, and how Ollama would load the model.
//!
//! All of Ollama's endpoints have it. Invariant: an option that changes the answer is obeyed or refused by
//! name; options accepted without effect only say how another server would compute the same.

use std::sync::LazyLock;

use serde_json::json;

use crate::{
    ApiError,
    dialects::openai::Stop,
    requests::{
        fields::{Body, Field, label, only, yes},
        sampling::{SAMPLERS_OF_LLAMA_CPP, SamplingFields},
    },
};

const NOT_IMPLEMENTED: &str = "this sampler is not implemented";

/// The options of Ollama.
const OWN_OPTIONS: &[Field] = &[
    yes("num_predict", "default, 0 and below: the rest of the context"),
    yes("num_ctx", "up to the context that the model is loaded with"),
    yes("temperature", "default 0.8; 0 is greedy"),
    yes("top_k", "default 40"),
    yes("top_p", "default 0.9"),
    yes("min_p", "default 0"),
    yes("typical_p", "default 1"),
    yes("repeat_penalty", "default 1.1"),
    yes(
        "repeat_last_n",
        "default 64; -1: all of the text; how far the penalties look back",
    ),
    yes("presence_penalty", "default 0"),
    yes("frequency_penalty", "default 0"),
    yes("seed", "a fresh one where it is -1 or left out"),
    yes("stop", "a string or up to 16, together up to 4 KiB"),
    yes(
        "mirostat",
        "1 or 2, in place of filters and penalties; default 0, which is off",
    ),
    yes("mirostat_tau", "default 5"),
    yes("mirostat_eta", "default 0.1"),
    only("tfs_z", &["1", "1.0"], NOT_IMPLEMENTED),
    only("penalize_newline", &["true"], "the penalties apply to all tokens"),
    only("vocab_only", &["false"], "the model is loaded"),
    only(
        "embedding_only",
        &["false"],
        "the model is loaded for all that it can do",
    ),
    // Fields of samplers that are off, of prompt truncation, and of how the server computes: none changes the
    // answer.
    label("num_keep"),
    label("num_batch"),
    label("num_gpu"),
    label("main_gpu"),
    label("num_thread"),
    label("numa"),
    label("low_vram"),
    label("f16_kv"),
    label("logits_all"),
    label("use_mmap"),
    label("use_mlock"),
];

/// Lists all options: those of Ollama, and the samplers of llama.cpp that Ollama does not have.
pub fn options() -> &'static [Field] {
    static TABLE: LazyLock<Vec<Field>> =
        LazyLock::new(|| OWN_OPTIONS.iter().chain(SAMPLERS_OF_LLAMA_CPP).copied().collect());
    &TABLE
}

/// The options of a request to generate.
#[derive(Debug)]
pub(crate) struct Options {
    /// How tokens are chosen.
    pub(crate) sampling: SamplingFields,
    /// Most tokens.
    pub(crate) max_tokens: Option<u32>,
    /// Strings that end the answer.
    pub(crate) stops: Vec<String>,
}

/// Checks the options of a request.
///
/// # Errors
/// An option that is unknown, not supported or out of range, by its path.
pub(crate) fn check_options(body: &Body, n_ctx: usize) -> Result<Body, ApiError> {
    let defaults =
        json!({ "temperature": 0.8, "top_k": 40, "top_p": 0.9, "repeat_penalty": 1.1, "repeat_last_n": 64 });
    let mut options = body.inner("options", options(), defaults)?;
    if let Some(asked) = options.take("num_ctx") {
        let wants_more = |asked: u64| usize::try_from(asked).map_or(true, |asked| asked > n_ctx);
        match asked.as_u64() {
            Some(asked) if wants_more(asked) => {
                let reason = format!(
                    "{asked} is more than the {n_ctx} tokens that the model is loaded with; the server's `--ctx-size` \
                     changes that"
                );
                return Err(ApiError::invalid("options.num_ctx", reason));
            }
            Some(_) => {}
            None => {
                return Err(ApiError::invalid(
                    "options.num_ctx",
                    "expected a number of tokens",
                ));
            }
        }
    }
    Ok(options)
}

impl Options {
    /// Reads the options of a request to generate.
    ///
    /// # Errors
    /// As [`check_options`].
    pub(crate) fn read(body: &Body, n_ctx: usize) -> Result<Self, ApiError> {
        let mut options = check_options(body, n_ctx)?;
        let within = |error: ApiError| error.within("options");
        let max_tokens = match options.take("num_predict") {
            None => None,
            Some(n) => match n.as_i64() {
                Some(n) if n <= 0 => None,
                Some(n) => Some(u32::try_from(n).unwrap_or(u32::MAX)),
                None => {
                    return Err(ApiError::invalid(
                        "options.num_predict",
                        "expected a number of tokens, or -1 for no limit",
                    ));
                }
            },
        };
        let stops = match options.take("stop") {
            None => Vec::new(),
            Some(stop) => serde_json::from_value::<Stop>(stop)
                .map_err(|error| ApiError::invalid("stop", error.to_string()))
                .and_then(|stop| stop.to_strings())
                .map_err(within)?,
        };
        // This is how Ollama writes that no seed is requested.
        if options.get("seed").is_some_and(|seed| *seed == -1) {
            options.take("seed");
        }
        Ok(Self {
            sampling: options.read().map_err(within)?,
            max_tokens,
            stops,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::fields::yes;

    #[track_caller]
    fn check(options: &str, expected: Result<Option<u32>, &str>) {
        let body = format!("{{\"options\":{options}}}");
        let body = Body::parse(body.as_bytes(), &[yes("options", "")]).expect("a body");
        match (Options::read(&body, 100), expected) {
            (Ok(found), Ok(wanted)) => assert_eq!(found.max_tokens, wanted),
            (Err(error), Err(param)) => assert_eq!(error.param(), Some(param), "{error}"),
            (found, wanted) => panic!("{found:?}, expected {wanted:?}"),
        }
    }

    #[test]
    fn what_changes_the_answer_is_read_or_refused_by_its_path() {
        check("{}", Ok(None));
        check("{\"num_predict\":-1,\"seed\":-1,\"repeat_last_n\":-1}", Ok(None));
        check(
            "{\"num_predict\":7,\"num_ctx\":100,\"stop\":[\"a\"]}",
            Ok(Some(7)),
        );
        check(
            "{\"num_gpu\":99,\"num_thread\":8,\"use_mmap\":true,\"mirostat\":0,\"mirostat_tau\":5.0}",
            Ok(None),
        );
        check(
            "{\"xtc_probability\":0.5,\"dry_multiplier\":0.8,\"samplers\":[\"top_k\"]}",
            Ok(None),
        );
        check("{\"num_ctx\":101}", Err("options.num_ctx"));
        check("{\"num_ctx\":-1}", Err("options.num_ctx"));
        check("{\"num_predict\":0}", Ok(None));
        check("{\"num_predict\":-3}", Ok(None));
        check("{\"num_predict\":\"all\"}", Err("options.num_predict"));
        check("{\"mirostat\":1,\"mirostat_eta\":0.2}", Ok(None));
        check("{\"mirostat\":\"on\"}", Err("options.mirostat"));
        check("{\"temprature\":1}", Err("options.temprature"));
        check("{\"temperature\":\"hot\"}", Err("options.temperature"));
        check("{\"stop\":[\"\"]}", Err("options.stop"));
        check("3", Err("options"));
    }
}
