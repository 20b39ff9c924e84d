//! [`SamplingFields`]: the sampling parameters that all generating endpoints share, and their way into
//! [`SamplingParams`].
//!
//! One place, so that a parameter means the same on every endpoint. Invariant: a value out of range is an error that
//! names the field as the client wrote it, never clamped.

mod biases;
mod samplers;

use serde::Deserialize;
use tokenmill::{sampling::DRY_BREAKERS, text::ModelWords};
use tokenmill_backend::{
    Dry, DynamicTemperature, Mirostat, MirostatVersion, SamplingParams, SamplingParamsError, Xtc,
};

use self::{
    biases::{Biases, read_bias},
    samplers::Samplers,
};
use crate::{
    ApiError,
    requests::fields::{Field, yes},
};

/// Lists the fields of [`SamplingFields`], for the tables of the endpoints.
pub(crate) fn sampling_fields() -> impl Iterator<Item = &'static Field> + Clone {
    COMMON.iter().chain(SAMPLERS_OF_LLAMA_CPP).chain(REQUEST)
}

/// Samplers that several APIs have.
const COMMON: &[Field] = &[
    yes("temperature", "0 is greedy; default 1"),
    yes("top_p", "default 1"),
    yes("frequency_penalty", ""),
    yes("presence_penalty", ""),
    yes(
        "logit_bias",
        "map of token ids, or as in llama.cpp of texts (all their tokens), to biases, or a list of such pairs; -100 and `false` forbid",
    ),
    yes("seed", "same seed, same tokens, on the CPU whatever else runs"),
    yes("top_k", "extension, as in vLLM and llama.cpp; 0 or -1 is off"),
    yes("min_p", "extension, as in vLLM and llama.cpp"),
    yes("typical_p", "extension, as in llama.cpp"),
    yes(
        "mirostat",
        "extension, as in llama.cpp: version 1 or 2, in place of filters and penalties; 0 is off",
    ),
    yes("mirostat_tau", "extension, as in llama.cpp; default 5"),
    yes("mirostat_eta", "extension, as in llama.cpp; default 0.1"),
    yes("repetition_penalty", "extension, as in vLLM"),
    yes(
        "repeat_penalty",
        "extension, as in llama.cpp; the same as `repetition_penalty`",
    ),
    yes(
        "repeat_last_n",
        "extension, as in llama.cpp; how far the penalties look back; default and -1: all of the text",
    ),
];

/// Samplers that only llama.cpp's API has. They are options of Ollama's API too, so that the defaults of `serve` hold there.
pub(crate) const SAMPLERS_OF_LLAMA_CPP: &[Field] = &[
    yes("top_n_sigma", "extension, as in llama.cpp; 0 and less is off"),
    yes("xtc_probability", "extension, as in llama.cpp; 0 is off"),
    yes("xtc_threshold", "extension, as in llama.cpp; default 0.1"),
    yes("dynatemp_range", "extension, as in llama.cpp; 0 is off"),
    yes("dynatemp_exponent", "extension, as in llama.cpp; default 1"),
    yes(
        "samplers",
        "extension, as in llama.cpp: the sampling steps in order, as a list of names or as letters (`\"kpt\"`); other steps are skipped; \
         `infill` and `adaptive_p` change nothing",
    ),
    yes("dry_multiplier", "extension, as in llama.cpp; 0 is off"),
    yes("dry_base", "extension, as in llama.cpp"),
    yes("dry_allowed_length", "extension, as in llama.cpp"),
    yes(
        "dry_penalty_last_n",
        "extension, as in llama.cpp; default and -1: all of the text",
    ),
    yes(
        "dry_sequence_breakers",
        "extension, as in llama.cpp; default `[\"\\n\", \":\", \"\\\"\", \"*\"]`; tokens that hold one end a repetition",
    ),
];

/// Fields about the request as a whole.
const REQUEST: &[Field] = &[
    yes(
        "min_tokens",
        "extension, as in vLLM; the model's end-of-text tokens cannot come before; stop strings still end, and so does a shape \
         that allows nothing else",
    ),
    yes(
        "stop_token_ids",
        "extension, as in vLLM; up to 64 tokens that end the answer and are not part of it",
    ),
    yes(
        "priority",
        "extension, as in vLLM; lower goes first; other than 0 only with `--scheduling-policy priority`",
    ),
    yes(
        "cache_salt",
        "extension, as in vLLM; cached prefixes are found only by requests with the same salt",
    ),
    yes(
        "cache_prompt",
        "extension, as in llama.cpp; `false` computes the whole prompt and hides it from other requests",
    ),
    yes(
        "id_slot",
        "extension, as in llama.cpp; the slot that records the conversation for saving; with -1 or an unknown number the server \
         chooses",
    ),
];

