//! [`Decisions`]: the answers to typed questions about one state, as probabilities of their options.
//!
//! A decision is a prefill without a decode: it reads the logits after the last token of a prompt, at the tokens of the labels.
//! So any chat model answers, and models that were trained for it answer in the way that their files state. The prompts of all questions
//! begin with the state; that part is computed first, and the questions then follow it in one batch from the prefix cache. Invariant: an
//! answer is the same to the bit whether its question is asked alone, with others, or again.

mod budget;
mod json_object;
mod label_tokens;
mod state;
mod system_one;
mod wording;

use std::{
    cell::RefCell,
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use tokenmill_backend::PAGE_TOKENS;
use tokenmill_sched::{Engine, EngineError, ForwardParams, ForwardRows, Media, MediaSpan};
use tokenmill_text::Tokenizer;

use self::{
    budget::{MAX_OPEN, PromptBudget},
    label_tokens::LabelTokens,
    wording::{labels_of_options, message},
};
use crate::{
    Error, Model,
    decision::{
        family::{Asking, DecisionFamily, RowsOfPrompt},
        question::check,
        readout::{Reading, Readout},
    },
    forward_passes::{ForwardPasses, Pace, PassInput},
    images::PromptImage,
    reply::Prompt,
    wait::wait,
    words::without_reasoning,
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
    json_object::{JsonObject, inner_path, text_of},
    state::{MAX_IMAGES, State},
    system_one::{SystemOneQuestions, image_of_part, images_of, state_of},
    wording::DECISION_PROMPT_VERSION,
};

/// Least temperature of a request.
const LEAST_TEMPERATURE: f64 = 1e-6;

/// Longest state of a model that was trained for decisions. Its template may write the state several times over, as a tree of values.
const MAX_FAMILY_STATE_BYTES: usize = 1 << 20;

/// Tokens that must be saved for the common beginning to be computed in a step of its own, which takes about as long.
const LEAST_SAVED_TOKENS: usize = 64;

/// How questions are answered.
#[derive(Clone, Debug, PartialEq)]
pub struct DecideParams {
    /// Asks each question in this many orders of its options, if there are as many, and averages the probabilities.
    pub permutations: usize,
    /// Divides the logits of the labels or the scores of a head, next to the temperatures of the model's file and those fitted to it.
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

impl DecideParams {
    /// Checks a request as far as that needs no model.
    ///
    /// # Errors
    /// Questions, options, images or texts that are too many or too long, options that are alike, and parameters out of range.
    pub fn check(&self, state: &State, questions: &[Question]) -> Result<(), DecideError> {
        self.check_extent(state, questions, (1, 0))?;
        if state.n_images() > MAX_IMAGES {
            return Err(DecideError::ImageCount {
                found: state.n_images(),
                maximum: MAX_IMAGES,
            });
        }
        // Below it a product with a model's own temperature may become 0.
        if !(self.temperature >= LEAST_TEMPERATURE && self.temperature.is_finite()) {
            let found = self.temperature;
            return Err(DecideError::Temperature { found });
        }
        Ok(())
    }

    /// Checks the number of prompts and the bytes of their texts, for a model that asks in at least `n_orders` orders and lists
    /// `listed_bytes` of other questions in each prompt.
    fn check_extent(
        &self,
        state: &State,
        questions: &[Question],
        (n_orders, listed_bytes): (usize, usize),
    ) -> Result<(), DecideError> {
        let permutations = match self.permutations {
            0 => 0,
            permutations => permutations.max(n_orders),
        };
        check(
            questions,
            state.n_bytes().saturating_add(listed_bytes),
            permutations,
        )
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

/// The prompts of a request, with the places of their images.
#[derive(Debug, Default)]
struct Prompts {
    prompts: Vec<(Vec<u32>, Vec<PromptImage>)>,
    asked: VecDeque<Asked>,
}

/// The part of all prompts that is computed before them.
#[derive(Debug)]
struct Shared {
    pass: ForwardPasses,
    n_tokens: usize,
    /// The prompts that follow.
    prompts: Vec<PassInput>,
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
    /// The rows that were read of the prompt that is being computed.
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
    fn ask(&self, prompts: Vec<PassInput>, is_begun: bool) -> Result<ForwardPasses, Error> {
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
    fn begin(&mut self, prompts: Vec<PassInput>) -> Result<(), Error> {
        let n_shared = n_shared(&prompts);
        let n_saved = n_shared.saturating_mul(prompts.len().saturating_sub(1));
        let keeps_pages = self.engine.config().uses_prefix_cache && !self.engine.limits().is_encoder;
        if n_saved < LEAST_SAVED_TOKENS || !keeps_pages {
            self.passes = Some(self.ask(prompts, false)?);
            return Ok(());
        }
        // The prefix cache never returns the last token of a prompt, so one more token lets it return the last common page.
        let n_tokens = n_shared + 1;
        let first = &prompts[0];
        let media = first.media.iter().filter(|media| media.span.end <= n_tokens);
        let beginning = PassInput {
            tokens: first.tokens[..n_tokens].to_vec(),
            media: media.cloned().collect(),
        };
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

/// Returns the number of tokens, in whole pages, with which all prompts begin and after which each has more. The token after them is in no
/// image that they have a part of.
fn n_shared(prompts: &[PassInput]) -> usize {
    let Some((first, others)) = prompts.split_first() else {
        return 0;
    };
    let n_before_last = |prompt: &PassInput| prompt.tokens.len().saturating_sub(1);
    let n_common = others.iter().fold(n_before_last(first), |n_common, other| {
        let pairs = first.tokens[..n_common]
            .iter()
            .zip(&other.tokens[..n_before_last(other)]);
        pairs.take_while(|(a, b)| a == b).count()
    });
    let in_pages = |n_tokens: usize| n_tokens / PAGE_TOKENS * PAGE_TOKENS;
    let images = first.media.iter().rev().map(|media| media.span);
    images.fold(in_pages(n_common), |n_shared, image| {
        if image.start <= n_shared && n_shared + 1 < image.end {
            in_pages(image.start.saturating_sub(1))
        } else {
            n_shared
        }
    })
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

    /// Writes the prompts of a chat model, which answers with labels; `None` once they are not wanted.
    fn chat_prompts(
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
    fn see_once(
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

/// Conditions under which prompts are written.
#[derive(Clone, Copy)]
struct Gate<'a> {
    /// Returns false once no caller waits for the answers.
    is_wanted: &'a dyn Fn() -> bool,
    /// Refuses a prompt that is too long, too much for the request, or too late.
    check_prompt: &'a dyn Fn(&[u32]) -> Result<(), Error>,
}

/// Writes the prompts of a model that was trained for decisions; `None` once they are not wanted.
fn family_prompts(
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

#[cfg(test)]
mod tests {
    use tokenmill_sched::MediaPlaces;

    use super::*;

    #[test]
    fn the_common_beginning_ends_with_a_page_before_any_prompt_does() {
        let of = |n_common: u32, end: u32| -> Vec<u32> { (0..n_common).chain([1000 + end]).collect() };
        let check = |prompts: &[Vec<u32>], expected: usize| {
            let prompts: Vec<_> = prompts.iter().cloned().map(PassInput::from).collect();
            assert_eq!(n_shared(&prompts), expected);
        };
        check(&[], 0);
        check(&[of(40, 0)], 32);
        check(&[of(40, 0), of(40, 1)], 32);
        check(&[of(32, 0), of(40, 1)], 32);
        check(&[of(31, 0), of(40, 1)], 16);
        check(&[(0..32).collect(), (0..32).collect()], 16);
        check(&[of(3, 0), of(40, 1)], 0);
    }

    #[test]
    fn temperatures_that_may_become_zero_are_refused() {
        let check = |temperature: f64| {
            let params = DecideParams {
                temperature,
                ..DecideParams::default()
            };
            params.check(&State::from("a"), &[Question::predicate("Is it?")])
        };
        assert!(check(LEAST_TEMPERATURE).is_ok() && check(1000.0).is_ok());
        for temperature in [0.0, -1.0, 5e-324, 1e-7, f64::NAN, f64::INFINITY] {
            assert!(check(temperature).is_err(), "{temperature}");
        }
    }

    #[test]
    fn the_common_beginning_cuts_no_image() {
        let check = |spans: &[(usize, usize)], expected: usize| {
            let media = spans.iter().map(|&(start, end)| Media {
                span: MediaSpan {
                    start,
                    end,
                    content: 0,
                    sees_itself: true,
                    places: MediaPlaces::Line,
                },
                rows: Arc::new([]),
            });
            let prompts = [0, 1].map(|end| PassInput {
                tokens: (0..70).chain([1000 + end, 0]).collect(),
                media: media.clone().collect(),
            });
            assert_eq!(n_shared(&prompts), expected, "{spans:?}");
        };
        check(&[], 64);
        check(&[(3, 20)], 64);
        check(&[(3, 65)], 64);
        check(&[(3, 66)], 0);
        check(&[(40, 68)], 32);
        check(&[(20, 33), (34, 66)], 32);
        check(&[(20, 34), (34, 66)], 16);
        check(&[(64, 68)], 48);
        check(&[(65, 68)], 64);
    }
}
