//! [`Session`]: a loaded model with its tokenizer, and the way from generated tokens to text.
//!
//! Separate from the generator, which knows tokens only. Invariant: text leaves here in whole characters, and no part
//! of a stop string ever does.

use std::{path::Path, sync::Arc, time::Duration};

use serde_json::json;
use tokenmill_model::SamplingParams;
use tokenmill_text::{DecodeOptions, StopMatcher, StreamDecoder, Tokenizer};

use crate::{
    failure::Failure,
    generate::{FinishReason, Generator, Next, Report, Request},
    interrupt::Interrupt,
    load::{LoadArgs, load},
    model_source::{ChatFiles, ModelSource},
};

/// A loaded model with its tokenizer.
pub(crate) struct Session {
    /// Its name.
    pub(crate) name: String,
    /// What chats with it need.
    pub(crate) chat_files: ChatFiles,
    /// Its tokenizer.
    pub(crate) tokenizer: Tokenizer,
    /// What generates.
    pub(crate) generator: Generator,
}

/// A finished answer.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Its text.
    pub(crate) text: String,
    /// Its tokens, without one that ended it.
    pub(crate) ids: Vec<u32>,
    /// What it took.
    pub(crate) report: Report,
}

impl Session {
    /// Opens and loads a model.
    ///
    /// # Errors
    /// A model that cannot be opened or loaded, or has no usable tokenizer.
    pub(crate) fn open(argument: &Path, args: &LoadArgs) -> Result<Self, Failure> {
        let source = ModelSource::find(argument)?;
        let model = source.open_model()?;
        let options = args.options(model.descriptor().n_ctx_train)?;
        let tokenizer = source.tokenizer(model.gguf())?;
        let chat_files = source.chat_files(model.gguf(), &tokenizer)?;
        // Networks may be wider than their vocabulary, for round sizes.
        if tokenizer.n_vocab() > model.descriptor().n_vocab {
            return Err(Failure::input(format!(
                "the tokenizer has {} tokens, but the network only {}",
                tokenizer.n_vocab(),
                model.descriptor().n_vocab
            )));
        }
        let generator = Generator::new(load(&model, &options)?);
        Ok(Self {
            name: source.name(),
            chat_files,
            tokenizer,
            generator,
        })
    }

    /// Generates text behind a prompt and hands its pieces to `on_text` as they come.
    ///
    /// # Errors
    /// As [`Generator::generate`], and what `on_text` returns.
    pub(crate) fn generate(
        &mut self,
        prompt: &[u32],
        params: SamplingParams,
        max_tokens: Option<usize>,
        stops: &[String],
        interrupt: &Interrupt,
        on_text: &mut dyn FnMut(&str) -> Result<(), Failure>,
    ) -> Result<Answer, Failure> {
        let (tokenizer, end_ids) = (&self.tokenizer, &self.chat_files.end_ids);
        let options = DecodeOptions {
            is_continuation: true,
            ..DecodeOptions::default()
        };
        let mut decoder = StreamDecoder::new(tokenizer, options);
        let mut matcher = StopMatcher::new(stops);
        let mut text = String::new();
        let mut ids = Vec::new();
        let mut hand_out = |piece: &str| {
            text.push_str(piece);
            if piece.is_empty() { Ok(()) } else { on_text(piece) }
        };
        let request = Request {
            prompt,
            params: Arc::new(params),
            max_tokens,
        };
        let report = self.generator.generate(&request, &mut |id| {
            if tokenizer.is_end_of_generation(id) || end_ids.contains(&id) {
                return Ok(Next::Stop);
            }
            ids.push(id);
            let progress = matcher.push(decoder.push(id));
            hand_out(&progress.text)?;
            Ok(if progress.stopped_by.is_some() {
                Next::Stop
            } else if interrupt.is_set() {
                Next::Cancel
            } else {
                Next::Continue
            })
        })?;
        if matcher.stopped_by().is_none() {
            let progress = matcher.push(decoder.finish());
            hand_out(&progress.text)?;
            hand_out(&matcher.finish())?;
        }
        Ok(Answer { text, ids, report })
    }
}

impl Report {
    /// One line for people.
    pub(crate) fn line(&self) -> String {
        let cached = match self.n_cached {
            0 => String::new(),
            n => format!(" ({n} more stored)"),
        };
        let reason = match self.finish {
            FinishReason::Stop => "",
            FinishReason::Length => ", cut at the limit",
            FinishReason::Cancelled => ", stopped",
        };
        format!(
            "[prompt {} tokens{cached}, {} tokens/s; answer {} tokens, {} tokens/s; first after {:.0} ms{reason}]",
            self.n_prompt,
            rate(self.n_prompt, self.prompt_time),
            self.n_generated,
            rate(self.n_generated.saturating_sub(1), self.generation_time),
            self.prompt_time.as_secs_f64() * 1e3,
        )
    }

    /// The same for programs.
    pub(crate) fn to_json(self) -> serde_json::Value {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let per_second = |n: usize, time: Duration| (n > 0).then(|| n as f64 / time.as_secs_f64());
        json!({
            "prompt_n": self.n_prompt,
            "cache_n": self.n_cached,
            "prompt_ms": ms(self.prompt_time),
            "prompt_per_second": per_second(self.n_prompt, self.prompt_time),
            "predicted_n": self.n_generated,
            "predicted_ms": ms(self.generation_time),
            "predicted_per_second": per_second(self.n_generated.saturating_sub(1), self.generation_time),
        })
    }
}

/// Tokens in a second; a dash where there were none.
fn rate(n: usize, time: Duration) -> String {
    if n == 0 {
        return "-".to_owned();
    }
    format!("{:.1}", n as f64 / time.as_secs_f64())
}
