//! [`ImageWords`]: the text in a prompt around an image.
//!
//! The template writes a mark for each image; the encoder makes the image's rows. Invariant: only the template's own marks count;
//! a mark in a message is text.

use crate::template::Rendered;

/// The words for an image in a prompt: the mark that the template writes, and the text around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageWords {
    /// The control token that the template writes.
    pub mark: &'static str,
    /// The text before it.
    pub before: &'static str,
    /// The text after it.
    pub after: &'static str,
    /// Whether the mark stays before the image's rows; if not, the rows replace it.
    pub keeps_mark: bool,
}

impl ImageWords {
    /// Writes the texts around the marks of a template.
    pub(crate) fn write_around(&self, rendered: &mut Rendered) {
        if self.before.is_empty() && self.after.is_empty() {
            return;
        }
        let whole = [self.before, self.mark, self.after].concat();
        let mut text = String::with_capacity(rendered.text.len());
        let mut n_done = 0;
        for range in &mut rendered.trusted {
            text.push_str(&rendered.text[n_done..range.start]);
            n_done = range.end;
            let start = text.len();
            text.push_str(&rendered.text[range.clone()].replace(self.mark, &whole));
            *range = start..text.len();
        }
        text.push_str(&rendered.text[n_done..]);
        rendered.text = text;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_the_template_alone_are_written_around() {
        let words = ImageWords {
            mark: "<i>",
            before: "[",
            after: "]",
            keeps_mark: true,
        };
        let mut rendered = Rendered {
            text: "a<i>b<i>c<i><i>".to_owned(),
            // All but the second mark.
            trusted: vec![0..4, 8..15],
        };
        words.write_around(&mut rendered);
        assert_eq!(rendered.text, "a[<i>]b<i>c[<i>][<i>]");
        assert_eq!(rendered.trusted, [0..6, 10..21]);
        // A mark that is only partly the template's does not count.
        let mut halves = Rendered {
            text: "<i>".to_owned(),
            trusted: vec![0..2, 2..3],
        };
        words.write_around(&mut halves);
        assert_eq!(halves.text, "<i>");
    }
}
