//! [`ConstraintCompiler`]: from a constraint to something that masks are computed from, within limits.
//!
//! Separate from the constraint because it belongs to a model's vocabulary, and from the matcher because samples share what
//! it makes. Invariants: a compilation that takes too long is left to its own bounded end on a thread of its own, and the
//! caller waits no longer than the limit; what is kept is bounded.

use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use llguidance::{Matcher, ParserFactory, api::ParserLimits};
use toktrie::InferenceCapabilities;

use super::{
    error::{ConstraintError, ConstraintKind, first_line},
    finite::has_finite_text,
    grammar::Constraint,
    lead::{Begin, BudgetPlan, LeadPlan, Mark, Open, OpenPlan},
    marker::Marker,
    matcher::ConstraintMatcher,
    vocabulary::Vocabulary,
};
use crate::Tokenizer;

/// Compiled constraints that are kept, and how large all of them may be as they were written.
const MAX_KEPT: usize = 64;
const MAX_KEPT_BYTES: usize = 4 << 20;

/// Constraints that are compiled side by side; a hostile one costs a thread for a while.
const MAX_RUNNING: usize = 4;

/// The compiler's recursion follows the nesting of what it compiles.
const STACK_BYTES: usize = 64 << 20;

/// What compiling and following a constraint may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConstraintLimits {
    /// Bytes of a schema, pattern, grammar or list.
    pub max_bytes: usize,
    /// Levels of a schema.
    pub max_depth: usize,
    /// Time to compile one.
    pub compile_time: Duration,
    /// States of the lexer that one sample may reach, each of 1 to 2 kB.
    pub max_lexer_states: usize,
}

