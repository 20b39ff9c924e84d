//! [`ConstraintCompiler`]: compiles constraints to grammars that masks are computed from, within limits.
//!
//! It belongs to a model's vocabulary; samples share its results. Invariants: a compilation that takes too long continues on a separate
//! thread to its own bounded end, and the caller waits no longer than the limit; the cache is bounded.

use std::{
    borrow::Cow,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use llguidance::{
    CancellationHandle, Matcher, ParserFactory,
    api::{ParserLimits, StopReason, TopLevelGrammar},
};
use toktrie::InferenceCapabilities;

use super::{
    alternatives::{Alternatives, Told},
    budget,
    error::{ConstraintError, ConstraintKind, first_line},
    escapes::{Follower, JsonPlaces},
    finite::has_finite_text,
    grammar::{CallGrammar, Constraint, HeldTool},
    lead::{Begin, BudgetPlan, LeadPlan, Mark, Open, OpenPlan},
    marker::Marker,
    matcher::ConstraintMatcher,
    places::Places,
    time_limit::{ThreadClock, TimeLeft},
    vocabulary::Vocabulary,
};
use crate::Tokenizer;

/// Largest number of cached constraints, and largest total size of their sources.
const MAX_KEPT: usize = 64;
const MAX_KEPT_BYTES: usize = 4 << 20;

/// The compiler recurses along the nesting of its input.
const STACK_BYTES: usize = 64 << 20;

/// Prefix of `llguidance`'s errors about a schema; the line before it names a grammar that the request does not know.
const SCHEMA_ERROR: &str = "failed to compile JSON schema: ";

/// Bounds the cost of compiling and following a constraint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConstraintLimits {
    /// Bytes of a schema, pattern, grammar or list.
    pub max_bytes: usize,
    /// Levels of a schema.
    pub max_depth: usize,
    /// CPU time to compile one.
    pub compile_time: Duration,
    /// Time that a caller waits for one, even if the machine is busy with other work.
    pub longest_wait: Duration,
    /// States of the lexer that one sample may reach, each of 1 to 2 kB.
    pub max_lexer_states: usize,
}

impl Default for ConstraintLimits {
    fn default() -> Self {
        Self {
            max_bytes: 1 << 20,
            max_depth: 100,
            // A request is answered within a second if the machine has time; the work before and after takes part of it.
            compile_time: Duration::from_millis(750),
            longest_wait: Duration::from_secs(10),
            max_lexer_states: 50_000,
        }
    }
}

/// Compiles constraints for the vocabulary of one model.
pub struct ConstraintCompiler {
    shared: Arc<Shared>,
    /// The newest last.
    kept: Mutex<Vec<(ConstraintKind, String, Arc<Prototype>)>>,
}

struct Shared {
    vocabulary: Arc<Vocabulary>,
    factory: ParserFactory,
    limits: ConstraintLimits,
    places: Places,
    /// CPU time of the compilation that ended last.
    #[cfg(test)]
    newest_work: Mutex<Duration>,
}

/// A matcher at the start of its grammar, which is copied and never advanced. So the lexer states of one request's text do not count
/// against the limits of others.
struct Prototype(Mutex<Matcher>);

/// A constraint that samples can follow.
#[derive(Clone)]
pub struct CompiledConstraint {
    /// `None` for a text that is free throughout.
    prototype: Option<Arc<Prototype>>,
    json: JsonPlaces,
    /// Calls that may replace the text.
    calls: Option<(Arc<Prototype>, JsonPlaces)>,
    /// Starts of such calls.
    call_starts: Arc<[String]>,
    vocabulary: Arc<Vocabulary>,
    lead: Arc<LeadPlan>,
    is_lenient: bool,
}

impl fmt::Debug for ConstraintCompiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConstraintCompiler")
            .field("limits", &self.shared.limits)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for CompiledConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompiledConstraint")
            .field("lead", &self.lead)
            .finish_non_exhaustive()
    }
}

