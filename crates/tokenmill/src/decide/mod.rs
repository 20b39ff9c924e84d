//! [`Decisions`]: the answers to typed questions about one state, as probabilities of their options.
//!
//! A decision is a prefill without a decode: it reads the logits after the last token of a prompt, at the tokens of the labels.
//! So any chat model answers, and models that were trained for it answer in the way that their files state. The prompts of all questions
//! begin with the state; that part is computed first, and the questions then follow it in one batch from the prefix cache. Invariant: an
//! answer is the same to the bit whether its question is asked alone, with others, or again.

mod decision;
mod family;
mod label_tokens;
mod question;
mod readout;
mod system_one;
mod temperatures;
mod wording;

use std::{
    collections::VecDeque,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use tokenmill_backend::PAGE_TOKENS;
use tokenmill_sched::{Engine, EngineError, ForwardParams, ForwardRows};
use tokenmill_text::Tokenizer;

use self::{
    family::{Asking, RowsOfPrompt},
    label_tokens::LabelTokens,
    question::check,
    readout::{Reading, Readout},
    wording::{labels_of_options, message},
};
use crate::{
    Error, Model,
    forward_passes::{ForwardPasses, Pace},
    wait::wait,
    words::without_reasoning,
};

pub use crate::decide_error::DecideError;

pub(crate) use self::family::{DecisionFamily, has_pointer_head, open_family};
pub use self::{
    decision::Decision,
    question::{
        ChoiceOption, MAX_LEVELS, MAX_OPTIONS, MAX_PERMUTATIONS, MAX_QUESTIONS, Question, QuestionKind,
    },
    system_one::{SystemOneQuestions, state_text},
    temperatures::{DecisionTemperatures, KnownAnswers},
    wording::DECISION_PROMPT_VERSION,
};

/// Questions in the engine at a time. Each has a row of logits, a MiB for a large vocabulary, until it is read.
const MAX_OPEN: usize = 64;

/// Tokens that must be saved for the common beginning to be computed in a step of its own, which takes about as long.
const LEAST_SAVED_TOKENS: usize = 64;

/// How questions are answered.
#[derive(Clone, Debug, PartialEq)]
pub struct DecideParams {
    /// Asks each question in this many orders of its options, if there are as many, and averages the probabilities.
    pub permutations: usize,
    /// Divides the logits of the labels; 1 leaves the model's own probabilities.
    pub temperature: f64,
    /// Fails the request unless it ends within this time.
    pub deadline: Option<Duration>,
    /// Separates its cached prompts from those of requests with another salt.
    pub cache_salt: u64,
    /// Names of the questions, for models whose prompts have them. Questions without are numbered.
    pub names: Vec<String>,
    /// Whether the temperatures next to the model are applied.
    pub applies_fitted: bool,
}

impl Default for DecideParams {
    fn default() -> Self {
        Self {
            permutations: 1,
            temperature: 1.0,
            deadline: None,
            cache_salt: 0,
            names: Vec::new(),
            applies_fitted: true,
        }
    }
}

/// A question that waits for its answer.
#[derive(Debug)]
struct Asked {
    /// The places of the options, for each of their orders.
    readouts: VecDeque<Readout>,
    /// Divides what is read.
    temperature: f64,
    /// Divides the logarithms of the answer.
    fitted_temperature: f64,
    /// Answers in the orders that were read.
    readings: Vec<Decision>,
}

/// The prompts of a request.
#[derive(Debug, Default)]
struct Prompts {
    prompts: Vec<Vec<u32>>,
    asked: VecDeque<Asked>,
}

/// The part of all prompts that is computed before them.
#[derive(Debug)]
struct Shared {
    pass: ForwardPasses,
    n_tokens: usize,
    /// The prompts that follow.
    prompts: Vec<Vec<u32>>,
}

/// The answers to the questions of a request: an iterator that waits for each. Dropping it cancels unfinished work.
#[derive(Debug)]
pub struct Decisions {
    engine: Engine,
    rows: RowsOfPrompt,
    cache_salt: u64,
    deadline: Option<Instant>,
    shared: Option<Shared>,
    passes: Option<ForwardPasses>,
    asked: VecDeque<Asked>,
    question_idx: usize,
    /// What was read of the prompt that is being computed.
    reading: Reading,
    n_prompt_tokens: usize,
    /// Tokens that were computed for the common beginning.
    n_shared_computed: usize,
}

impl Decisions {
    /// Returns the number of tokens of all prompts. Each of them has the state.
    pub fn n_prompt_tokens(&self) -> usize {
        self.n_prompt_tokens
    }

    /// Returns how many of them did not have to be computed for this request, once all answers were read.
    pub fn n_cached_tokens(&self) -> usize {
        let n_cached = self.passes.as_ref().map_or(0, ForwardPasses::n_cached_tokens);
        n_cached.saturating_sub(self.n_shared_computed)
    }

    /// Returns the answer to the next question, without blocking a thread; `None` after the last.
    pub async fn next_decision(&mut self) -> Option<Result<Decision, Error>> {
        std::future::poll_fn(|context| self.poll_decision(context)).await
    }

    fn poll_decision(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Decision, Error>>> {
        let answer = ready!(self.poll_answer(context));
        if let Some(Err(_)) = answer {
            self.asked.clear();
            (self.shared, self.passes) = (None, None);
        }
        Poll::Ready(answer)
    }

    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Decision, Error>>> {
        if let Some(shared) = &mut self.shared {
            while let Some(done) = ready!(shared.pass.poll(context, |_| {})) {
                done?;
            }
            let shared = self.shared.take().expect("it was just polled");
            self.n_shared_computed = shared.n_tokens.saturating_sub(shared.pass.n_cached_tokens());
            self.passes = Some(self.ask(shared.prompts, true)?);
        }
        let (Some(passes), Some(asked)) = (&mut self.passes, self.asked.front_mut()) else {
            return Poll::Ready(None);
        };
        let no_numbers = DecideError::NoNumbers {
            question_idx: self.question_idx,
        };
        while let Some(readout) = asked.readouts.front() {
            let (reading, temperature) = (&mut self.reading, asked.temperature);
            let done = ready!(passes.poll(context, |row| reading.add(readout, row, temperature)));
            let Some(done) = done else {
                return Poll::Ready(None);
            };
            done?;
            let answer = reading.finish(readout, temperature);
            asked.readings.push(answer.ok_or_else(|| no_numbers.clone())?);
            asked.readouts.pop_front();
        }
        let decision = Decision::mean_of(&asked.readings).tempered(asked.fitted_temperature);
        self.asked.pop_front();
        self.question_idx += 1;
        Poll::Ready(Some(Ok(decision)))
    }

    /// Submits the prompts.
    fn ask(&self, prompts: Vec<Vec<u32>>, is_begun: bool) -> Result<ForwardPasses, Error> {
        let pace = Pace {
            max_open: MAX_OPEN,
            is_begun,
        };
        let (cache_salt, rows) = (self.cache_salt, self.rows);
        ForwardPasses::start_at(&self.engine, prompts, pace, self.deadline, move |prompt| {
            ForwardParams {
                cache_salt,
                ..rows.params(prompt)
            }
        })
    }

    /// Submits the common beginning of the prompts, if that saves time, and else the prompts.
    fn begin(&mut self, prompts: Vec<Vec<u32>>) -> Result<(), Error> {
        let n_shared = n_shared(&prompts);
        let n_saved = n_shared.saturating_mul(prompts.len().saturating_sub(1));
        let keeps_pages = self.engine.config().uses_prefix_cache && !self.engine.limits().is_encoder;
        if n_saved < LEAST_SAVED_TOKENS || !keeps_pages {
            self.passes = Some(self.ask(prompts, false)?);
            return Ok(());
        }
        // The prefix cache never returns the last token of a prompt, so one more token lets it return the last common page.
        let n_tokens = n_shared + 1;
        let beginning = prompts[0][..n_tokens].to_vec();
        let pace = Pace {
            max_open: 1,
            is_begun: false,
        };
        let cache_salt = self.cache_salt;
        let pass = ForwardPasses::start_at(&self.engine, vec![beginning], pace, self.deadline, move |_| {
            ForwardParams {
                cache_salt,
                ..ForwardParams::new(ForwardRows::Hidden, n_shared)
            }
        })?;
        self.shared = Some(Shared {
            pass,
            n_tokens,
            prompts,
        });
        Ok(())
    }
}

impl Iterator for Decisions {
    type Item = Result<Decision, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        wait(|context| self.poll_decision(context))
    }
}

/// Returns the number of tokens, in whole pages, with which all prompts begin and after which each has more.
fn n_shared(prompts: &[Vec<u32>]) -> usize {
    let Some((first, others)) = prompts.split_first() else {
        return 0;
    };
    let n_common = others
        .iter()
        .fold(first.len().saturating_sub(1), |n_common, other| {
            let other = &other[..other.len().saturating_sub(1)];
            let pairs = first[..n_common].iter().zip(other);
            pairs.take_while(|(a, b)| a == b).count()
        });
    n_common / PAGE_TOKENS * PAGE_TOKENS
}

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
    pub fn decide(&self, state: &str, questions: &[Question]) -> Result<Vec<Decision>, Error> {
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
        state: &str,
        questions: &[Question],
        params: &DecideParams,
    ) -> Result<Decisions, Error> {
        let words = self.words();
        let family = words.decision_family()?;
        let (n_orders, listed_bytes) = family.map_or((1, 0), |family| family.extent(questions));
        let permutations = match params.permutations {
            0 => 0,
            permutations => permutations.max(n_orders),
        };
        check(questions, state.len().saturating_add(listed_bytes), permutations)?;
        if !(params.temperature > 0.0 && params.temperature.is_finite()) {
            let found = params.temperature;
            return Err(DecideError::Temperature { found }.into());
        }
        let deadline = params
            .deadline
            .and_then(|deadline| Instant::now().checked_add(deadline));
        if family.is_none() && self.engine().limits().is_encoder {
            return Err(EngineError::PredictsNoTokens.into());
        }
        let in_time = |prompt: &[u32]| {
            let (provided, maximum) = (prompt.len(), self.n_ctx());
            if provided > maximum {
                return Err(EngineError::ContextLimitExceeded { provided, maximum });
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                let elapsed = params.deadline.unwrap_or_default();
                return Err(EngineError::DeadlineExceeded { elapsed });
            }
            Ok(())
        };
        let asking = Asking {
            state,
            questions,
            names: &params.names,
        };
        let Prompts { prompts, asked } = match family {
            Some(family) => family_prompts(family, words.tokenizer(), asking, params, &in_time)?,
            None => self.chat_prompts(asking, params, &in_time)?,
        };
        let fitted = words.decision_temperatures();
        let fitted_for = |question: &Question| {
            if params.applies_fitted {
                fitted.of(&question.kind)
            } else {
                1.0
            }
        };
        let asked = asked.into_iter().zip(questions).map(|(asked, question)| Asked {
            fitted_temperature: fitted_for(question),
            ..asked
        });
        let asked = asked.collect();
        let mut decisions = Decisions {
            engine: self.engine().clone(),
            rows: family.map_or(RowsOfPrompt::LastLogits, DecisionFamily::rows),
            cache_salt: params.cache_salt,
            deadline,
            shared: None,
            passes: None,
            asked,
            question_idx: 0,
            reading: Reading::default(),
            n_prompt_tokens: prompts.iter().map(Vec::len).sum(),
            n_shared_computed: 0,
        };
        decisions.begin(prompts)?;
        Ok(decisions)
    }

    /// Writes the prompts of a chat model, which answers with labels.
    fn chat_prompts(
        &self,
        asking: Asking<'_>,
        params: &DecideParams,
        check_prompt: &dyn Fn(&[u32]) -> Result<(), EngineError>,
    ) -> Result<Prompts, Error> {
        let words = self.words();
        let place = words.answer_place()?;
        let mut tokens = LabelTokens::new(words.tokenizer(), &place);
        let mut all = Prompts::default();
        for (question_idx, question) in asking.questions.iter().enumerate() {
            let labels = tokens.choose(question, question_idx)?;
            let of_labels = tokens.tokens(&labels.texts).expect("the labels were chosen so");
            let mut readouts = VecDeque::new();
            for order in question.orders(params.permutations) {
                let text = message(asking.state, question, &order, &labels);
                let prompt = words.encode_chat(&without_reasoning(&text))?;
                check_prompt(&prompt)?;
                if !tokens.follow(&prompt) {
                    return Err(DecideError::OtherEnd { question_idx }.into());
                }
                let of_options = labels_of_options(&order, question).into_iter();
                let of_options = of_options.map(|label_idx| of_labels[label_idx]);
                readouts.push_back(Readout::Labels(of_options.collect()));
                all.prompts.push(prompt);
            }
            all.asked.push_back(Asked::new(readouts, params.temperature));
        }
        Ok(all)
    }
}