impl Default for ConstraintLimits {
    fn default() -> Self {
        Self {
            max_bytes: 1 << 20,
            max_depth: 100,
            compile_time: Duration::from_millis(900),
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
    n_running: Mutex<usize>,
    has_ended: Condvar,
}

/// A matcher at the start of its grammar, to be copied. Never advanced, so that what one request's text made the lexer
/// remember does not count against the limits of others.
struct Prototype(Mutex<Matcher>);

/// A constraint that samples can follow.
#[derive(Clone)]
pub struct CompiledConstraint {
    /// None for text that is free from its beginning to its end.
    prototype: Option<Arc<Prototype>>,
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
    /// As [`Self::new`].
    pub fn with_limits(tokenizer: &Tokenizer, limits: ConstraintLimits) -> Result<Self, ConstraintError> {
        let vocabulary = Vocabulary::new(tokenizer)?;
        let refused = |error: &dyn fmt::Display| ConstraintError::Vocabulary {
            reason: first_line(&error.to_string()),
        };
        // Without forced tokens: which tokens the text is made of is the model's choice.
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
                n_running: Mutex::new(0),
                has_ended: Condvar::new(),
            }),
            kept: Mutex::default(),
        })
    }

    /// Compiles a constraint, or finds it among those compiled before. Blocks for no longer than the limit of time.
    ///
    /// # Errors
    /// [`ConstraintError`]: what cannot be enforced, or which limit it exceeds.
    pub fn compile(&self, constraint: &Constraint) -> Result<CompiledConstraint, ConstraintError> {
        match self.compile_as_is(constraint) {
            Err(error) => match constraint.relaxed() {
                Some(relaxed) => self.compile(&relaxed),
                None => Err(error),
            },
            compiled => compiled,
        }
    }

    fn compile_as_is(&self, constraint: &Constraint) -> Result<CompiledConstraint, ConstraintError> {
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
            let made = Arc::new(self.shared.compile_apart(constraint)?);
            self.keep(kind, source, Arc::clone(&made));
            Some(made)
        };
        Ok(CompiledConstraint {
            lead: Arc::new(self.shared.lead(constraint.begin(), prototype.is_some())),
            prototype,
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
    /// Compiles on a thread of its own and waits for the result within the limit of time.
    fn compile_apart(self: &Arc<Self>, constraint: &Constraint) -> Result<Prototype, ConstraintError> {
        let (kind, limit) = (constraint.kind(), self.limits.compile_time);
        let deadline = Instant::now() + limit;
        self.enter(deadline)?;
        let (sender, receiver) = mpsc::channel();
        let (shared, constraint) = (Arc::clone(self), constraint.clone());
        let spawned = thread::Builder::new()
            .name("constraint".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                let _place = Place(&shared);
                // The caller has gone where the limit was exceeded.
                let _ = sender.send(shared.compile_here(&constraint));
            });
        if spawned.is_err() {
            self.leave();
            return Err(ConstraintError::Busy {
                n_running: *lock(&self.n_running),
            });
        }
        match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(compiled) => compiled,
            Err(mpsc::RecvTimeoutError::Timeout) => Err(ConstraintError::TooSlow { kind, limit }),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(ConstraintError::Refused {
                kind,
                reason: "the compiler failed at it".to_owned(),
            }),
        }
    }

    fn compile_here(&self, constraint: &Constraint) -> Result<Prototype, ConstraintError> {
        let kind = constraint.kind();
        let grammar = constraint.to_grammar()?;
        let refused = |error: &dyn fmt::Display| ConstraintError::Refused {
            kind,
            reason: first_line(&error.to_string()),
        };
        let parser = self
            .factory
            .create_parser(grammar)
            .map_err(|error| refused(&error))?;
        if !has_finite_text(parser.parser.grammar()) {
            return Err(ConstraintError::Nothing { kind });
        }
        let matcher = Matcher::new(Ok(parser));
        if let Some(error) = matcher.get_error() {
            return Err(refused(&error));
        }
        // The first mask finds grammars that admit nothing, and limits that the first token would exceed.
        let mut first = matcher.deep_clone();
        let mask = first.compute_mask_or_eos().map_err(|error| refused(&error))?;
        if mask.is_zero() {
            return Err(ConstraintError::Nothing { kind });
        }
        Ok(Prototype(Mutex::new(matcher)))
    }

    /// What comes first, in tokens.
    fn lead(&self, begin: &Begin, has_grammar: bool) -> LeadPlan {
        let vocabulary = &self.vocabulary;
        let is_free = !has_grammar || !begin.marks.is_empty();
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
            close: thoughts.map(|thoughts| Marker::new(&thoughts.close)),
            budget,
            marks: (begin.marks.iter())
                .map(|mark| (mark.clone(), vocabulary.tokens_of(&mark.text)))
                .collect(),
            is_free,
        }
    }

    /// Takes one of the places to compile at.
    fn enter(&self, deadline: Instant) -> Result<(), ConstraintError> {
        let mut n_running = lock(&self.n_running);
        while *n_running >= MAX_RUNNING {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ConstraintError::Busy {
                    n_running: *n_running,
                });
            }
            let waited = self.has_ended.wait_timeout(n_running, left);
            (n_running, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        *n_running += 1;
        Ok(())
    }

    fn leave(&self) {
        *lock(&self.n_running) -= 1;
        self.has_ended.notify_one();
    }
}

/// Gives a place back, also when the compiler panics.
struct Place<'a>(&'a Shared);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl CompiledConstraint {
    /// Begins a sample. `end_ids` are the tokens that may end it.
    pub fn matcher(&self, end_ids: &[u32]) -> ConstraintMatcher {
        let matcher = (self.prototype.as_ref()).map(|prototype| lock(&prototype.0).deep_clone());
        let lead = Arc::clone(&self.lead);
        ConstraintMatcher::new(
            matcher,
            Arc::clone(&self.vocabulary),
            end_ids,
            lead,
            self.is_lenient,
        )
    }
}

