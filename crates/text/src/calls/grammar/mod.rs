//! Writes a family's calls as a grammar, with the offered tools' names and schemas.
//!
//! Each shape of the table of formats becomes rules in Lark's notation. Invariant: the parser of the same row reads every allowed text as
//! calls with these arguments. A schema that a format cannot express is refused if its tool is strict. Otherwise only this tool is less
//! restricted, and calls that still cannot be expressed are free if none is required. If one is required, or a tool is strict, compiling
//! refuses schemas that it cannot enforce.

mod arguments;
mod bare;
mod literals;
mod rules;

#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use rules::Rules;
use serde_json::Value;

use super::{
    ReplyFormat, ToolSet,
    channels::{ChannelFamily, ChannelShape},
    format::Shape,
    json_body::JsonShape,
    literal_body::LiteralShape,
    named_body::NamedShape,
    tagged_body::TaggedShape,
    tool_set::takes_objects,
};
use crate::constraint::{CallGrammar, Constraint, ControlTokens, Document, HeldTool, Mark, Told};

/// Selects the calls that an answer must contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// Calls of any tools, or none.
    #[default]
    Auto,
    /// At least one call.
    Required,
    /// One call, of this tool.
    Named(String),
}

/// Says why calls cannot be constrained.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("calls in the format `{family}` cannot be held to the schema of `{tool}`: {reason}")]
pub struct CallFormError {
    /// The family whose calls these are.
    pub family: &'static str,
    /// The tool.
    pub tool: String,
    /// Feature that the format cannot express.
    pub reason: String,
}

/// Selects how strictly a tool's arguments follow its schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// Completely.
    Exact,
    /// As far as every format can express it.
    Relaxed,
}

/// A tool in a grammar.
struct Offer<'t> {
    name: &'t str,
    schema: &'t Value,
    /// The document with the schema: the schema itself, unless it is part of another.
    root: &'t Document<'t>,
    hold: Hold,
}

/// Holds the fault in the schema of the tool at an index.
struct Refusal {
    tool_idx: usize,
    reason: String,
}

/// The marks that an answer is searched for.
#[derive(Default)]
struct Marks(Vec<Mark>);

impl Marks {
    fn anywhere(&mut self, text: &str) {
        if !text.is_empty() {
            self.0.push(Mark {
                text: text.to_owned(),
                is_at_start: false,
            });
        }
    }

    fn at_start(&mut self, text: String) {
        self.0.push(Mark {
            text,
            is_at_start: true,
        });
    }
}

