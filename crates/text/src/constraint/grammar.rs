//! [`Constraint`]: the form of a text, as the request gives it.
//!
//! It is plain data, which requests can carry. Invariant: nothing is checked here; compiling checks all of it.

use std::borrow::Borrow;

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use super::{
    alternatives::Told,
    compiler::ConstraintLimits,
    error::{ConstraintError, ConstraintKind},
    escapes::JsonPlaces,
    gbnf,
    lead::{Begin, Budget, Mark, Open, Thoughts},
    references::make_plain,
    schema::drop_what_says_nothing,
};

/// White space between two parts of JSON: a space, or a line break or two with an indent. Without a limit, some small models fill
/// their answers with white space. Source: `SPACE_RULE` in llama.cpp's `common/json-schema-to-grammar.cpp`, which has the same limits.
const JSON_SPACE: &str = r" |\n{1,2}[ \t]{0,20}";

/// Describes the allowed texts of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Constraint {
    language: Language,
    begin: Begin,
    /// Calls that may replace the text.
    calls: Option<CallGrammar>,
}

#[derive(Clone, Debug, PartialEq)]
enum Language {
    JsonSchema(Value),
    Regex(String),
    Choice(Vec<String>),
    Lark(String),
    Gbnf(String),
    Calls(CallGrammar),
    /// Any text.
    Any,
}

/// Calls of tools, as a grammar in Lark's notation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CallGrammar {
    /// With all restrictions of the tools' schemas.
    pub(crate) exact: String,
    /// With only the restrictions of strict tools; tried if the other is refused.
    pub(crate) relaxed: Option<String>,
    /// Whether calls that cannot be constrained are free.
    pub(crate) is_optional: bool,
    /// The tools whose schemas are always enforced.
    pub(crate) held: Vec<HeldTool>,
    /// How calls differ from a text of a shape, if they can.
    pub(crate) told: Option<Told>,
    /// Whether a tool is strict, so that its calls must match their schema everywhere.
    pub(crate) has_strict: bool,
    /// Whether arguments may be text without quotes.
    pub(crate) has_free_text: bool,
    /// Marks of the next call in the free text after a call; empty if calls are required.
    pub(crate) marks: Vec<Mark>,
}

/// A tool whose schema is enforced or refused.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HeldTool {
    pub(crate) name: String,
    /// Grammar of only its calls.
    pub(crate) grammar: String,
}

impl Constraint {
    fn new(language: Language) -> Self {
        Self {
            language,
            begin: Begin::default(),
            calls: None,
        }
    }

    /// Allows JSON that is valid against a schema (draft 2020-12 or older).
    pub fn json_schema(schema: impl Borrow<Value>) -> Self {
        Self::new(Language::JsonSchema(schema.borrow().clone()))
    }

    /// Allows any JSON object.
    pub fn json_object() -> Self {
        Self::json_schema(json!({"type": "object"}))
    }

    /// Allows text that a regular expression matches as a whole, in the syntax of the `regex` crate. `^` at its start and `$` at its
    /// end change nothing.
    pub fn regex(pattern: impl Into<String>) -> Self {
        Self::new(Language::Regex(pattern.into()))
    }

    /// Allows one of these texts.
    pub fn choice(choices: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::new(Language::Choice(choices.into_iter().map(Into::into).collect()))
    }

    /// Allows texts of a grammar in Lark's notation, as `llguidance` reads it; the first rule is `start`.
    pub fn lark(grammar: impl Into<String>) -> Self {
        Self::new(Language::Lark(grammar.into()))
    }

    /// Allows texts of a grammar in llama.cpp's notation; the first rule is `root`.
    pub fn gbnf(grammar: impl Into<String>) -> Self {
        Self::new(Language::Gbnf(grammar.into()))
    }

    /// Allows texts of a grammar in either notation: GBNF if it defines rules with `::=`, otherwise Lark.
    pub fn grammar(grammar: impl Into<String>) -> Self {
        let grammar = grammar.into();
        if gbnf::looks_like_gbnf(&grammar) {
            Self::gbnf(grammar)
        } else {
            Self::lark(grammar)
        }
    }