/// The sampling parameters of a request as the client wrote them.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct SamplingFields {
    temperature: Option<f32>,
    top_p: Option<f32>,
    frequency_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    logit_bias: Option<Biases>,
    seed: Option<i64>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    top_n_sigma: Option<f32>,
    xtc_probability: Option<f32>,
    xtc_threshold: Option<f32>,
    dynatemp_range: Option<f32>,
    dynatemp_exponent: Option<f32>,
    mirostat: Option<u8>,
    mirostat_tau: Option<f32>,
    mirostat_eta: Option<f32>,
    samplers: Option<Samplers>,
    repetition_penalty: Option<f32>,
    repeat_penalty: Option<f32>,
    repeat_last_n: Option<i64>,
    dry_multiplier: Option<f32>,
    dry_base: Option<f32>,
    dry_allowed_length: Option<u32>,
    dry_penalty_last_n: Option<i64>,
    dry_sequence_breakers: Option<Vec<String>>,
    min_tokens: Option<u32>,
    stop_token_ids: Option<Vec<u32>>,
    priority: Option<i32>,
    cache_salt: Option<String>,
    cache_prompt: Option<bool>,
    id_slot: Option<i64>,
}

/// Most stop tokens of a request.
const MAX_STOP_TOKENS: usize = 64;

/// Most breakers of a request, and the longest of them.
const MAX_BREAKERS: usize = 16;
const MAX_BREAKER_BYTES: usize = 64;

impl SamplingFields {
    /// Fewest tokens of an answer.
    pub(crate) fn min_tokens(&self) -> u32 {
        self.min_tokens.unwrap_or(0)
    }

    /// Returns further tokens that end the answer.
    ///
    /// # Errors
    /// Fails on too many tokens, and on one outside the vocabulary.
    pub(crate) fn stop_tokens(&self, n_vocab: usize) -> Result<Vec<u32>, ApiError> {
        let ids = self.stop_token_ids.clone().unwrap_or_default();
        let refused = |reason: String| Err(ApiError::invalid("stop_token_ids", reason));
        if ids.len() > MAX_STOP_TOKENS {
            return refused(format!("{} tokens, at most {MAX_STOP_TOKENS}", ids.len()));
        }
        match ids.iter().find(|&&id| id as usize >= n_vocab) {
            Some(id) => refused(format!("{id} is not in the vocabulary of {n_vocab} tokens")),
            None => Ok(ids),
        }
    }

    /// Place in the queue in vLLM's sense: lower goes first.
    pub(crate) fn priority(&self) -> i32 {
        self.priority.unwrap_or(0)
    }

    /// The slot that it asks for.
    pub(crate) fn slot(&self) -> Option<usize> {
        self.id_slot.and_then(|id| usize::try_from(id).ok())
    }

    /// Says whether the prompt may be read from the prefix cache and stored in it.
    pub(crate) fn caches(&self) -> bool {
        self.cache_prompt.unwrap_or(true)
    }

    /// Returns the salt that separates the request's cached prefixes.
    ///
    /// # Errors
    /// An empty text, which would keep nothing apart.
    pub(crate) fn cache_salt(&self) -> Result<Option<&str>, ApiError> {
        salt(self.cache_salt.as_deref())
    }

    /// Checks the values and puts the API's defaults where the client is silent. `fresh_seed` is used without `seed`.
    ///
    /// # Errors
    /// The first field out of range, by name.
    pub fn into_params(self, words: &ModelWords, fresh_seed: u64) -> Result<SamplingParams, ApiError> {
        let breakers = |texts: &[&str]| words.dry_breakers(texts);
        let tokens_of = |text: &str| words.encode_text(text, false);
        self.into_params_with(words.tokenizer().n_vocab(), fresh_seed, breakers, tokens_of)
    }

    /// Checks the values for any vocabulary.
    ///
    /// # Errors
    /// Returns the errors of [`Self::into_params`].
    pub(crate) fn check(self) -> Result<(), ApiError> {
        self.into_params_with(usize::MAX, 0, |_| Vec::new(), |_| Vec::new())
            .map(drop)
    }