impl ConstraintCompiler {
    /// Makes a compiler for the vocabulary of `tokenizer`, with the usual limits.
    ///
    /// # Errors
    /// [`ConstraintError::Vocabulary`] for a vocabulary without text or of too much.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, ConstraintError> {
        Self::with_limits(tokenizer, ConstraintLimits::default())
    }

    /// Makes a compiler with other limits.
    ///
    /// # Errors
    /// Returns the errors of [`Self::new`].
    pub fn with_limits(tokenizer: &Tokenizer, limits: ConstraintLimits) -> Result<Self, ConstraintError> {
        let vocabulary = Vocabulary::new(tokenizer)?;
        let refused = |error: &dyn fmt::Display| ConstraintError::Vocabulary {
            reason: first_line(&error.to_string()),
        };
        // Without forced tokens: the model chooses the tokens of the text.
        let mut factory = ParserFactory::new_simple(&vocabulary.env).map_err(|error| refused(&error))?;
        debug_assert!(!InferenceCapabilities::default().ff_tokens);
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            max_lexer_states: limits.max_lexer_states,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(Self {
            shared: Arc::new(Shared {
                vocabulary: Arc::new(vocabulary),
                factory,
                limits,
                places: Places::default(),
                #[cfg(test)]
                newest_work: Mutex::default(),
            }),
            kept: Mutex::default(),
        })
    }

    /// Compiles a constraint, or finds it in the cache. Blocks no longer than the limits of time.
    ///
    /// # Errors
    /// [`ConstraintError`]: the part that cannot be enforced, or the exceeded limit.
    pub fn compile(&self, constraint: &Constraint) -> Result<CompiledConstraint, ConstraintError> {
        self.compile_for(constraint, 0)
    }

    /// Compiles a constraint for one of several clients, none of whom can block the others.
    ///
    /// # Errors
    /// Returns the errors of [`Self::compile`].
    pub fn compile_for(
        &self,
        constraint: &Constraint,
        client: u64,
    ) -> Result<CompiledConstraint, ConstraintError> {
        let limits = &self.shared.limits;
        let mut left = TimeLeft {
            cpu: limits.compile_time,
            deadline: Instant::now() + limits.longest_wait,
        };
        let mut compiled = self.compile_within(constraint, &mut left, client)?;
        if let Some((calls, told)) = constraint.alternative() {
            let calls = self.compile_within(&calls, &mut left, client)?;
            compiled.calls = calls.prototype.map(|prototype| (prototype, calls.json));
            if let Told::ByStart(starts) = told {
                compiled.call_starts = starts.as_slice().into();
            }
        }
        Ok(compiled)
    }

    /// Says whether all parts of a constraint are in the cache, so that compiling it takes no time.
    pub fn has(&self, constraint: &Constraint) -> bool {
        let has = |constraint: &Constraint| {
            let (kind, source) = (constraint.kind(), constraint.source());
            let is_kept = || (lock(&self.kept).iter()).any(|(of, text, _)| *of == kind && *text == source);
            constraint.is_any() || is_kept()
        };
        has(constraint) && constraint.alternative().is_none_or(|(calls, _)| has(&calls))
    }

    /// Compiles a constraint or its replacement, and subtracts the used CPU time from `left`.
    fn compile_within(
        &self,
        constraint: &Constraint,
        left: &mut TimeLeft,
        client: u64,
    ) -> Result<CompiledConstraint, ConstraintError> {
        let mut constraint = Cow::Borrowed(constraint);
        loop {
            let relaxed = constraint.relaxed();
            // A quarter of the time is reserved for the replacement.
            let keeps_time = relaxed.as_ref().is_some_and(|relaxed| !relaxed.is_any());
            let share = if keeps_time { left.three_quarters() } else { *left };
            let mut used = Duration::ZERO;
            let compiled = self.compile_as_is(&constraint, share, &mut used, client);
            left.cpu = left.cpu.saturating_sub(used);
            match (compiled, relaxed) {
                (Err(_), Some(relaxed)) => constraint = Cow::Owned(relaxed),
                (compiled, _) => return compiled,
            }
        }
    }

    fn compile_as_is(
        &self,
        constraint: &Constraint,
        left: TimeLeft,
        used: &mut Duration,
        client: u64,
    ) -> Result<CompiledConstraint, ConstraintError> {
        constraint.check(&self.shared.limits)?;
        let (kind, source) = (constraint.kind(), constraint.source());
        let maximum = self.shared.limits.max_bytes;
        if source.len() > maximum {
            return Err(ConstraintError::TooLarge {
                kind,
                found: source.len(),
                maximum,
            });
        }
        let prototype = if constraint.is_any() {
            None
        } else if let Some(prototype) = self.find(kind, &source) {
            Some(prototype)
        } else {
            let made = Arc::new(self.shared.compile_apart(constraint, left, used, client)?);
            self.keep(kind, source, Arc::clone(&made));
            Some(made)
        };
        Ok(CompiledConstraint {
            lead: Arc::new((self.shared).lead(
                constraint.begin(),
                prototype.is_some(),
                constraint.alternative().is_some(),
                constraint.calls_to_follow(),
            )),
            prototype,
            json: constraint.json_places(),
            calls: None,
            call_starts: Arc::default(),
            vocabulary: Arc::clone(&self.shared.vocabulary),
            is_lenient: constraint.is_lenient(),
        })
    }

    fn find(&self, kind: ConstraintKind, source: &str) -> Option<Arc<Prototype>> {
        let mut kept = lock(&self.kept);
        let at = (kept.iter()).position(|(of, text, _)| *of == kind && text == source)?;
        let entry = kept.remove(at);
        let prototype = Arc::clone(&entry.2);
        kept.push(entry);
        Some(prototype)
    }

    fn keep(&self, kind: ConstraintKind, source: String, prototype: Arc<Prototype>) {
        let mut kept = lock(&self.kept);
        let mut n_bytes = source.len() + kept.iter().map(|(_, text, _)| text.len()).sum::<usize>();
        while kept.len() >= MAX_KEPT || (n_bytes > MAX_KEPT_BYTES && !kept.is_empty()) {
            n_bytes -= kept.remove(0).1.len();
        }
        kept.push((kind, source, prototype));
    }
}

