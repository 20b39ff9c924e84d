//! Renders chat templates, published ones and ones written for this test, and compares with the output of transformers.

use std::{collections::BTreeMap, fs};

use serde::Deserialize;
use tokenmill_testkit::Comparisons;
use tokenmill_text::template::{ChatTemplate, RenderOptions, TemplateError};

/// One line of `goldens.jsonl`.
#[derive(Deserialize)]
struct Golden {
    template: String,
    case: String,
    context: serde_json::Value,
    output: Option<String>,
    error: Option<String>,
}

/// Renderings that differ from transformers, each with its reason. The list is exact.
const KNOWN_DIFFERENCES: [(&str, &str, &str); 0] = [];

#[test]
fn templates_render_as_in_transformers() {
    let mut comparisons = Comparisons::of("chat templates");
    let options = RenderOptions {
        now: "2024-07-26".parse().unwrap(),
        ..RenderOptions::default()
    };
    let mut differences = Vec::new();
    for (set, n_expected) in [("written-templates", 80), ("templates", 500)] {
        let Some(folder) = comparisons.find(set) else {
            continue;
        };
        let mut templates: BTreeMap<String, Result<ChatTemplate, TemplateError>> = BTreeMap::new();
        let mut n_goldens = 0;
        for line in fs::read_to_string(folder.join("goldens.jsonl")).unwrap().lines() {
            let golden: Golden = serde_json::from_str(line).unwrap();
            let template = templates.entry(golden.template.clone()).or_insert_with(|| {
                ChatTemplate::new(&fs::read_to_string(folder.join(&golden.template)).unwrap())
            });
            let rendered = match template {
                Ok(template) => template.render(&golden.context, &options),
                Err(error) => Err(error.clone()),
            };
            n_goldens += 1;
            if let Some(difference) = difference(&golden, &rendered) {
                differences.push((golden.template, golden.case, difference));
            }
        }
        assert!(
            n_goldens > n_expected,
            "only {n_goldens} goldens were found in {set}"
        );
        comparisons.compared(n_goldens);
    }
    let found: Vec<(&str, &str)> = differences
        .iter()
        .map(|(template, case, _)| (template.as_str(), case.as_str()))
        .collect();
    let known: Vec<(&str, &str)> = KNOWN_DIFFERENCES
        .iter()
        .map(|(template, case, _)| (*template, *case))
        .collect();
    assert_eq!(found, known, "{differences:#?}");
}

fn difference(golden: &Golden, rendered: &Result<String, TemplateError>) -> Option<String> {
    match (&golden.output, &golden.error, rendered) {
        (Some(expected), _, Ok(found)) if expected == found => None,
        (Some(expected), _, Ok(found)) => {
            let at = expected
                .bytes()
                .zip(found.bytes())
                .take_while(|(a, b)| a == b)
                .count();
            let tail =
                |text: &str| String::from_utf8_lossy(&text.as_bytes()[at.saturating_sub(40)..]).into_owned();
            let cut = |text: String| text.chars().take(120).collect::<String>();
            Some(format!(
                "expected …{:?}, found …{:?}",
                cut(tail(expected)),
                cut(tail(found))
            ))
        }
        (Some(_), _, Err(error)) => Some(format!("failed: {error}")),
        (None, Some(expected), Ok(_)) => Some(format!("should have failed: {expected}")),
        // The template's own refusals are compared word for word, as are names of what is undefined.
        (None, Some(expected), Err(error)) => {
            let is_same = match (expected.split_once(": "), error) {
                (Some(("TemplateError", expected)), TemplateError::Raised { message, .. }) => {
                    message == expected
                }
                (Some(("UndefinedError", expected)), TemplateError::Undefined { what, .. }) => {
                    what == expected
                }
                (Some(("TypeError" | "TemplateRuntimeError", _)), TemplateError::Type { .. })
                | (Some(("SecurityError", _)), TemplateError::Undefined { .. }) => true,
                _ => false,
            };
            (!is_same).then(|| format!("expected the error {expected:?}, found {error:?}"))
        }
        (None, None, _) => Some("the golden has neither output nor error".into()),
    }
}
