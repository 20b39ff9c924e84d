//! [`Decisions`]: the answers to typed questions about one state, as probabilities of their options.
//!
//! A decision is a prefill without a decode: it reads the logits after the last token of a prompt, at the tokens of the labels.
//! So any chat model answers, and models that were trained for it answer in the way that their files state. The prompts of all questions
//! begin with the state; that part is computed first, and the questions then follow it in one batch from the prefix cache. Invariant: an
//! answer is the same to the bit whether its question is asked alone, with others, or again.

mod budget;
mod decisions;
mod json_object;
mod label_tokens;
mod params;
mod prompts;
mod state;
mod system_one;
mod wording;

use std::{cell::RefCell, time::Instant};

use tokenmill_sched::EngineError;

use self::{
    budget::PromptBudget,
    prompts::{Gate, Prompts, family_prompts},
};
use crate::{
    Error, Model,
    decision::{
        family::{Asking, DecisionFamily, RowsOfPrompt},
        readout::Reading,
    },
};

pub use crate::{
    decide_error::DecideError,
    decision::{
        answer::Decision,
        question::{
            ChoiceOption, MAX_LEVELS, MAX_OPTIONS, MAX_PERMUTATIONS, MAX_QUESTIONS, Question, QuestionKind,
        },
        temperatures::{DecisionTemperatures, KnownAnswers},
    },
};

pub use self::{
    decisions::Decisions,
    json_object::{JsonObject, inner_path, text_of},
    params::DecideParams,
    state::{MAX_IMAGES, State},
    system_one::{SystemOneQuestions, image_of_part, images_of, state_of},
    wording::DECISION_PROMPT_VERSION,
};

/// Longest state of a model that was trained for decisions. Its template may write the state several times over, as a tree of values.
const MAX_FAMILY_STATE_BYTES: usize = 1 << 20;

impl Model {
    /// Answers typed questions about a state with probabilities, one [`Decision`] for each question. Any chat model does it.
    ///
    /// ```
    /// use tokenmill::{Model, decide::Question};
    ///
    /// let model = Model::open("demo")?;
    /// let questions = [
    ///     Question::predicate("Is the cat on the mat?"),
    ///     Question::choice("Who sat?", ["a cat", "a dog"]),
    ///     Question::score("How loud was it?", ["silent", "quiet", "loud"]),
    /// ];
    /// let answers = model.decide("The cat sat on the mat.", &questions)?;
    /// println!("yes with {:.3}", answers[0].probabilities[0]);
    /// println!("option {}, confidence {:.3}", answers[1].likeliest(), answers[1].choice_confidence());
    /// println!("level {:.2} of 0 to 2", answers[2].expected_level());
    /// # Ok::<(), tokenmill::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Self::start_deciding`], and [`Error::Engine`] where a question fails.
    pub fn decide(&self, state: impl Into<State>, questions: &[Question]) -> Result<Vec<Decision>, Error> {
        self.start_deciding(state, questions, &DecideParams::default())?
            .collect()
    }

    /// Starts answering questions, all side by side.
    ///
    /// # Errors
    /// [`Error::Decide`] for questions that cannot be asked, or not of this model; [`Error::NoTemplate`], and [`Error::Engine`] where a
    /// prompt is refused. Questions already started are then cancelled.
    pub fn start_deciding(
        &self,
        state: impl Into<State>,
        questions: &[Question],
        params: &DecideParams,
    ) -> Result<Decisions, Error> {
        let started = self.start_deciding_while(&state.into(), questions, params, &|| true)?;
        Ok(started.expect("it is always wanted"))
    }

    /// Does the same as [`Self::start_deciding`] while `is_wanted`, which is called before each prompt and each image is encoded, returns true;
    /// `None` after it returned false. Images and a long state in hundreds of prompts take seconds.
    ///
    /// # Errors
    /// Returns the errors of [`Self::start_deciding`].
    pub fn start_deciding_while(
        &self,
        state: &State,
        questions: &[Question],
        params: &DecideParams,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Decisions>, Error> {
        params.check(state, questions)?;
        let deadline = params
            .deadline
            .and_then(|deadline| Instant::now().checked_add(deadline));
        let is_late = || deadline.is_some_and(|deadline| deadline <= Instant::now());
        let too_late = || {
            let elapsed = params.deadline.unwrap_or_default();
            Error::from(EngineError::DeadlineExceeded { elapsed })
        };
        let words = self.words();
        let family = words.decision_family()?;
        if let Some(family) = family {
            params.check_extent(state, questions, family.extent(questions))?;
        } else if self.engine().limits().is_encoder {
            return Err(EngineError::PredictsNoTokens.into());
        }
        let maximum = self.n_ctx();
        let rows = family.map_or(RowsOfPrompt::LastLogits, DecisionFamily::rows);
        let budget = RefCell::new(PromptBudget::default());
        let may_go_on = |prompt: &[u32]| {
            let provided = prompt.len();
            if provided > maximum {
                return Err(EngineError::ContextLimitExceeded { provided, maximum }.into());
            }
            let row_bytes = rows.n_bytes(prompt, self.engine().limits());
            budget.borrow_mut().add(provided, row_bytes)?;
            if is_late() { Err(too_late()) } else { Ok(()) }
        };
        let gate = Gate {
            is_wanted,
            check_prompt: &may_go_on,
        };
        let asking = Asking {
            questions,
            names: &params.names,
        };
        let written = match family {
            Some(family) => {
                let text = state.as_text().ok_or_else(|| words.no_vision())?;
                if text.len() > MAX_FAMILY_STATE_BYTES {
                    return Err(DecideError::StateTooLong {
                        found_bytes: text.len(),
                        maximum_bytes: MAX_FAMILY_STATE_BYTES,
                    }
                    .into());
                }
                family_prompts(family, words.tokenizer(), (text, asking), params, gate)?
            }
            None => self.chat_prompts(state, asking, params, gate)?,
        };
        let Some(Prompts { prompts, mut asked }) = written else {
            return Ok(None);
        };
        if params.applies_fitted {
            let fitted = words.decision_temperatures()?;
            for (asked, question) in asked.iter_mut().zip(questions) {
                asked.fitted_temperature = fitted.of(&question.kind);
            }
        }
        let prompts = self.see_once(prompts, params.cache_salt, &|| is_wanted() && !is_late())?;
        let Some(prompts) = prompts else {
            return if is_late() { Err(too_late()) } else { Ok(None) };
        };
        let mut decisions = Decisions {
            engine: self.engine().clone(),
            rows,
            cache_salt: params.cache_salt,
            deadline,
            shared: None,
            passes: None,
            asked,
            question_idx: 0,
            reading: Reading::default(),
            n_prompt_tokens: prompts.iter().map(|prompt| prompt.tokens.len()).sum(),
            n_shared_computed: 0,
        };
        decisions.begin(prompts)?;
        Ok(Some(decisions))
    }
}