impl Shared {
    /// Compiles on a separate thread and waits for the result as long as there is time, then cancels the thread. Adds the CPU time of the
    /// thread to `used`.
    fn compile_apart(
        self: &Arc<Self>,
        constraint: &Constraint,
        left: TimeLeft,
        used: &mut Duration,
        client: u64,
    ) -> Result<Prototype, ConstraintError> {
        let (kind, limit) = (constraint.kind(), self.limits.compile_time);
        let busy = || ConstraintError::Busy {
            n_running: self.places.n_running(),
        };
        if !self.places.enter(client, left.deadline) {
            return Err(busy());
        }
        let (sender, receiver) = mpsc::channel();
        let wish = Arc::<Wish>::default();
        let spawned = {
            let (shared, constraint, wish) = (Arc::clone(self), constraint.clone(), Arc::clone(&wish));
            thread::Builder::new()
                .name("constraint".to_owned())
                .stack_size(STACK_BYTES)
                .spawn(move || {
                    let _place = shared.places.held(client);
                    let clock = wish.clock.get_or_init(ThreadClock::of_this_thread);
                    let is_late = || wish.is_dropped() || clock.used() >= left.cpu;
                    let compiled = shared.compile_here(&constraint, &is_late, &wish);
                    #[cfg(test)]
                    (*lock(&shared.newest_work) = clock.used());
                    // The caller is gone if a limit was exceeded.
                    let _ = sender.send((compiled, clock.used()));
                })
        };
        if spawned.is_err() {
            drop(self.places.held(client));
            return Err(busy());
        }
        loop {
            let used_so_far = wish.clock.get().map_or(Duration::ZERO, ThreadClock::used);
            let wait = left.next_wait(used_so_far);
            match receiver.recv_timeout(wait) {
                Ok((compiled, used_in_all)) => {
                    *used += used_in_all;
                    return compiled;
                }
                Err(mpsc::RecvTimeoutError::Timeout) if wait.is_zero() => {
                    *used += used_so_far;
                    wish.drop_it();
                    return Err(if used_so_far < left.cpu {
                        busy()
                    } else {
                        ConstraintError::TooSlow { kind, limit }
                    });
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(ConstraintError::Refused {
                        kind,
                        reason: "the compiler failed at it".to_owned(),
                    });
                }
            }
        }
    }

