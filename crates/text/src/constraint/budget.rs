//! Bounds the cost of compiling a constraint before compilation starts.
//!
//! The compiling library cannot be stopped from outside, so input that would take too long, or too much stack, is counted and refused
//! first. Invariant: an accepted constraint compiles within bounded time and memory.

use llguidance::api::TopLevelGrammar;

use super::{
    chains::Longest,
    error::{ConstraintError, ConstraintKind},
    lark_references, schema_references,
};

/// Longest chain of references between rules or definitions. llama.cpp has the same bound for rules.
const MAX_ROW: usize = 1000;

/// Most levels along references. A stack of 64 MiB holds 15,000 rules that are one reference each.
const MAX_LEVELS: usize = 4000;

/// Most string literals and regular expressions of a grammar. The compiler compares each with all others, and keeps a set of them for each
/// state; this many cost a second and a quarter of a gigabyte.
const MAX_TERMINALS: usize = 30_000;

/// Most properties of the objects of a schema. This many take two seconds to compile.
const MAX_PROPERTIES: usize = 4000;

/// Most pairs of a listed value and a rule about texts that are merged. This many take a second to compile.
const MAX_CHECKED_VALUES: usize = 4000;

/// Most states of a `multipleOf`'s divisibility test.
const MAX_MULTIPLE: u64 = 10_000;

/// Refuses references that compilers could not follow.
///
/// # Errors
/// [`ConstraintError::TooLong`] and [`ConstraintError::TooDeep`].
pub(super) fn check_references(kind: ConstraintKind, longest: Longest) -> Result<(), ConstraintError> {
    if longest.n_nodes > MAX_ROW {
        return Err(ConstraintError::TooLong {
            kind,
            found: longest.n_nodes,
            maximum: MAX_ROW,
        });
    }
    if longest.n_levels > MAX_LEVELS {
        return Err(ConstraintError::TooDeep {
            kind,
            maximum: MAX_LEVELS,
        });
    }
    Ok(())
}

/// Refuses a grammar that would take too long to compile.
///
/// # Errors
/// Returns the errors of [`check_references`], and [`ConstraintError::Refused`].
pub(super) fn check(kind: ConstraintKind, grammar: &TopLevelGrammar) -> Result<(), ConstraintError> {
    for part in &grammar.grammars {
        let mut multiple = None;
        let (mut n_properties, mut n_checked_values) = (0, 0_usize);
        let mut is_tangled = false;
        let mut longest = Longest::default();
        let mut of_schema = |schema: &serde_json::Value| {
            if multiple.is_none() {
                multiple = schema_references::long_multiple(schema, MAX_MULTIPLE);
            }
            n_properties += schema_references::n_properties(schema);
            n_checked_values = n_checked_values.saturating_add(schema_references::n_checked_values(schema));
            let longest = schema_references::longest(schema);
            is_tangled |= longest.is_none();
            longest.unwrap_or_default()
        };
        if let Some(schema) = &part.json_schema {
            longest = of_schema(schema);
        }
        if let Some(lark) = &part.lark_grammar {
            longest = longest.max(lark_references::longest(lark, &mut of_schema));
        }
        check_references(kind, longest)?;
        if is_tangled {
            return Err(ConstraintError::Refused {
                kind,
                reason: "it has too many references for its number of identifiers and anchors".to_owned(),
            });
        }
        let n_terminals = part
            .lark_grammar
            .as_deref()
            .map_or(0, lark_references::n_terminals);
        for (found, maximum, what) in [
            (n_properties, MAX_PROPERTIES, "properties"),
            (
                n_checked_values,
                MAX_CHECKED_VALUES,
                "listed values to check against patterns, formats and lengths",
            ),
            (n_terminals, MAX_TERMINALS, "texts and regular expressions"),
        ] {
            if found > maximum {
                return Err(ConstraintError::Refused {
                    kind,
                    reason: format!("it has {found} {what}, at most {maximum} are compiled"),
                });
            }
        }
        if let Some(multiple) = multiple {
            return Err(ConstraintError::Refused {
                kind,
                reason: format!("testing a `multipleOf` of {multiple} takes more than {MAX_MULTIPLE} states"),
            });
        }
    }
    Ok(())
}