    /// Lets the constraint begin after `marker`, such as `</think>`. Until then every text is allowed, but no end.
    #[must_use]
    pub fn begins_after(mut self, marker: impl Into<String>) -> Self {
        self.begin.thoughts = thoughts(Open::Begun, marker.into());
        self
    }

    /// Does the same as [`Self::begins_after`], for a head that `marker` begins and `end` ends, with a few words between them.
    #[must_use]
    pub fn begins_after_head(self, marker: impl Into<String>, end: impl Into<String>) -> Self {
        let mut constraint = self.begins_after(marker);
        if let Some(thoughts) = &mut constraint.begin.thoughts {
            thoughts.close_end = Some(end.into());
        }
        constraint
    }

    /// Lets the text begin with a part between `open` and `close`, such as reasoning; the constraint begins after that part, or at
    /// once if it is missing. The model has the choice only if `open` is one token of the vocabulary.
    #[must_use]
    pub fn may_begin_after(mut self, open: impl Into<String>, close: impl Into<String>) -> Self {
        self.begin.thoughts = thoughts(Open::AtStart(open.into()), close.into());
        self
    }

    /// Allows any text; only the end of reasoning is constrained.
    pub fn anything() -> Self {
        Self::new(Language::Any)
    }

    /// Allows calls of tools.
    pub(crate) fn calls(grammar: CallGrammar) -> Self {
        Self::new(Language::Calls(grammar))
    }

    /// Lets calls replace the text, as `calls` describes them when they are not required. Returns `None` if these cannot be
    /// distinguished from a text of this constraint, or are not constrained.
    #[must_use]
    pub fn or_calls(mut self, calls: &Self) -> Option<Self> {
        let Language::Calls(grammar) = &calls.language else {
            return None;
        };
        if *grammar.told.as_ref()? == Told::ByMark {
            self.begin.marks.clone_from(&calls.begin.marks);
        }
        self.calls = Some(CallGrammar {
            is_optional: false,
            ..grammar.clone()
        });
        Some(self)
    }

    /// Returns whether calls may replace the text.
    pub fn may_be_calls(&self) -> bool {
        self.calls.is_some()
    }

    /// Returns whether the constrained text is for a reader, not calls.
    pub fn holds_text(&self) -> bool {
        !matches!(self.language, Language::Calls(_) | Language::Any)
    }

    /// Returns the calls that may replace the text, and how they differ from it.
    pub(super) fn alternative(&self) -> Option<(Self, &Told)> {
        let grammar = self.calls.as_ref()?;
        Some((Self::calls(grammar.clone()), grammar.told.as_ref()?))
    }

    /// Returns the calls that may follow each other with free text between them.
    pub(super) fn calls_to_follow(&self) -> Option<&CallGrammar> {
        let ((Some(grammar), _) | (None, Language::Calls(grammar))) = (&self.calls, &self.language) else {
            return None;
        };
        (!grammar.marks.is_empty()).then_some(grammar)
    }

    /// Allows text between `open` and `close` anywhere in the free text before a mark.
    #[must_use]
    pub fn thinks_between(mut self, open: impl Into<String>, close: impl Into<String>) -> Self {
        self.begin.thoughts = thoughts(Open::Anywhere(open.into()), close.into());
        self
    }

    /// Makes the text begin with `open`, and the constraint after `close`.
    #[must_use]
    pub fn opens_and_begins_after(mut self, open: impl Into<String>, close: impl Into<String>) -> Self {
        self.begin.thoughts = thoughts(Open::Always(open.into()), close.into());
        self
    }

    /// Ends the part before the constrained text after `n_tokens` tokens, unless it has ended earlier: `end` is written then, and
    /// `not_next` may not follow at once. Does nothing if there is no such part.
    #[must_use]
    pub fn thinks_at_most(
        mut self,
        n_tokens: usize,
        end: impl Into<String>,
        not_next: impl Into<String>,
    ) -> Self {
        if let Some(thoughts) = &mut self.begin.thoughts {
            thoughts.budget = Some(Budget {
                n_tokens,
                end: end.into(),
                not_next: not_next.into(),
            });
        }
        self
    }