    fn compile_here(
        &self,
        constraint: &Constraint,
        is_late: &dyn Fn() -> bool,
        wish: &Wish,
    ) -> Result<Prototype, ConstraintError> {
        let kind = constraint.kind();
        let too_slow = || ConstraintError::TooSlow {
            kind,
            limit: self.limits.compile_time,
        };
        let grammar = constraint.to_grammar()?;
        let refused = |error: &dyn fmt::Display| ConstraintError::Refused {
            kind,
            reason: first_line(&error.to_string()),
        };
        let held = constraint.held_tools().iter();
        if let Err(error) = budget::check(kind, &grammar) {
            // For calls, the error names the tool whose schema is at fault.
            self.check_tools(held, is_late)?;
            return Err(error);
        }
        if wish.is_dropped() {
            return Err(too_slow());
        }
        let parser = match self.factory.create_parser(grammar) {
            _ if wish.is_dropped() => return Err(too_slow()),
            Ok(parser) if has_finite_text(parser.parser.grammar()) => {
                // One tool with an end is enough for all of them together. Without a reference there is no recursion.
                self.check_tools(held.filter(|tool| tool.grammar.contains("\"$ref\"")), is_late)?;
                parser
            }
            refusal => {
                self.check_tools(held, is_late)?;
                let nothing = ConstraintError::Nothing { kind };
                return Err(refusal.err().map_or(nothing, |error| refused(&error)));
            }
        };
        let matcher = Matcher::new(Ok(parser));
        if let Some(error) = matcher.get_error() {
            return Err(refused(&error));
        }
        // The first mask finds grammars that allow nothing, and limits that the first token would exceed.
        let mut first = matcher.deep_clone().into_cancellable();
        wish.cancels(first.cancellation_handle());
        let mask = first.compute_mask_or_eos().map_err(|error| {
            // The matcher forgets why it stopped, but the error's text begins with the reason.
            if error
                .to_string()
                .starts_with(&StopReason::NoExtensionBias.to_string())
            {
                ConstraintError::Nothing { kind }
            } else {
                refused(&error)
            }
        })?;
        if mask.is_zero() {
            return Err(ConstraintError::Nothing { kind });
        }
        Ok(Prototype(Mutex::new(matcher)))
    }

