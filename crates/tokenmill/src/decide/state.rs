//! [`State`]: the content that questions are about, text with images in their places.
//!
//! Apart from the questions, which have no images. Invariant: the parts keep their order, and no two texts stand side by side.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::images::ImageFile;

/// Most images of a state.
pub const MAX_IMAGES: usize = 8;

/// The content that questions are about: a text, or texts and images in their order.
///
/// ```
/// use tokenmill::decide::State;
///
/// let text: State = "The cat sat on the mat.".into();
/// let photo = [0_u8; 4]; // the bytes of a PNG or JPEG file
/// let seen = State::default().text("The mat: ").image(&photo[..]).text(" It is empty.");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    Image(ImageFile),
}

impl From<&str> for State {
    fn from(text: &str) -> Self {
        Self::default().text(text)
    }
}

impl From<&String> for State {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl From<String> for State {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl State {
    /// Adds a text at the end.
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        match self.parts.last_mut() {
            _ if text.is_empty() => {}
            Some(Part::Text(last)) => last.push_str(text),
            _ => self.parts.push(Part::Text(text.to_owned())),
        }
        self
    }

    /// Adds the file of an image at the end.
    #[must_use]
    pub fn image(mut self, file: impl Into<Arc<[u8]>>) -> Self {
        self.parts.push(Part::Image(file.into()));
        self
    }

    /// Adds the parts of another one at the end.
    #[must_use]
    pub fn then(mut self, other: Self) -> Self {
        for part in other.parts {
            self = match part {
                Part::Text(text) => self.text(&text),
                Part::Image(file) => self.image(file),
            };
        }
        self
    }

    /// Returns whether it has neither text nor images.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns its text, if it has no images.
    pub fn as_text(&self) -> Option<&str> {
        match &self.parts[..] {
            [] => Some(""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Returns the number of its images.
    pub fn n_images(&self) -> usize {
        self.images().count()
    }

    /// Returns the bytes of its texts.
    pub(super) fn n_bytes(&self) -> usize {
        let texts = self.parts.iter().map(|part| match part {
            Part::Text(text) => text.len(),
            Part::Image(_) => 0,
        });
        texts.sum()
    }

    /// Lists its images.
    pub(super) fn images(&self) -> impl Iterator<Item = &ImageFile> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Image(file) => Some(file),
        })
    }

    /// Returns the content of a message that ends with a text: a text alone, or parts with marks for the images.
    pub(super) fn content_before(&self, text: &str) -> Value {
        let whole = self.clone().text(text);
        match &whole.parts[..] {
            [] => "".into(),
            [Part::Text(text)] => text.as_str().into(),
            parts => {
                let parts = parts.iter().map(|part| match part {
                    Part::Text(text) => json!({ "type": "text", "text": text }),
                    Part::Image(_) => json!({ "type": "image" }),
                });
                parts.collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_side_by_side_are_one() {
        let state = State::from("a").text("b").image(&b"one"[..]).text("").text("c");
        assert_eq!((state.n_bytes(), state.n_images()), (3, 1));
        assert_eq!(
            state.content_before("d"),
            json!([{ "type": "text", "text": "ab" }, { "type": "image" }, { "type": "text", "text": "cd" }])
        );
        assert_eq!(State::from("a").content_before("b"), json!("ab"));
        assert_eq!(State::from("").then("a".into()), State::from("a"));
        assert!(State::from("").is_empty());
        assert_eq!((State::from("a").as_text(), state.as_text()), (Some("a"), None));
        let ends = State::default().image(&b"one"[..]).then(state);
        assert_eq!(ends.n_images(), 2);
        assert_eq!(
            ends.content_before(""),
            json!([{ "type": "image" }, { "type": "text", "text": "ab" }, { "type": "image" }, { "type": "text", "text": "c" }])
        );
    }
}