impl Asked {
    fn new(readouts: VecDeque<Readout>, temperature: f64) -> Self {
        Self {
            readouts,
            temperature,
            fitted_temperature: 1.0,
            readings: Vec::new(),
        }
    }
}

/// Writes the prompts of a model that was trained for decisions.
fn family_prompts(
    family: &DecisionFamily,
    tokenizer: &Tokenizer,
    asking: Asking<'_>,
    params: &DecideParams,
    check_prompt: &dyn Fn(&[u32]) -> Result<(), EngineError>,
) -> Result<Prompts, Error> {
    family.check(asking.questions)?;
    let mut all = Prompts::default();
    for (question_idx, question) in asking.questions.iter().enumerate() {
        let mut readouts = VecDeque::new();
        for order in family.orders(question, params.permutations) {
            let prompt = family.prompt(tokenizer, asking, question_idx, &order)?;
            check_prompt(&prompt.tokens)?;
            readouts.push_back(prompt.readout);
            all.prompts.push(prompt.tokens);
        }
        let temperature = params.temperature * family.temperature(question);
        all.asked.push_back(Asked::new(readouts, temperature));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_beginning_ends_with_a_page_before_any_prompt_does() {
        let of = |n_common: u32, end: u32| -> Vec<u32> { (0..n_common).chain([1000 + end]).collect() };
        let check = |prompts: &[Vec<u32>], expected: usize| assert_eq!(n_shared(prompts), expected);
        check(&[], 0);
        check(&[of(40, 0)], 32);
        check(&[of(40, 0), of(40, 1)], 32);
        check(&[of(32, 0), of(40, 1)], 32);
        check(&[of(31, 0), of(40, 1)], 16);
        check(&[(0..32).collect(), (0..32).collect()], 16);
        check(&[of(3, 0), of(40, 1)], 0);
    }
}