    fn into_params_with(
        self,
        n_vocab: usize,
        fresh_seed: u64,
        breakers: impl FnOnce(&[&str]) -> Vec<u32>,
        tokens_of: impl Fn(&str) -> Vec<u32>,
    ) -> Result<SamplingParams, ApiError> {
        if self.repetition_penalty.is_some() && self.repeat_penalty.is_some() {
            return Err(ApiError::invalid(
                "repeat_penalty",
                "give either this or `repetition_penalty`",
            ));
        }
        let repeat_name = if self.repetition_penalty.is_some() {
            "repetition_penalty"
        } else {
            "repeat_penalty"
        };
        check_range("temperature", self.temperature, 0.0, 2.0)?;
        check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        let top_k = match self.top_k.unwrap_or(0) {
            -1 => 0,
            k => u32::try_from(k)
                .map_err(|_| ApiError::invalid("top_k", format!("{k} is not -1, 0 or a count of tokens")))?,
        };
        let own_breakers = self.dry_sequence_breakers.as_deref();
        check_breakers(own_breakers.unwrap_or_default())?;
        let dry_last_n = last_n("dry_penalty_last_n", self.dry_penalty_last_n)?;
        let texts: Vec<&str> = match own_breakers {
            Some(texts) => texts.iter().map(String::as_str).collect(),
            None => DRY_BREAKERS.to_vec(),
        };
        let mirostat = match self.mirostat.unwrap_or(0) {
            0 => None,
            number => Some(
                MirostatVersion::from_number(number)
                    .ok_or_else(|| ApiError::invalid("mirostat", format!("{number} is not 0, 1 or 2")))?,
            ),
        };
        let (off, no_dry) = (SamplingParams::default(), Dry::default());
        let (no_xtc, no_range) = (Xtc::default(), DynamicTemperature::default());
        let steps = self.samplers.as_ref().map(Samplers::steps).transpose()?;
        let params = SamplingParams {
            temperature: self.temperature.unwrap_or(1.0),
            top_k,
            top_p: self.top_p.unwrap_or(off.top_p),
            min_p: self.min_p.unwrap_or(off.min_p),
            typical_p: self.typical_p.unwrap_or(off.typical_p),
            top_n_sigma: self.top_n_sigma.unwrap_or(off.top_n_sigma),
            xtc: self
                .xtc_probability
                .filter(|&probability| probability != 0.0)
                .map(|probability| Xtc {
                    probability,
                    threshold: self.xtc_threshold.unwrap_or(no_xtc.threshold),
                }),
            dynamic_temperature: (self.dynatemp_range.filter(|&range| range != 0.0)).map(|range| {
                DynamicTemperature {
                    range,
                    exponent: self.dynatemp_exponent.unwrap_or(no_range.exponent),
                }
            }),
            mirostat: mirostat.map(|version| {
                let target = self.mirostat_tau.unwrap_or(Mirostat::DEFAULT_TARGET);
                Mirostat::new(
                    version,
                    target,
                    self.mirostat_eta.unwrap_or(Mirostat::DEFAULT_RATE),
                )
            }),
            order: None,
            repeat_penalty: (self.repetition_penalty.or(self.repeat_penalty)).unwrap_or(off.repeat_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(off.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(off.frequency_penalty),
            // OpenAI's penalties look at the whole text, llama.cpp's at a window.
            penalty_last_n: last_n("repeat_last_n", self.repeat_last_n)?,
            dry: self
                .dry_multiplier
                .filter(|&multiplier| multiplier != 0.0)
                .map(|multiplier| Dry {
                    multiplier,
                    base: self.dry_base.unwrap_or(no_dry.base),
                    allowed_length: self.dry_allowed_length.unwrap_or(no_dry.allowed_length),
                    last_n: dry_last_n,
                    breakers: breakers(&texts),
                }),
            logit_bias: read_bias(self.logit_bias.unwrap_or_default(), tokens_of)?,
            seed: self.seed.map_or(fresh_seed, |seed| seed as u64),
            n_logprobs: None,
            scores_draw: false,
        };
        params
            .validate(n_vocab)
            .map_err(|error| name_field(&error, repeat_name))?;
        Ok(match steps {
            Some(steps) => params.with_steps(&steps),
            None => params,
        })
    }
}

/// Returns how many tokens a penalty looks back; the whole text for -1 or without a value.
fn last_n(name: &str, value: Option<i64>) -> Result<u32, ApiError> {
    match value {
        None | Some(-1) => Ok(u32::MAX),
        Some(n) => u32::try_from(n)
            .map_err(|_| ApiError::invalid(name, format!("{n} is not -1 or a count of tokens"))),
    }
}

fn check_breakers(texts: &[String]) -> Result<(), ApiError> {
    let refused = |reason: String| Err(ApiError::invalid("dry_sequence_breakers", reason));
    if texts.len() > MAX_BREAKERS {
        return refused(format!("{} texts, at most {MAX_BREAKERS}", texts.len()));
    }
    match texts
        .iter()
        .find(|text| text.is_empty() || text.len() > MAX_BREAKER_BYTES)
    {
        Some(text) => refused(format!(
            "a text of {} bytes, expected 1 to {MAX_BREAKER_BYTES}",
            text.len()
        )),
        None => Ok(()),
    }
}

fn check_range(name: &str, value: Option<f32>, minimum: f32, maximum: f32) -> Result<(), ApiError> {
    match value {
        Some(value) if !(minimum..=maximum).contains(&value) => Err(ApiError::invalid(
            name,
            format!("{value} is not between {minimum} and {maximum}"),
        )),
        _ => Ok(()),
    }
}

fn name_field(error: &SamplingParamsError, repeat_name: &str) -> ApiError {
    match error {
        SamplingParamsError::OutOfRange { name, value, .. } => {
            let name = if *name == "repeat_penalty" {
                repeat_name
            } else {
                name
            };
            let expected = error.expected_range().unwrap_or_default();
            ApiError::invalid(name, format!("{value} is not {expected}"))
        }
        SamplingParamsError::UnknownToken { .. } | SamplingParamsError::Bias { .. } => {
            ApiError::invalid("logit_bias", error.to_string())
        }
        _ => ApiError::invalid("top_logprobs", error.to_string()),
    }
}

/// Checks a salt of cached prefixes.
///
/// # Errors
/// An empty text, which would keep nothing apart.
pub(crate) fn salt(given: Option<&str>) -> Result<Option<&str>, ApiError> {
    match given {
        Some("") => Err(ApiError::invalid(
            "cache_salt",
            "is empty; give a text or leave it out",
        )),
        salt => Ok(salt),
    }
}

#[cfg(test)]
mod tests {
    use tokenmill_backend::SamplerStep;

    use super::*;

    #[track_caller]
    fn check(body: &str, expected: Result<SamplingParams, &str>) {
        let fields: SamplingFields = serde_json::from_str(body).expect("fields of the right types");
        match (
            fields.into_params_with(
                100,
                7,
                |texts| vec![texts.len() as u32],
                |text| text.bytes().map(u32::from).collect(),
            ),
            expected,
        ) {
            (Ok(found), Ok(wanted)) => assert_eq!(found, wanted),
            (Err(error), Err(param)) => assert_eq!(error.param(), Some(param), "{error}"),
            (found, wanted) => panic!("{found:?}, expected {wanted:?}"),
        }
    }

    fn api_default() -> SamplingParams {
        SamplingParams {
            temperature: 1.0,
            penalty_last_n: u32::MAX,
            seed: 7,
            ..SamplingParams::default()
        }
    }

    #[test]
    fn silence_means_the_defaults_of_the_api() {
        check("{}", Ok(api_default()));
    }

    #[test]
    fn every_field_arrives() {
        check(
            r#"{"temperature":0.5,"top_p":0.9,"frequency_penalty":0.1,"presence_penalty":0.2,"logit_bias":{"3":-100,"4":5},
                "seed":-1,"top_k":40,"min_p":0.05,"typical_p":0.7,"repetition_penalty":1.1,"repeat_last_n":64,
                "dry_multiplier":0.8,"dry_base":2.0,"dry_allowed_length":3,"dry_penalty_last_n":99,"top_n_sigma":1.5,
                "xtc_probability":0.5,"xtc_threshold":0.2,"dynatemp_range":0.3,"dynatemp_exponent":2,"mirostat":2,"mirostat_tau":4,
                "mirostat_eta":0.2,"samplers":["temperature","top_k","infill"]}"#,
            Ok(SamplingParams {
                temperature: 0.5,
                top_k: 40,
                top_p: 0.9,
                min_p: 0.05,
                typical_p: 0.7,
                top_n_sigma: 1.5,
                xtc: Some(Xtc {
                    probability: 0.5,
                    threshold: 0.2,
                }),
                dynamic_temperature: Some(DynamicTemperature {
                    range: 0.3,
                    exponent: 2.0,
                }),
                mirostat: Some(Mirostat::new(MirostatVersion::Two, 4.0, 0.2)),
                // Mirostat takes the place of all steps.
                order: None,
                repeat_penalty: 1.1,
                presence_penalty: 0.2,
                frequency_penalty: 0.1,
                penalty_last_n: 64,
                dry: Some(Dry {
                    multiplier: 0.8,
                    base: 2.0,
                    allowed_length: 3,
                    last_n: 99,
                    breakers: vec![4],
                }),
                logit_bias: vec![(3, f32::NEG_INFINITY), (4, 5.0)],
                seed: u64::MAX,
                n_logprobs: None,
                scores_draw: false,
            }),
        );
    }

    #[test]
    fn the_values_of_llama_cpp_are_read() {
        check(
            r#"{"samplers":["temperature","top_k","infill"]}"#,
            Ok(SamplingParams {
                order: Some(vec![SamplerStep::Temperature, SamplerStep::TopK]),
                ..api_default()
            }),
        );
        check(
            r#"{"dry_multiplier":0.8,"dry_penalty_last_n":-1,"repeat_last_n":-1,"logit_bias":[]}"#,
            Ok(SamplingParams {
                dry: Some(Dry {
                    multiplier: 0.8,
                    base: 1.75,
                    allowed_length: 2,
                    last_n: u32::MAX,
                    breakers: vec![4],
                }),
                ..api_default()
            }),
        );
        check(
            r#"{"logit_bias":[[3,false],[4,5],[5,-1.5]]}"#,
            Ok(SamplingParams {
                logit_bias: vec![(3, f32::NEG_INFINITY), (4, 5.0), (5, -1.5)],
                ..api_default()
            }),
        );
        check(
            r#"{"logit_bias":[["\n\t",false],[4,5]]}"#,
            Ok(SamplingParams {
                logit_bias: vec![(4, 5.0), (9, f32::NEG_INFINITY), (10, f32::NEG_INFINITY)],
                ..api_default()
            }),
        );
        for biases in ["[[3]]", "[[{},1]]", "[[3,true]]", "{\"3\":\"x\"}", "3"] {
            let body = format!("{{\"logit_bias\":{biases}}}");
            assert!(serde_json::from_str::<SamplingFields>(&body).is_err(), "{biases}");
        }
    }

    #[test]
    fn samplers_that_are_not_named_are_off() {
        let body = r#"{"samplers":["top_k","top_p","infill"],"top_k":40,"top_p":0.9,"min_p":0.3,"temperature":0.0,
            "repetition_penalty":1.2,"dry_multiplier":0.8}"#;
        let expected = SamplingParams {
            top_k: 40,
            top_p: 0.9,
            ..api_default()
        };
        check(body, Ok(expected.clone()));
        check(
            r#"{"samplers":"kp","top_k":40,"top_p":0.9,"min_p":0.3}"#,
            Ok(expected),
        );
        check(
            r#"{"samplers":"edskypmxt","top_p":0.9}"#,
            Ok(SamplingParams {
                top_p: 0.9,
                ..api_default()
            }),
        );
    }