impl ReplyFormat {
    /// Returns the constraint of calls of `tools` in this format. If calls are not required, other text may come first or replace them, and
    /// the constraint holds from where a call begins. `opens_head` says whether the prompt ends in the head of a message.
    ///
    /// # Errors
    /// [`CallFormError`] if this format cannot express the schema of a strict tool; if a call is required or a tool
    /// is strict, for any tool whose arguments it cannot express at all; and for a schema that allows no object.
    pub fn constraint(
        &self,
        tools: &ToolSet,
        choice: &ToolChoice,
        is_single: bool,
        controls: &ControlTokens,
        opens_head: bool,
    ) -> Result<Constraint, CallFormError> {
        let is_auto = *choice == ToolChoice::Auto;
        let is_named = |name: &str| !matches!(choice, ToolChoice::Named(named) if named != name);
        let offered: Vec<_> = tools.rows().filter(|(name, ..)| is_named(name)).collect();
        let has_strict = offered.iter().any(|(.., is_strict)| *is_strict);
        let form = Form {
            format: self,
            controls,
            is_auto,
            is_single: is_single || matches!(choice, ToolChoice::Named(_)),
            has_strict,
            opens_head,
        };
        let documents: Vec<_> = (offered.iter())
            .map(|(_, schema, _)| Document::of(schema))
            .collect();
        let offers = |all: Hold| -> Vec<Offer<'_>> {
            let rows = offered.iter().zip(&documents);
            let rows = rows.map(|(&(name, schema, is_strict), root)| Offer {
                name,
                schema,
                root,
                hold: if is_strict { Hold::Exact } else { all },
            });
            rows.collect()
        };
        let refused = |refusal: Refusal| CallFormError {
            family: self.name(),
            tool: offered
                .get(refusal.tool_idx)
                .map(|(name, ..)| (*name).to_owned())
                .unwrap_or_default(),
            reason: refusal.reason,
        };
        if let Some(tool_idx) = offered.iter().position(|(_, schema, _)| !takes_objects(schema)) {
            let reason = "arguments are an object, which its `type` does not allow".to_owned();
            return Err(refused(Refusal { tool_idx, reason }));
        }
        let mut most = offers(Hold::Exact);
        let exact = form.grammar(&most).or_else(|_| {
            for (offer, (.., is_strict)) in most.iter_mut().zip(&offered) {
                if !is_strict && form.grammar(std::slice::from_ref(offer)).is_err() {
                    offer.hold = Hold::Relaxed;
                }
            }
            form.grammar(&most)
        });
        let is_optional = is_auto && !has_strict;
        // If calls are required, a schema that cannot be compiled is refused like that of a strict tool.
        let relaxed =
            (is_auto && offered.iter().any(|row| !row.2)).then(|| form.grammar(&offers(Hold::Relaxed)));
        let (exact, relaxed) = match (exact, relaxed) {
            (Ok(exact), relaxed) => (exact, relaxed.and_then(Result::ok)),
            (Err(_), Some(Ok(relaxed))) => {
                most = offers(Hold::Relaxed);
                (relaxed, None)
            }
            (Err(_), _) if is_optional => return Ok(Constraint::anything()),
            (Err(refusal), _) => return Err(refused(refusal)),
        };
        let held = most.iter().zip(&offered);
        let held = held.filter(|(_, (.., is_strict))| !is_auto || *is_strict);
        let held = held.filter_map(|(offer, _)| {
            Some(HeldTool {
                name: offer.name.to_owned(),
                grammar: form.grammar(std::slice::from_ref(offer)).ok()?,
            })
        });
        let constraint = Constraint::calls(CallGrammar {
            exact,
            relaxed,
            held: held.collect(),
            is_optional,
            told: is_auto.then(|| form.told(&offers(Hold::Relaxed))).flatten(),
            has_strict,
            has_free_text: matches!(
                self.calls.shape,
                Shape::Tagged(_) | Shape::Literal(_) | Shape::JsonOrLiteral(..)
            ),
            marks: Vec::new(),
        });
        Ok(if is_auto {
            constraint.begins_at(form.marks(&offers(Hold::Relaxed)))
        } else {
            constraint
        })
    }
}

/// Describes how the calls of an answer are written.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own about a request"
)]
struct Form<'f> {
    format: &'f ReplyFormat,
    controls: &'f ControlTokens,
    is_auto: bool,
    is_single: bool,
    has_strict: bool,
    opens_head: bool,
}

