//! [`Prompts`]: the prompts of a request's questions, with the places of their images.
//!
//! A chat model and a family of trained models are asked in different words; from here on both are tokens and places to read. Invariant:
//! each prompt passes the gate before the next one is written.

use std::{collections::VecDeque, sync::Arc};

use tokenmill_sched::{Media, MediaSpan};
use tokenmill_text::Tokenizer;

use super::{
    decisions::Asked,
    label_tokens::LabelTokens,
    params::DecideParams,
    state::State,
    wording::{labels_of_options, message},
};
use crate::{
    Error, Model,
    decide_error::DecideError,
    decision::{
        family::{Asking, DecisionFamily},
        readout::Readout,
    },
    forward_passes::PassInput,
    images::PromptImage,
    reply::Prompt,
    words::without_reasoning,
};

/// The prompts of a request, with the places of their images.
#[derive(Debug, Default)]
pub(super) struct Prompts {
    pub(super) prompts: Vec<(Vec<u32>, Vec<PromptImage>)>,
    pub(super) asked: VecDeque<Asked>,
}

/// Conditions under which prompts are written.
#[derive(Clone, Copy)]
pub(super) struct Gate<'a> {
    /// Returns false once no caller waits for the answers.
    pub(super) is_wanted: &'a dyn Fn() -> bool,
    /// Refuses a prompt that is too long, too much for the request, or too late.
    pub(super) check_prompt: &'a dyn Fn(&[u32]) -> Result<(), Error>,
}

impl Model {
    /// Writes the prompts of a chat model, which answers with labels; `None` once they are not wanted.
    pub(super) fn chat_prompts(
        &self,
        state: &State,
        asking: Asking<'_>,
        params: &DecideParams,
        gate: Gate<'_>,
    ) -> Result<Option<Prompts>, Error> {
        let words = self.words();
        let place = words.answer_place()?;
        let mut tokens = LabelTokens::new(words.tokenizer(), &place);
        let mut all = Prompts::default();
        for (question_idx, question) in asking.questions.iter().enumerate() {
            let labels = tokens.choose(question, question_idx)?;
            let of_labels = tokens.tokens(&labels.texts).expect("the labels were chosen so");
            let mut readouts = VecDeque::new();
            for order in question.orders(params.permutations) {
                if !(gate.is_wanted)() {
                    return Ok(None);
                }
                let content = message(state, question, &order, &labels);
                let shown = state.images().cloned().collect();
                let (prompt, images) = words.encode_showing(&without_reasoning(&content), shown)?;
                (gate.check_prompt)(&prompt)?;
                if !tokens.follow(&prompt) {
                    return Err(DecideError::OtherEnd { question_idx }.into());
                }
                let of_options = labels_of_options(&order, question).into_iter();
                let of_options = of_options.map(|label_idx| of_labels[label_idx]);
                readouts.push_back(Readout::Labels(of_options.collect()));
                all.prompts.push((prompt, images));
            }
            all.asked.push_back(Asked::new(readouts, params.temperature));
        }
        Ok(Some(all))
    }

    /// Makes the rows of the images, which all prompts have in the same order; `None` once they are not wanted.
    pub(super) fn see_once(
        &self,
        prompts: Vec<(Vec<u32>, Vec<PromptImage>)>,
        cache_salt: u64,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<PassInput>>, Error> {
        let Some((_, images)) = prompts.first() else {
            return Ok(Some(Vec::new()));
        };
        let first = Prompt {
            images: images.clone(),
            ..Prompt::of_text(Vec::new())
        };
        let Some(seen) = self.see_while(first, cache_salt, is_wanted)? else {
            return Ok(None);
        };
        let inputs = prompts.into_iter().map(|(tokens, images)| PassInput {
            tokens,
            media: placed(&seen.media, &images),
        });
        Ok(Some(inputs.collect()))
    }
}

/// Writes the prompts of a model that was trained for decisions; `None` once they are not wanted.
pub(super) fn family_prompts(
    family: &DecisionFamily,
    tokenizer: &Tokenizer,
    (state, asking): (&str, Asking<'_>),
    params: &DecideParams,
    gate: Gate<'_>,
) -> Result<Option<Prompts>, Error> {
    family.check(asking.questions)?;
    let state = family.read_state(state)?;
    let mut all = Prompts::default();
    for (question_idx, question) in asking.questions.iter().enumerate() {
        let mut readouts = VecDeque::new();
        for order in family.orders(question, params.permutations) {
            if !(gate.is_wanted)() {
                return Ok(None);
            }
            let prompt = family.prompt(tokenizer, &state, asking, question_idx, &order)?;
            (gate.check_prompt)(&prompt.tokens)?;
            readouts.push_back(prompt.readout);
            all.prompts.push((prompt.tokens, Vec::new()));
        }
        let temperature = params.temperature * family.temperature(question);
        all.asked.push_back(Asked::new(readouts, temperature));
    }
    Ok(Some(all))
}

/// Puts the rows of the images of a prompt into their places in another one of the same images.
fn placed(seen: &[Media], images: &[PromptImage]) -> Arc<[Media]> {
    let media = seen.iter().zip(images).map(|(media, image)| Media {
        span: MediaSpan {
            start: image.start,
            end: image.start + media.span.n_inputs(),
            ..media.span
        },
        rows: Arc::clone(&media.rows),
    });
    media.collect()
}