    #[test]
    fn values_out_of_range_name_their_field() {
        for (body, param) in [
            (r#"{"temperature":2.1}"#, "temperature"),
            (r#"{"temperature":-1}"#, "temperature"),
            (r#"{"top_p":1.5}"#, "top_p"),
            (r#"{"top_k":-2}"#, "top_k"),
            (r#"{"repetition_penalty":0}"#, "repetition_penalty"),
            (r#"{"repeat_penalty":-1}"#, "repeat_penalty"),
            (r#"{"repeat_penalty":1,"repetition_penalty":1}"#, "repeat_penalty"),
            (r#"{"logit_bias":{"":1}}"#, "logit_bias."),
            (r#"{"logit_bias":{"100":1}}"#, "logit_bias"),
            (r#"{"logit_bias":{"1":101}}"#, "logit_bias.1"),
            (r#"{"dry_sequence_breakers":[""]}"#, "dry_sequence_breakers"),
            (r#"{"repeat_last_n":-2}"#, "repeat_last_n"),
            (r#"{"dry_penalty_last_n":-2}"#, "dry_penalty_last_n"),
            (r#"{"xtc_probability":1.5}"#, "xtc_probability"),
            (r#"{"xtc_probability":0.5,"xtc_threshold":-1}"#, "xtc_threshold"),
            (r#"{"dynatemp_range":-1}"#, "dynatemp_range"),
            (r#"{"mirostat":3}"#, "mirostat"),
            (r#"{"mirostat":1,"mirostat_tau":-1}"#, "mirostat_tau"),
            (r#"{"samplers":["top_k","top_q"]}"#, "samplers"),
            (r#"{"samplers":"kq"}"#, "samplers"),
        ] {
            check(body, Err(param));
        }
    }
}