impl Form<'_> {
    fn grammar(&self, offers: &[Offer<'_>]) -> Result<String, Refusal> {
        let mut rules = Rules::new(self.controls);
        let start = match self.format.calls.shape {
            Shape::Json(shape) => self.json(shape, offers, &mut rules)?,
            Shape::Named(shape) => self.named(shape, offers, &mut rules)?,
            Shape::Tagged(shape) => self.tagged(shape, offers, &mut rules)?,
            Shape::Literal(shape) => self.literal(shape, offers, &mut rules)?,
            Shape::JsonOrLiteral(json, literal) => {
                let mut start = self.json(json, offers, &mut rules)?;
                if self.is_auto && self.has_strict {
                    let _ = write!(start, " | {}", self.literal(literal, offers, &mut rules)?);
                }
                start
            }
            Shape::Channels(shape) => self.channels(shape, offers, &mut rules)?,
        };
        // Models begin a line with space before the first call, but not a head. If the answer may instead be a text of a shape, which
        // begins without space, space would settle for a call too early.
        Ok(if self.is_auto {
            rules.finish_in_free_text(&start)
        } else {
            rules.finish(&start, !self.format.has_heads())
        })
    }

    /// Lists the marks that begin calls in free text. Marks that are words of prose count only with the text after them.
    fn marks(&self, offers: &[Offer<'_>]) -> Vec<Mark> {
        let mut marks = Marks::default();
        match self.format.calls.shape {
            Shape::Json(shape) => self.json_marks(shape, &mut marks),
            Shape::JsonOrLiteral(shape, _) => {
                self.json_marks(shape, &mut marks);
                if self.has_strict {
                    marks.at_start("{".to_owned());
                    marks.at_start("[".to_owned());
                } else {
                    for offer in offers {
                        marks.at_start(format!("{{\"name\": \"{}\"", offer.name));
                        marks.at_start(format!("{{\"name\":\"{}\"", offer.name));
                    }
                }
            }
            Shape::Literal(shape) => shape.openers.iter().for_each(|opener| marks.anywhere(opener)),
            Shape::Named(NamedShape { section, opener, .. })
            | Shape::Tagged(TaggedShape { section, opener, .. }) => {
                marks.anywhere(section);
                marks.anywhere(opener);
            }
            Shape::Channels(shape) if shape.family == ChannelFamily::Harmony => {
                marks.anywhere("<|channel|>commentary to=functions.");
                marks.anywhere("<|start|>assistant to=functions.");
                if self.opens_head {
                    marks.at_start("to=functions.".to_owned());
                }
            }
            Shape::Channels(shape) => {
                for offer in offers {
                    marks.anywhere(&format!("{}{}\n", shape.opener, offer.name));
                    if self.opens_head {
                        marks.at_start(format!("{}\n", offer.name));
                    }
                }
            }
        }
        marks.0
    }

    /// Returns how calls differ from a shaped answer. If strict calls have no mark, other JSON may look like one.
    fn told(&self, offers: &[Offer<'_>]) -> Option<Told> {
        let mut starts: Vec<String> = Vec::new();
        match self.format.calls.shape {
            Shape::Channels(shape) if shape.family == ChannelFamily::Harmony => return Some(Told::ByMark),
            Shape::JsonOrLiteral(..) if self.has_strict => return None,
            Shape::Channels(shape) => {
                for offer in offers {
                    starts.push(format!("{}{{", offer.name));
                    starts.push(format!("{}{}{{", shape.opener, offer.name));
                }
            }
            Shape::JsonOrLiteral(shape, _) => {
                starts.extend(shape.openers.iter().map(|&opener| opener.to_owned()));
                for offer in offers {
                    for key in [shape.keys.1, "arguments"] {
                        let name = Value::from(offer.name);
                        starts.push(format!("{{\"{}\":{name},\"{key}\":", shape.keys.0));
                    }
                }
            }
            _ => {
                let marks = self.marks(offers).into_iter();
                starts.extend(marks.filter(|mark| !mark.is_at_start).map(|mark| mark.text));
            }
        }
        for start in &mut starts {
            start.retain(|c| !c.is_ascii_whitespace());
        }
        Some(Told::ByStart(starts))
    }

    fn json_marks(&self, shape: &JsonShape, marks: &mut Marks) {
        for opener in shape.openers {
            if shape.is_list && self.controls.is_text(opener) {
                marks.anywhere(&format!("{opener}["));
            } else {
                marks.anywhere(opener);
            }
        }
    }

    /// Writes the rule for calls that follow each other. In free text the next call begins with its mark, whatever precedes it.
    fn calls(&self, call: &str, separator: &str) -> String {
        if self.is_auto {
            call.to_owned()
        } else {
            self.row(call, separator)
        }
    }

    /// Writes one call, or any number of them with `separator` between two.
    fn row(&self, call: &str, separator: &str) -> String {
        if self.is_single {
            call.to_owned()
        } else {
            format!("{call} ({separator} {call})*")
        }
    }

    fn json(
        &self,
        shape: &JsonShape,
        offers: &[Offer<'_>],
        rules: &mut Rules<'_>,
    ) -> Result<String, Refusal> {
        let tail = any_of(offers, rules, |offer, rules| {
            let arguments = arguments::json(offer, rules)?;
            let name = rules.text(&Value::from(offer.name).to_string());
            Ok(if shape.is_keyed_by_name {
                format!("{name} S? \":\" S? {arguments}")
            } else {
                // Without a mark, families differ in the key, and a model that begins a call unprompted uses
                // its own.
                let keys = if shape.is_bare || self.is_auto {
                    &[shape.keys.1, "arguments", "parameters"][..]
                } else {
                    &[shape.keys.1]
                };
                let keys = keys.iter().map(|key| rules.text(&Value::from(*key).to_string()));
                let key = format!("({})", keys.collect::<Vec<_>>().join(" | "));
                format!("{name} S? \",\" S? {key} S? \":\" S? {arguments}")
            })
        })?;
        let head = if shape.is_keyed_by_name {
            String::new()
        } else {
            format!(
                "{} S? \":\" S?",
                rules.text(&Value::from(shape.keys.0).to_string())
            )
        };
        let object = rules.rule(&format!("\"{{\" S? {head} {tail} S? \"}}\""));
        let opener = shape.openers.first().copied().unwrap_or_default();
        let (opener, closer) = (
            rules.mark(opener),
            rules.mark(shape.closers.first().copied().unwrap_or_default()),
        );
        let space = |mark: &str| if mark.is_empty() { "" } else { "S?" };
        let (after_opener, before_closer) = (space(&opener), space(&closer));
        if shape.is_list {
            let items = self.row(&object, "S? \",\" S?");
            return Ok(format!(
                "{opener} {after_opener} \"[\" S? {items} S? \"]\" {before_closer} {closer}"
            ));
        }
        if closer.is_empty() {
            let items = self.calls(&object, "S? \";\" S?");
            return Ok(if shape.is_bare && self.is_auto {
                format!("({opener} S?)? {items}")
            } else if shape.is_bare {
                items
            } else {
                format!("{opener} S? {items}")
            });
        }
        let call = rules.rule(&format!(
            "{opener} {after_opener} {object} {before_closer} {closer}"
        ));
        Ok(self.calls(&call, "S?"))
    }

    fn named(
        &self,
        shape: &NamedShape,
        offers: &[Offer<'_>],
        rules: &mut Rules<'_>,
    ) -> Result<String, Refusal> {
        let opener = rules.mark(shape.opener);
        let separator = rules.mark(shape.arguments);
        let calls = any_of(offers, rules, |offer, rules| {
            let arguments = arguments::json(offer, rules)?;
            let heads: Vec<String> = (shape.heads.iter())
                .map(|head| rules.head(head, offer.name))
                .collect();
            Ok(format!("({}) {separator} {arguments}", heads.join(" | ")))
        })?;
        let end = self.end_of_named(shape, rules);
        let call = rules.rule(&format!("{opener} {calls} {end}"));
        let row = self.calls(&call, if shape.closers.is_empty() { "" } else { "S?" });
        Ok(self.section(shape.section, shape.section_closers, &row, rules))
    }

    /// Writes the end of a call after its arguments. A call that is required ends as templates write it. In free text it may also end as
    /// some models write it: with other space between the marks, and by the end of the section alone. Text cannot follow the arguments.
    fn end_of_named(&self, shape: &NamedShape, rules: &Rules<'_>) -> String {
        let Some(closer) = shape.closers.first() else {
            return String::new();
        };
        let (fence, closer) = (rules.mark(shape.fence), rules.mark(closer));
        if !self.is_auto {
            let line = if fence.is_empty() { "" } else { "\"\\n\"?" };
            return format!("{line} {fence} {closer}");
        }
        let fence = if fence.is_empty() {
            fence
        } else {
            format!("({fence} S?)?")
        };
        let sections = shape.section_closers.iter().map(|closer| rules.mark(closer));
        let ends: Vec<String> = std::iter::once(closer).chain(sections).collect();
        format!("S? {fence} ({})", ends.join(" | "))
    }

    /// Writes the rule for a section of calls between its marks. In free text each call is separate, because
    /// models leave out the section's marks: the first may follow the opening mark, and the closing mark is
    /// text.
    fn section(&self, section: &str, closers: &[&str], row: &str, rules: &mut Rules<'_>) -> String {
        if section.is_empty() {
            return row.to_owned();
        }
        let opener = rules.mark(section);
        if self.is_auto {
            return format!("({opener} S?)? {row}");
        }
        let closer = rules.mark(closers.first().copied().unwrap_or_default());
        let whole = rules.rule(&format!("{opener} S? {row} S? {closer}"));
        self.row(&whole, "S?")
    }

    fn tagged(
        &self,
        shape: &TaggedShape,
        offers: &[Offer<'_>],
        rules: &mut Rules<'_>,
    ) -> Result<String, Refusal> {
        let calls = any_of(offers, rules, |offer, rules| {
            let arguments = arguments::tagged(offer, shape, rules)?;
            let head = rules.mark(&format!(
                "{}{}{}{}",
                shape.opener, offer.name, shape.name_end, shape.opener_end
            ));
            Ok(format!("{head} S? {arguments}"))
        })?;
        let mut closers = vec![rules.mark(shape.closer)];
        if self.is_auto {
            // Some models omit the call's own end if the section's end follows.
            closers.extend(shape.section_closers.iter().map(|closer| rules.mark(closer)));
        }
        let call = rules.rule(&format!("{calls} ({})", closers.join(" | ")));
        let row = self.calls(&call, "S?");
        Ok(self.section(shape.section, shape.section_closers, &row, rules))
    }

    fn literal(
        &self,
        shape: &LiteralShape,
        offers: &[Offer<'_>],
        rules: &mut Rules<'_>,
    ) -> Result<String, Refusal> {
        let call = any_of(offers, rules, |offer, rules| {
            let arguments = literals::arguments(offer, shape, rules)?;
            let (open, close) = shape.brackets;
            let head = rules.text(&format!("{}{}{open}", shape.prefix, offer.name));
            let close = rules.text(&close.to_string());
            Ok(format!("{head} {arguments} {close}"))
        })?;
        let opener = rules.mark(shape.openers.first().copied().unwrap_or_default());
        let closer = rules.mark(shape.closers.first().copied().unwrap_or_default());
        if shape.is_list {
            let items = self.row(&call, "\",\" S?");
            return Ok(format!("{opener} \"[\" {items} \"]\" {closer}"));
        }
        let call = rules.rule(&format!("{opener} {call} {closer}"));
        Ok(self.calls(&call, ""))
    }

    fn channels(
        &self,
        shape: &ChannelShape,
        offers: &[Offer<'_>],
        rules: &mut Rules<'_>,
    ) -> Result<String, Refusal> {
        let is_harmony = shape.family == ChannelFamily::Harmony;
        let calls = any_of(offers, rules, |offer, rules| {
            let arguments = arguments::json(offer, rules)?;
            let name = rules.text(offer.name);
            Ok(if is_harmony {
                let channel = rules.mark("<|channel|>commentary");
                let json = rules.mark("<|constrain|>json");
                let message = rules.mark(shape.head_end);
                format!("{name} ({channel})? (\" \"? {json} | \" json\" | \" code\")? {message} {arguments}")
            } else {
                let line = rules.text(&format!("{}{}", offer.name, shape.head_end));
                format!("{line} {arguments}")
            })
        })?;
        if is_harmony {
            let to = rules.mark("<|channel|>commentary to=functions.");
            let next = rules.mark("<|start|>assistant");
            // A call ends a turn.
            return Ok(if self.is_auto {
                let to_role = rules.mark("<|start|>assistant to=functions.");
                let mut start = format!("{to} {calls} | {to_role} {calls}");
                if self.opens_head {
                    let _ = write!(start, " | \"to=functions.\" {calls}");
                }
                start
            } else {
                format!("{next} {to} {calls}")
            });
        }
        let opener = rules.mark(shape.opener);
        let row = self.calls(&calls, &opener);
        Ok(if self.is_auto && self.opens_head {
            format!("{row} | {opener} {row}")
        } else if self.opens_head {
            row
        } else {
            format!("{opener} {row}")
        })
    }
}

/// Adds the rule of a call of any tool, each as `call` writes it; returns its name.
fn any_of<'c>(
    offers: &[Offer<'_>],
    rules: &mut Rules<'c>,
    call: impl Fn(&Offer<'_>, &mut Rules<'c>) -> Result<String, String>,
) -> Result<String, Refusal> {
    let mut calls = Vec::with_capacity(offers.len());
    for (tool_idx, offer) in offers.iter().enumerate() {
        calls.push(call(offer, rules).map_err(|reason| Refusal { tool_idx, reason })?);
    }
    Ok(rules.rule(&calls.join("\n  | ")))
}
