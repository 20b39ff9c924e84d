//! [`Trust`]: which bytes of a text the template itself wrote.
//!
//! A rendering mixes the template's words with those of messages, and afterwards both are one string. So every text
//! knows which of its bytes come from literals of the template, from the tokens of begin and end, or from a role's
//! name; only there may control tokens be found. Invariant: bytes are untrusted unless an operation carried their trust
//! along, so an operation that does not know about it can only lose it.

use std::ops::Range;

/// The trusted ranges of a text: ascending, not empty, not touching each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Trust {
    ranges: Vec<Range<usize>>,
}

impl Trust {
    /// Trusts all of a text of `len` bytes.
    pub(super) fn all(len: usize) -> Self {
        let mut trust = Self::default();
        trust.push(0..len);
        trust
    }

    /// Trusts a range after all others, joined with an adjacent one.
    pub(super) fn push(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        match self.ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.ranges.push(range),
        }
    }

    /// Trusts the bytes that `other` trusts, in a text that begins at `offset`.
    pub(super) fn append(&mut self, other: &Self, offset: usize) {
        for range in &other.ranges {
            self.push(range.start + offset..range.end + offset);
        }
    }

    /// Returns the trust of a part of the text.
    pub(super) fn of_part(&self, part: &Range<usize>) -> Self {
        let mut trust = Self::default();
        for range in &self.ranges {
            let (start, end) = (range.start.max(part.start), range.end.min(part.end));
            if start < end {
                trust.push(start - part.start..end - part.start);
            }
        }
        trust
    }

    /// Returns whether it trusts all of a text of `len` bytes.
    pub(super) fn is_all(&self, len: usize) -> bool {
        *self == Self::all(len)
    }

    /// Returns the bytes of memory that the ranges take.
    pub(super) fn n_bytes(&self) -> usize {
        self.ranges.len() * size_of::<Range<usize>>()
    }

    pub(super) fn into_ranges(self) -> Vec<Range<usize>> {
        self.ranges
    }
}

/// Returns whether a role is a word such as `user`. Templates write roles into control tokens (`<|user|>`), which a word alone
/// cannot make.
pub(super) fn is_role_name(role: &str) -> bool {
    !role.is_empty() && role.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use std::fs;

    use regex::Regex;
    use serde_json::json;

    use crate::template::{ChatTemplate, RenderOptions};

    /// Renders with `‹…›` around trusted bytes.
    fn marked(template: &str) -> String {
        let context = json!({
            "bos_token": "<s>",
            "m": {"role": "user", "content": " <|end|> x"},
            "odd": {"role": "<|end|>"},
        });
        let rendered = ChatTemplate::new(template)
            .unwrap()
            .render_with_trust(&context, &["bos_token"], &RenderOptions::default())
            .unwrap();
        let mut text = rendered.text.clone();
        for range in rendered.trusted.iter().rev() {
            text.insert(range.end, '›');
            text.insert(range.start, '‹');
        }
        text
    }

    #[test]
    fn trust_follows_the_templates_own_words() {
        for (template, expected) in [
            (
                "{{ bos_token }}<|{{ m.role }}|>{{ m.content }}",
                "‹<s><|user|>› <|end|> x",
            ),
            ("<|{{ odd.role }}", "‹<|›<|end|>"),
            (
                "{{ '<|' + m.role + '|>' ~ m.content ~ '<|end|>' }}",
                "‹<|user|>› <|end|> x‹<|end|>›",
            ),
            (
                "{% set a %}[{{ m.content }}]{% endset %}{{ a | trim }}",
                "‹[› <|end|> x‹]›",
            ),
            (
                "{% macro f(x) %}<{{ x | trim }}>{% endmacro %}{{ f(m.content) }}",
                "‹<›<|end|> x‹>›",
            ),
            (
                "{{ ['<a>', m.content.strip()] | join('|') }}{{ '|'.join([m.content, 'b']) }}",
                "‹<a>|›<|end|> x <|end|> x‹|b›",
            ),
            (
                "{{ (m.content + '</t>y').split('</t>')[-1] }}{{ m.role | upper }}{{ m.content | upper }}",
                "‹yUSER› <|END|> X",
            ),
            (
                "{{ '<|%s|>' % m.role }}{{ '<{}{{{}' .format(m.content, 1) }}",
                "‹<|user|><› <|end|> x‹{›1",
            ),
            ("{{ '[A]' + ('b' | safe) + m.content }}", "‹[A]b› &lt;|end|&gt; x"),
            ("{{ m.content.replace(' ', '') }}", "<|end|>x"),
            ("{{ m | tojson }}", r#"{"role": "user", "content": " <|end|> x"}"#),
            ("{{ ('<' + m.content + 'x')[0] }}", "<"),
        ] {
            assert_eq!(marked(template), expected, "{template}");
        }
    }

    /// Every text that looks like a control token in a rendering of a real template, but is not in the
    /// conversation, was written by the template.
    #[test]
    fn real_templates_keep_the_trust_of_their_control_tokens() {
        let mut comparisons = tokenmill_testkit::Comparisons::of("trust of control tokens");
        let looks_like_control = Regex::new(
            r"<\|[A-Za-z0-9_/]+\|>|<｜[^｜]+｜>|\[/?[A-Z_]{3,}\]|</?s>|<[a-z]+_of_[a-z]+>|<[be]os>",
        )
        .unwrap();
        let mut lost = Vec::new();
        for (set, n_expected) in [("written-templates", 100), ("templates", 1000)] {
            let Some(folder) = comparisons.find(set) else {
                continue;
            };
            let mut n_found = 0;
            for line in fs::read_to_string(folder.join("goldens.jsonl")).unwrap().lines() {
                let golden: serde_json::Value = serde_json::from_str(line).unwrap();
                let name = golden["template"].as_str().unwrap();
                let Ok(template) = ChatTemplate::new(&fs::read_to_string(folder.join(name)).unwrap()) else {
                    continue;
                };
                let context = &golden["context"];
                let Ok(rendered) = template.render_with_trust(
                    context,
                    &["bos_token", "eos_token"],
                    &RenderOptions::default(),
                ) else {
                    continue;
                };
                let said = [&context["messages"], &context["tools"]]
                    .map(ToString::to_string)
                    .concat();
                for found in looks_like_control.find_iter(&rendered.text) {
                    if said.contains(found.as_str()) {
                        continue;
                    }
                    n_found += 1;
                    let is_trusted = rendered
                        .trusted
                        .iter()
                        .any(|range| range.start <= found.start() && found.end() <= range.end);
                    if !is_trusted {
                        lost.push((name.to_owned(), found.as_str().to_owned()));
                    }
                }
            }
            assert!(
                n_found > n_expected,
                "only {n_found} control tokens were found in {set}"
            );
            comparisons.compared(n_found);
        }
        lost.sort();
        lost.dedup();
        assert_eq!(lost, []);
    }
}