    /// Finds the first of some tools whose calls cannot be constrained to its schema, unless the time is over.
    ///
    /// # Errors
    /// [`ConstraintError::Tool`].
    fn check_tools<'t>(
        &self,
        held: impl Iterator<Item = &'t HeldTool>,
        is_late: &dyn Fn() -> bool,
    ) -> Result<(), ConstraintError> {
        for tool in held.take_while(|_| !is_late()) {
            let grammar = TopLevelGrammar::from_lark(tool.grammar.clone());
            let reason = match budget::check(ConstraintKind::JsonSchema, &grammar) {
                Err(error) => error.to_string(),
                Ok(()) => match self.factory.create_parser(grammar) {
                    Ok(parser) if has_finite_text(parser.parser.grammar()) => continue,
                    Ok(_) => "no finite arguments satisfy it".to_owned(),
                    Err(error) => {
                        let line = first_line(&error.to_string());
                        let at = line.find(SCHEMA_ERROR).map_or(0, |at| at + SCHEMA_ERROR.len());
                        line[at..].to_owned()
                    }
                },
            };
            return Err(ConstraintError::Tool {
                tool: tool.name.clone(),
                reason,
            });
        }
        Ok(())
    }

    /// Tokenizes the lead.
    fn lead(
        &self,
        begin: &Begin,
        has_grammar: bool,
        has_alternative: bool,
        to_follow: Option<&CallGrammar>,
    ) -> LeadPlan {
        let vocabulary = &self.vocabulary;
        let in_tokens = |marks: &[Mark]| -> Vec<(Mark, Vec<u32>)> {
            let marks = marks.iter();
            marks
                .map(|mark| (mark.clone(), vocabulary.tokens_of(&mark.text)))
                .collect()
        };
        let is_free = !has_grammar || !begin.marks.is_empty() && !has_alternative;
        let thoughts = begin.thoughts.as_ref();
        let opens = match thoughts.map(|thoughts| &thoughts.open) {
            None => OpenPlan::Never,
            Some(Open::Begun) => OpenPlan::Begun,
            Some(Open::AtStart(text)) if !is_free => {
                let ids = vocabulary.ids_of(text.as_bytes());
                if ids.is_empty() {
                    OpenPlan::Never
                } else {
                    OpenPlan::Tokens(ids)
                }
            }
            Some(Open::AtStart(text)) => OpenPlan::Text(Mark {
                text: text.clone(),
                is_at_start: true,
            }),
            Some(Open::Anywhere(text)) => OpenPlan::Text(Mark {
                text: text.clone(),
                is_at_start: false,
            }),
            Some(Open::Always(text)) => OpenPlan::Always(vocabulary.tokens_of(text).into()),
        };
        let budget = thoughts.and_then(|thoughts| thoughts.budget.as_ref());
        let budget = budget.and_then(|budget| {
            let end = vocabulary.tokens_of(&budget.end);
            (!end.is_empty()).then(|| BudgetPlan {
                n_tokens: budget.n_tokens,
                end: end.into(),
                not_next: vocabulary.ids_at_the_start_of(budget.not_next.as_bytes()),
            })
        });
        LeadPlan {
            opens,
            close: thoughts.map(|thoughts| Marker::new(&thoughts.close, thoughts.close_end.as_deref())),
            budget,
            marks: in_tokens(&begin.marks),
            behind: to_follow.map(|calls| in_tokens(&calls.marks)),
            holds_in_thoughts: to_follow.is_some_and(|calls| calls.has_strict),
            is_free,
        }
    }
}

/// Tracks how long a compilation has worked, and whether a caller still waits for it.
#[derive(Debug, Default)]
struct Wish {
    is_dropped: AtomicBool,
    /// Measures the work of the compiling thread, once it has begun.
    clock: OnceLock<ThreadClock>,
    /// Cancels the computation of a mask.
    cancellation: Mutex<Option<CancellationHandle>>,
}

impl Wish {
    fn is_dropped(&self) -> bool {
        self.is_dropped.load(Ordering::Acquire)
    }

    /// Records that no caller waits any more, and cancels.
    fn drop_it(&self) {
        self.is_dropped.store(true, Ordering::Release);
        if let Some(cancellation) = &*lock(&self.cancellation) {
            cancellation.cancel();
        }
    }

    /// Lets the wish cancel a computation.
    fn cancels(&self, handle: Option<CancellationHandle>) {
        let mut cancellation = lock(&self.cancellation);
        *cancellation = handle;
        if let Some(cancellation) = cancellation.as_ref().filter(|_| self.is_dropped()) {
            cancellation.cancel();
        }
    }
}

impl CompiledConstraint {
    /// Begins a sample. `end_ids` are the tokens that may end it.
    pub fn matcher(&self, end_ids: &[u32]) -> ConstraintMatcher {
        let begin = |(prototype, json): (&Arc<Prototype>, JsonPlaces)| {
            let matcher = lock(&prototype.0).deep_clone();
            Follower::new(matcher, Arc::clone(&self.vocabulary), json)
        };
        let grammars = (self.prototype.as_ref()).map(|prototype| {
            let calls = self.calls.as_ref().map(|(calls, json)| (calls, *json));
            let matchers = [Some((prototype, self.json)), calls].into_iter().flatten();
            Alternatives::new(matchers.map(begin), Arc::clone(&self.call_starts))
        });
        let lead = Arc::clone(&self.lead);
        ConstraintMatcher::new(
            grammars,
            Arc::clone(&self.vocabulary),
            end_ids,
            lead,
            self.is_lenient,
        )
    }
}

/// Locks a mutex, whose data is consistent at every moment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
pub(super) mod tests;