    /// Allows any text before, between and after calls, and the end; the constraint begins at each of these marks.
    #[must_use]
    pub(crate) fn begins_at(mut self, marks: Vec<Mark>) -> Self {
        if let Language::Calls(grammar) = &mut self.language {
            grammar.marks.clone_from(&marks);
        }
        self.begin.marks = marks;
        self
    }

    /// Returns the language of the constraint.
    pub fn kind(&self) -> ConstraintKind {
        match &self.language {
            Language::JsonSchema(_) => ConstraintKind::JsonSchema,
            Language::Regex(_) => ConstraintKind::Regex,
            Language::Choice(_) => ConstraintKind::Choice,
            Language::Lark(_) => ConstraintKind::Lark,
            Language::Gbnf(_) => ConstraintKind::Gbnf,
            Language::Calls(_) => ConstraintKind::Calls,
            Language::Any => ConstraintKind::Any,
        }
    }

    /// Returns the constraint to compile instead if this one is refused.
    pub(super) fn relaxed(&self) -> Option<Self> {
        let Language::Calls(grammar) = &self.language else {
            return None;
        };
        let language = match &grammar.relaxed {
            Some(relaxed) => Language::Calls(CallGrammar {
                exact: relaxed.clone(),
                relaxed: None,
                ..grammar.clone()
            }),
            None if grammar.is_optional => Language::Any,
            None => return None,
        };
        Some(Self {
            language,
            begin: self.begin.clone(),
            calls: None,
        })
    }

    /// Returns the places of JSON in its texts.
    pub(super) fn json_places(&self) -> JsonPlaces {
        let has_patterns = |schema: &str| {
            let keywords = ["\"pattern\"", "\"format\"", "\"patternProperties\""];
            keywords.iter().any(|keyword| schema.contains(keyword))
        };
        match &self.language {
            Language::JsonSchema(schema) => JsonPlaces {
                has_json: true,
                has_free_text: false,
                has_patterns: has_patterns(&schema.to_string()),
            },
            Language::Calls(grammar) => JsonPlaces {
                has_json: grammar.exact.contains("%json"),
                has_free_text: grammar.has_free_text,
                has_patterns: has_patterns(&grammar.exact),
            },
            _ => JsonPlaces::default(),
        }
    }

    /// Returns whether a text that leaves the grammar continues without it.
    pub(super) fn is_lenient(&self) -> bool {
        matches!(&self.language, Language::Calls(grammar) if grammar.is_optional)
    }

    /// Returns whether the constraint may be dropped: calls that are not required, of tools that are not strict, without a limit on
    /// reasoning.
    pub fn is_optional(&self) -> bool {
        self.is_lenient() && (self.begin.thoughts.as_ref()).is_none_or(|thoughts| thoughts.budget.is_none())
    }

    /// Returns whether there is no grammar.
    pub(super) fn is_any(&self) -> bool {
        self.language == Language::Any
    }

    pub(super) fn begin(&self) -> &Begin {
        &self.begin
    }

    /// Returns all of it, except where it begins, as one text: equal texts of one kind compile to the same grammar.
    pub(super) fn source(&self) -> String {
        match &self.language {
            Language::JsonSchema(schema) => schema.to_string(),
            Language::Choice(choices) => json!(choices).to_string(),
            Language::Regex(text) | Language::Lark(text) | Language::Gbnf(text) => text.clone(),
            // A grammar compiled for some tools may have been refused for others.
            Language::Calls(grammar) => {
                (grammar.held.iter()).fold(grammar.exact.clone(), |mut text, tool| {
                    text.push('\n');
                    text.push_str(&tool.name);
                    text
                })
            }
            Language::Any => String::new(),
        }
    }

    /// Returns the tools whose schemas are always enforced.
    pub(super) fn held_tools(&self) -> &[HeldTool] {
        match &self.language {
            Language::Calls(grammar) => &grammar.held,
            _ => &[],
        }
    }