/// What these locks guard is whole at every moment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};
    use tokenmill_gguf::{Metadata, StringArray};

    use super::*;

    /// A vocabulary of all bytes, then the end of a text.
    pub(in crate::constraint) fn bytes_tokenizer() -> Tokenizer {
        let mut metadata = Metadata::new();
        let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
        let tokens = bytes.chain(["<end>".to_owned(), "<unk>".to_owned()]);
        let mut kinds = vec![6; 256];
        kinds.extend([3, 2]);
        let set = || -> Result<(), tokenmill_gguf::GgufError> {
            metadata.insert("tokenizer.ggml.model", "llama")?;
            metadata.insert("tokenizer.ggml.tokens", tokens.collect::<StringArray>())?;
            metadata.insert("tokenizer.ggml.scores", vec![0f32; 258])?;
            metadata.insert("tokenizer.ggml.token_type", kinds)?;
            metadata.insert("tokenizer.ggml.eos_token_id", 256u32)?;
            metadata.insert("tokenizer.ggml.unknown_token_id", 257u32)?;
            Ok(())
        };
        set().unwrap();
        Tokenizer::from_gguf(&metadata).unwrap()
    }

    fn compiler() -> ConstraintCompiler {
        ConstraintCompiler::new(&bytes_tokenizer()).unwrap()
    }

    fn allowed(matcher: &mut ConstraintMatcher) -> Vec<u32> {
        let mut mask = [0; 9];
        matcher.mask(&mut mask).unwrap();
        (0..288)
            .filter(|id| mask[id / 32] >> (id % 32) & 1 == 1)
            .map(|id| id as u32)
            .collect()
    }

    fn feed(matcher: &mut ConstraintMatcher, text: &str) {
        for byte in text.bytes() {
            assert!(
                allowed(matcher).contains(&u32::from(byte)),
                "{:?} of {text:?}",
                byte as char
            );
            matcher.commit(u32::from(byte)).unwrap();
        }
    }

    fn refusal(constraint: &Constraint) -> String {
        let started = Instant::now();
        let refused = compiler().compile(constraint).unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(10), "{refused} came late");
        refused.to_string()
    }

    #[test]
    fn the_end_is_allowed_where_the_text_is_complete_and_alone_where_nothing_may_follow() {
        let compiled = compiler().compile(&Constraint::regex("ab?")).unwrap();
        let mut matcher = compiled.matcher(&[256]);
        assert_eq!(allowed(&mut matcher), [u32::from(b'a')]);
        feed(&mut matcher, "a");
        assert_eq!(allowed(&mut matcher), [u32::from(b'b'), 256]);
        assert!(!matcher.is_complete());
        feed(&mut matcher, "b");
        assert!(matcher.is_complete());
        assert_eq!(allowed(&mut matcher), [256]);
    }

    #[test]
    fn a_json_object_is_complete_at_its_bracket() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false});
        let mut matcher = compiler()
            .compile(&Constraint::json_schema(&schema))
            .unwrap()
            .matcher(&[256]);
        feed(&mut matcher, "{ \"a\":\n12}");
        assert!(matcher.is_complete());
        let mut any = compiler()
            .compile(&Constraint::json_object())
            .unwrap()
            .matcher(&[256]);
        feed(&mut any, "{\"x\": [1, \"é\", null, {}]}");
        assert!(any.is_complete());
    }

    #[test]
    fn space_between_parts_of_json_has_an_end() {
        let mut matcher = compiler()
            .compile(&Constraint::json_object())
            .unwrap()
            .matcher(&[256]);
        feed(&mut matcher, "{");
        feed(&mut matcher, &" ".repeat(100));
        assert!(!allowed(&mut matcher).contains(&u32::from(b' ')));
    }

    #[test]
    fn one_of_the_choices_and_nothing_else() {
        let compiled = compiler()
            .compile(&Constraint::choice(["yes", "yes/no", "a.b"]))
            .unwrap();
        let mut matcher = compiled.matcher(&[256]);
        assert_eq!(allowed(&mut matcher), [u32::from(b'a'), u32::from(b'y')]);
        feed(&mut matcher, "yes");
        assert_eq!(allowed(&mut matcher), [u32::from(b'/'), 256]);
        feed(&mut matcher, "/no");
        assert!(matcher.is_complete());
    }

    #[test]
    fn a_lark_grammar_is_followed() {
        let grammar = "start: \"<\" word (\",\" word)* \">\"\nword: /[a-z]+/";
        let mut matcher = compiler()
            .compile(&Constraint::lark(grammar))
            .unwrap()
            .matcher(&[256]);
        feed(&mut matcher, "<a,bc>");
        assert!(matcher.is_complete());
    }

    #[test]
    fn before_the_marker_every_text_is_allowed_and_no_end() {
        let constraint = Constraint::regex("[0-9]+").begins_after("</think>");
        let mut matcher = compiler().compile(&constraint).unwrap().matcher(&[256]);
        assert_eq!(allowed(&mut matcher).len(), 257);
        assert!(!allowed(&mut matcher).contains(&256));
        feed(&mut matcher, "1 < 2 </think>");
        assert_eq!(
            allowed(&mut matcher),
            (u32::from(b'0')..=u32::from(b'9')).collect::<Vec<_>>()
        );
        feed(&mut matcher, "42");
        assert!(allowed(&mut matcher).contains(&256));
    }

    #[test]
    fn thoughts_are_optional_where_the_constraint_says_so() {
        let constraint = Constraint::regex("[0-9]+").may_begin_after("<", "</think>");
        let compiled = compiler().compile(&constraint).unwrap();
        let (less, digits) = (u32::from(b'<'), u32::from(b'0')..=u32::from(b'9'));
        let mut thinking = compiled.matcher(&[256]);
        assert_eq!(
            allowed(&mut thinking),
            digits.clone().chain([less]).collect::<Vec<_>>()
        );
        feed(&mut thinking, "<think>what?</think>");
        assert_eq!(allowed(&mut thinking), digits.collect::<Vec<_>>());
        let masks = [allowed(&mut thinking)];
        feed(&mut thinking, "4");
        thinking.rollback(3).unwrap();
        feed(&mut thinking, "k>");
        assert_eq!([allowed(&mut thinking)], masks);
        let mut silent = compiled.matcher(&[256]);
        feed(&mut silent, "42");
        assert!(!allowed(&mut silent).contains(&less));
        // An opening of several tokens leaves no choice.
        let constraint = Constraint::regex("[0-9]").may_begin_after("<think>", "</think>");
        let mut silent = compiler().compile(&constraint).unwrap().matcher(&[256]);
        assert!(!allowed(&mut silent).contains(&less));
    }

    #[test]
    fn a_rollback_restores_every_earlier_mask() {
        let constraint = Constraint::regex("ab+c").begins_after("::");
        let mut matcher = compiler().compile(&constraint).unwrap().matcher(&[256]);
        let text = "x::abbc";
        let mut masks = vec![allowed(&mut matcher)];
        for byte in text.bytes() {
            matcher.commit(u32::from(byte)).unwrap();
            masks.push(allowed(&mut matcher));
        }
        for n_back in 0..=text.len() {
            let kept = text.len() - n_back;
            matcher.rollback(n_back).unwrap();
            assert_eq!(allowed(&mut matcher), masks[kept], "{n_back} back");
            for byte in text[kept..].bytes() {
                matcher.commit(u32::from(byte)).unwrap();
            }
        }
        matcher.commit(256).unwrap();
        matcher.rollback(2).unwrap();
        assert_eq!(allowed(&mut matcher), masks[text.len() - 1], "over the end");
        assert!(matcher.rollback(100).is_err());
    }

    #[test]
    fn a_token_that_the_mask_forbids_is_an_error() {
        let mut matcher = compiler()
            .compile(&Constraint::regex("ab"))
            .unwrap()
            .matcher(&[256]);
        assert!(matcher.commit(u32::from(b'x')).is_err());
    }

    #[test]
    fn samples_are_apart_and_equal_constraints_are_compiled_once() {
        let compiler = compiler();
        let compiled = compiler.compile(&Constraint::regex("ab")).unwrap();
        let again = compiler
            .compile(&Constraint::regex("ab").begins_after("x"))
            .unwrap();
        let same = |a: &CompiledConstraint, b: &CompiledConstraint| {
            (a.prototype.as_ref().zip(b.prototype.as_ref())).is_some_and(|(a, b)| Arc::ptr_eq(a, b))
        };
        assert!(same(&compiled, &again));
        let other = compiler
            .compile(&Constraint::lark("ab"))
            .map(|other| same(&compiled, &other));
        assert!(!other.unwrap_or(false));
        let (mut one, mut two) = (compiled.matcher(&[256]), compiled.matcher(&[256]));
        feed(&mut one, "ab");
        feed(&mut two, "a");
        assert!(one.is_complete() && !two.is_complete());
        for number in 0..200 {
            compiler
                .compile(&Constraint::regex(format!("a{number}")))
                .unwrap();
        }
        assert_eq!(lock(&compiler.kept).len(), MAX_KEPT);
        for letter in ["a", "b", "c", "d", "e"] {
            let with_comment = format!("start: \"a\"\n// {}", letter.repeat(900_000));
            compiler.compile(&Constraint::lark(with_comment)).unwrap();
        }
        let kept = lock(&compiler.kept);
        let n_bytes: usize = kept.iter().map(|(_, text, _)| text.len()).sum();
        assert!(n_bytes <= MAX_KEPT_BYTES, "{n_bytes}");
    }

    #[test]
    fn faulty_constraints_are_refused_by_name() {
        let schema = |value: Value| refusal(&Constraint::json_schema(&value));
        assert!(schema(json!({"type": "nonsense"})).starts_with("the JSON schema cannot be enforced: "));
        assert!(schema(json!({"not": {"type": "string"}})).contains("not"));
        assert!(schema(json!([1])).contains("neither an object nor true or false"));
        assert!(schema(json!({"x-guidance": {"lenient": true}})).contains("x-guidance"));
        assert!(refusal(&Constraint::regex("a(")).starts_with("the regular expression cannot be enforced: "));
        assert!(
            refusal(&Constraint::lark("start: nothing")).starts_with("the Lark grammar cannot be enforced: ")
        );
        assert!(refusal(&Constraint::lark("")).starts_with("the Lark grammar cannot be enforced: "));
        let none: [&str; 0] = [];
        assert!(refusal(&Constraint::choice(none)).contains("it is empty"));
        assert!(refusal(&Constraint::choice(["a", ""])).contains("one of them is empty"));
    }

    #[test]
    fn what_has_no_finite_text_is_refused() {
        let endless = json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]});
        let expected = "no finite text satisfies the JSON schema";
        assert_eq!(refusal(&Constraint::json_schema(&endless)), expected);
        assert_eq!(
            refusal(&Constraint::lark("start: \"a\" start")),
            "no finite text satisfies the Lark grammar"
        );
        assert!(!refusal(&Constraint::json_schema(&json!({"$ref": "#"}))).is_empty());
        assert!(!refusal(&Constraint::json_schema(&json!(false))).is_empty());
        let recursive = json!({"type": "object", "properties": {"a": {"$ref": "#"}}});
        assert!(compiler().compile(&Constraint::json_schema(&recursive)).is_ok());
    }

    #[test]
    fn hostile_constraints_are_refused_within_the_limits() {
        let large = json!({"enum": ["x".repeat(10 << 20)]});
        assert!(refusal(&Constraint::json_schema(&large)).contains("the limit is 1048576"));
        let mut deep = json!(true);
        for _ in 0..300 {
            deep = json!({"items": deep});
        }
        assert_eq!(
            refusal(&Constraint::json_schema(&deep)),
            "the JSON schema is nested deeper than 100 levels"
        );
        let parentheses = format!("{}a{}", "(".repeat(100_000), ")".repeat(100_000));
        assert!(!refusal(&Constraint::regex(&parentheses)).is_empty());
        assert!(!refusal(&Constraint::lark(format!("start: {parentheses}"))).is_empty());
    }

    #[test]
    fn hostile_constraints_end_within_the_limit_of_time() {
        let patterns = [
            "((a{1,100}){1,100}){1,100}",
            "(a|aa|aaa)+b{500}(.*x){20}",
            "(.*a){30}[^z]{1000}",
        ];
        for pattern in patterns {
            let started = Instant::now();
            let compiled = compiler().compile(&Constraint::regex(pattern));
            assert!(
                started.elapsed() < Duration::from_secs(10),
                "{pattern}: {compiled:?}"
            );
        }
        let mut chain = serde_json::Map::new();
        for link in 0..20_000 {
            chain.insert(
                format!("d{link}"),
                json!({"$ref": format!("#/$defs/d{}", link + 1)}),
            );
        }
        chain.insert("d20000".to_owned(), json!({"type": "null"}));
        let schema = json!({"$ref": "#/$defs/d0", "$defs": chain});
        let started = Instant::now();
        let compiled = compiler().compile(&Constraint::json_schema(&schema));
        assert!(started.elapsed() < Duration::from_secs(10), "{compiled:?}");
    }
}
