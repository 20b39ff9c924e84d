//! [`links`] and [`replaced`]: the links of a page in Markdown.
//!
//! It knows the Markdown of the project's pages: links in one bracket and one parenthesis, code in backticks and in
//! fences, headings with `#`. A link inside code is not a link.

/// A link or an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link<'t> {
    /// The displayed text.
    pub(super) text: &'t str,
    /// The target.
    pub(super) target: &'t str,
}

impl Link<'_> {
    /// Returns whether it leads to another machine.
    pub(super) fn is_on_web(&self) -> bool {
        self.target.contains("://") || self.target.starts_with("mailto:")
    }
}

/// Lists the links of a page.
#[cfg(test)]
pub(super) fn links(page: &str) -> Vec<Link<'_>> {
    let parts = parts(page).into_iter();
    parts.filter_map(|part| part.link).collect()
}

/// Returns a page in which only the kept links are links and the others plain words.
pub(super) fn replaced(page: &str, is_kept: impl Fn(&Link<'_>) -> bool) -> String {
    let shown = parts(page).into_iter().map(|part| match part.link {
        Some(link) if !is_kept(&link) => link.text,
        _ => part.source,
    });
    shown.collect()
}

/// Returns whether a page has the heading of a link: in small letters, without punctuation, with hyphens for spaces.
pub(super) fn has_heading(page: &str, name: &str) -> bool {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| line.trim_start_matches('#').trim())
        .any(|heading| {
            let kept = heading.to_lowercase();
            let kept = kept
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>() == name
        })
}

/// A piece of a page: a link, or text without one.
struct Part<'t> {
    source: &'t str,
    link: Option<Link<'t>>,
}

/// Lists all pieces of a page, in order.
fn parts(page: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let (mut begin, mut at) = (0, 0);
    while at < page.len() {
        let rest = &page[at..];
        if rest.starts_with('`') {
            at += code_bytes(rest);
            continue;
        }
        let mark = usize::from(rest.starts_with("!["));
        let Some((n_bytes, link)) = link_at(&rest[mark..]) else {
            at += rest.chars().next().map_or(1, char::len_utf8);
            continue;
        };
        parts.push(Part {
            source: &page[begin..at],
            link: None,
        });
        at += mark + n_bytes;
        parts.push(Part {
            source: &page[at - mark - n_bytes..at],
            link: Some(link),
        });
        begin = at;
    }
    parts.push(Part {
        source: &page[begin..],
        link: None,
    });
    parts
}

/// Returns the bytes of code in backticks, or of the backticks alone if they are not closed.
fn code_bytes(text: &str) -> usize {
    let ticks = &text[..text.len() - text.trim_start_matches('`').len()];
    text[ticks.len()..]
        .find(ticks)
        .map_or(ticks.len(), |end| end + 2 * ticks.len())
}

/// Returns the link at the start of a text, and its bytes.
fn link_at(text: &str) -> Option<(usize, Link<'_>)> {
    let mut depth = 0;
    let mut at = 0;
    let end = loop {
        let rest = &text[at..];
        let c = rest.chars().next()?;
        match c {
            '[' => depth += 1,
            ']' if depth == 1 => break at,
            ']' => depth -= 1,
            _ if depth == 0 => return None,
            _ => {}
        }
        at += if c == '`' { code_bytes(rest) } else { c.len_utf8() };
    };
    let target = text[end + 1..].strip_prefix('(')?;
    let target = &target[..target.find([')', '\n'])?];
    let n_bytes = end + 2 + target.len() + 1;
    let text = &text[1..end];
    text[..]
        .find("\n\n")
        .is_none()
        .then_some((n_bytes, Link { text, target }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_nowhere_becomes_plain_words() {
        let page = "See [`a`](a.md), [two\nlines](b.md#c) and ![a picture](d.svg).\n\
            `[no](link)` [nor this]\n```\n[nor](this)\n```\n[é](https://e.org)";
        let targets: Vec<&str> = links(page).iter().map(|link| link.target).collect();
        assert_eq!(targets, ["a.md", "b.md#c", "d.svg", "https://e.org"]);
        assert_eq!(replaced(page, |_| true), page);
        assert_eq!(
            replaced(page, |link| link.target.contains("://")),
            "See `a`, two\nlines and a picture.\n\
             `[no](link)` [nor this]\n```\n[nor](this)\n```\n[é](https://e.org)"
        );
    }

    #[test]
    fn headings_have_names() {
        let page = "# A `pull`, and more\n\n## Several GPUs\n";
        for (name, expected) in [
            ("a-pull-and-more", true),
            ("several-gpus", true),
            ("several", false),
        ] {
            assert_eq!(has_heading(page, name), expected, "{name}");
        }
    }
}