    /// Refuses a schema that is nested deeper than the limit. Call it first: everything else recurses along the nesting.
    pub(super) fn check(&self, limits: &ConstraintLimits) -> Result<(), ConstraintError> {
        match &self.language {
            Language::JsonSchema(schema) if is_deeper_than(schema, limits.max_depth) => {
                Err(ConstraintError::TooDeep {
                    kind: self.kind(),
                    maximum: limits.max_depth,
                })
            }
            _ => Ok(()),
        }
    }

    /// Returns its grammar in the form that is compiled.
    pub(super) fn to_grammar(&self) -> Result<TopLevelGrammar, ConstraintError> {
        let kind = self.kind();
        let refused = |reason: &str| ConstraintError::Refused {
            kind,
            reason: reason.to_owned(),
        };
        match &self.language {
            Language::JsonSchema(schema) => {
                let schema = prepared(schema).map_err(refused)?;
                Ok(TopLevelGrammar::from_json_schema(schema))
            }
            Language::Regex(pattern) => Ok(TopLevelGrammar::from_regex(without_anchors(pattern))),
            Language::Choice(choices) => {
                if choices.is_empty() {
                    return Err(refused("it is empty"));
                }
                if choices.iter().any(String::is_empty) {
                    return Err(refused("one of them is empty"));
                }
                let escaped: Vec<String> = choices.iter().map(|choice| regex::escape(choice)).collect();
                Ok(TopLevelGrammar::from_regex(&format!("(?:{})", escaped.join("|"))))
            }
            Language::Lark(grammar) => Ok(TopLevelGrammar::from_lark(grammar.clone())),
            Language::Gbnf(grammar) => Ok(TopLevelGrammar::from_lark(gbnf::to_lark(grammar)?)),
            Language::Calls(grammar) => Ok(TopLevelGrammar::from_lark(grammar.exact.clone())),
            Language::Any => Ok(TopLevelGrammar::from_regex("(?s:.*)")),
        }
    }
}

/// Returns a schema in the form that the compiler takes.
pub(crate) fn prepared(schema: &Value) -> Result<Value, &'static str> {
    let mut schema = schema.clone();
    drop_what_says_nothing(&mut schema);
    make_plain(&mut schema);
    match &mut schema {
        Value::Bool(_) => {}
        Value::Object(fields) => {
            if fields.contains_key("x-guidance") {
                return Err("`x-guidance` is not supported");
            }
            let options =
                json!({"whitespace_pattern": JSON_SPACE, "json_allow_general_unicode_escapes": true});
            fields.insert("x-guidance".to_owned(), options);
        }
        _ => return Err("it is neither an object nor true or false"),
    }
    Ok(schema)
}

fn thoughts(open: Open, close: String) -> Option<Thoughts> {
    (!close.is_empty()).then_some(Thoughts {
        open,
        close,
        close_end: None,
        budget: None,
    })
}

/// Drops the anchors around a pattern, which matches whole texts anyway.
fn without_anchors(pattern: &str) -> &str {
    let pattern = pattern.strip_prefix('^').unwrap_or(pattern);
    match pattern.strip_suffix('$') {
        Some(before) if before.bytes().rev().take_while(|&byte| byte == b'\\').count() % 2 == 0 => before,
        _ => pattern,
    }
}

pub(crate) fn is_deeper_than(value: &Value, levels: usize) -> bool {
    let mut level = vec![value];
    for _ in 0..=levels {
        let mut next = Vec::new();
        for value in level {
            match value {
                Value::Array(items) => next.extend(items),
                Value::Object(fields) => next.extend(fields.values()),
                _ => {}
            }
        }
        if next.is_empty() {
            return false;
        }
        level = next;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_dropped_where_they_are_anchors() {
        for (pattern, expected) in [("^a$", "a"), (r"a\$", r"a\$"), (r"a\\$", r"a\\"), ("a", "a")] {
            assert_eq!(without_anchors(pattern), expected);
        }
    }

    #[test]
    fn grammars_are_told_apart_by_how_rules_are_defined() {
        assert_eq!(Constraint::grammar("root ::= \"a\"").kind(), ConstraintKind::Gbnf);
        assert_eq!(Constraint::grammar("start: \"::=\"").kind(), ConstraintKind::Lark);
    }
}
