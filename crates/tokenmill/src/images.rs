//! The images of a conversation's messages, and the marks that a template sees in their place.
//!
//! No model is needed here. Invariant: nothing is downloaded and no file is opened: an image's bytes are in
//! its message, as a `data:` URL.

use std::{ops::Range, sync::Arc};

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use serde_json::{Value, json};

pub use tokenmill_image::ImageError;
use tokenmill_image::{ImageLimits, Rgb, media_type};
use tokenmill_model::ImageGrid;

use crate::Error;

/// The bytes of an image's file.
pub(crate) type ImageFile = Arc<[u8]>;

/// An image of a prompt whose rows are not made yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptImage {
    /// Index of its first row among the prompt's tokens.
    pub(crate) start: usize,
    /// The size at which it is encoded, and its rows.
    pub(crate) grid: ImageGrid,
    pub(crate) file: ImageFile,
}

/// Takes tokens out of a prompt, and the images that have rows among them: such an image is taken out whole. Returns how many
/// tokens that were.
pub(crate) fn cut(tokens: &mut Vec<u32>, images: &mut Vec<PromptImage>, dropped: Range<usize>) -> usize {
    let Range { mut start, mut end } = dropped;
    if start == end {
        return 0;
    }
    images.retain(|image| {
        let (first, behind) = (image.start, image.start + image.grid.n_rows());
        let is_cut = first < end && start < behind;
        if is_cut {
            (start, end) = (start.min(first), end.max(behind));
        }
        !is_cut
    });
    for image in images.iter_mut().filter(|image| image.start >= end) {
        image.start -= end - start;
    }
    tokens.drain(start..end).len()
}

/// Takes the images out of messages, in their order, and leaves `{"type": "image"}` where they were.
///
/// An image is a part of a message's content as OpenAI's API has it, `{"type": "image_url", "image_url": {"url": "data:…"}}`.
///
/// # Errors
/// [`Error::ImageUrl`].
pub(crate) fn take_images(messages: &mut [Value]) -> Result<Vec<ImageFile>, Error> {
    let mut files = Vec::new();
    for (message_idx, message) in messages.iter_mut().enumerate() {
        let Some(Value::Array(parts)) = message.get_mut("content") else {
            continue;
        };
        for part in parts.iter_mut().filter(|part| part["type"] == "image_url") {
            let url = match &part["image_url"] {
                Value::String(url) => Some(url),
                object => match &object["url"] {
                    Value::String(url) => Some(url),
                    _ => None,
                },
            };
            let bytes = url.ok_or("it has no URL").and_then(|url| image_of_url(url));
            let bytes = bytes.map_err(|reason| Error::ImageUrl { message_idx, reason })?;
            files.push(bytes.into());
            *part = json!({"type": "image"});
        }
    }
    Ok(files)
}

/// The bytes of an image in a `data:` URL.
///
/// # Errors
/// Returns a message if the URL is not a valid `data:` URL.
pub fn image_of_url(url: &str) -> Result<Vec<u8>, &'static str> {
    let Some(data) = url
        .get(..5)
        .filter(|scheme| scheme.eq_ignore_ascii_case("data:"))
        .map(|_| &url[5..])
    else {
        return Err(
            "only `data:` URLs are read: put the image's bytes into the request, as data:image/png;base64,…",
        );
    };
    let (kind, base64) = data
        .split_once(',')
        .ok_or("a `data:` URL has a comma before its data")?;
    if !kind.ends_with(";base64") {
        return Err("the data of an image is in base64: data:image/png;base64,…");
    }
    decode_base64(base64).ok_or("the data is not base64")
}

/// Decodes an image's file to see whether that is possible.
///
/// # Errors
/// [`ImageError`], as models that see would have it.
pub fn check_image(file: &[u8]) -> Result<(), ImageError> {
    Rgb::decode(file, &ImageLimits::default()).map(|_| ())
}

/// An image's file as a part of a message's content, for conversations that are JSON.
pub fn image_part(file: &[u8]) -> Value {
    let media_type = media_type(file).unwrap_or_default();
    let url = format!("data:{media_type};base64,{}", BASE64.encode(file));
    json!({"type": "image_url", "image_url": {"url": url}})
}

/// With padding or without.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Decodes base64, in which breaks of lines may stand.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let is_break = |byte: &u8| matches!(byte, b'\r' | b'\n');
    if !text.bytes().any(|byte| is_break(&byte)) {
        return BASE64.decode(text).ok();
    }
    let mut digits = text.as_bytes().to_vec();
    digits.retain(|byte| !is_break(byte));
    BASE64.decode(digits).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read_with_breaks_and_without_padding() {
        for text in ["TWFuIQ==", "TWFuIQ", "TWFu\r\nIQ==\n"] {
            assert_eq!(decode_base64(text).as_deref(), Some(&b"Man!"[..]), "{text}");
        }
        for broken in ["T", "TQ==TQ==", "T Q=", "TWF*", "="] {
            assert_eq!(decode_base64(broken), None, "{broken}");
        }
    }

    #[test]
    fn images_are_cut_whole_and_those_behind_move() {
        const MARK: u32 = 100;
        let file = |n: u8| -> ImageFile { Arc::new([n]) };
        // Text of rising tokens, with images of 3 rows at 2, 8 and 14.
        let prompt = || {
            let mut tokens: Vec<u32> = (0..20).collect();
            let images: Vec<PromptImage> = [2, 8, 14]
                .into_iter()
                .zip(0..)
                .map(|(start, n)| PromptImage {
                    start,
                    grid: ImageGrid {
                        width: 9,
                        height: 3,
                        n_across: 3,
                        n_down: 1,
                    },
                    file: file(n),
                })
                .collect();
            for image in &images {
                tokens[image.start..image.start + 3].fill(MARK);
            }
            (tokens, images)
        };
        let check = |dropped: Range<usize>, n_dropped: usize, left: &[u8], next: u32| {
            let (mut tokens, mut images) = prompt();
            let first = dropped.start;
            assert_eq!(
                cut(&mut tokens, &mut images, dropped.clone()),
                n_dropped,
                "{dropped:?}"
            );
            assert_eq!(tokens.len(), 20 - n_dropped);
            let found: Vec<u8> = images.iter().map(|image| image.file[0]).collect();
            assert_eq!(found, left, "{dropped:?}");
            assert_eq!(
                tokens.get(first.min(tokens.len() - 1)),
                Some(&next),
                "{dropped:?}"
            );
            for image in &images {
                assert_eq!(tokens[image.start..image.start + 3], [MARK; 3], "{dropped:?}");
            }
            assert_eq!(
                tokens.iter().filter(|&&token| token == MARK).count(),
                3 * left.len()
            );
        };
        check(0..0, 0, &[0, 1, 2], 0);
        // Text alone.
        check(5..8, 3, &[0, 1, 2], MARK);
        // An image that lies within.
        check(6..12, 6, &[0, 2], 12);
        // One that the end parts.
        check(5..9, 6, &[0, 2], 11);
        // One that the beginning parts.
        check(4..6, 4, &[1, 2], MARK);
        check(0..17, 17, &[], 17);
    }

    #[test]
    fn images_leave_marks_in_their_order() {
        let mut messages = vec![
            json!({"role": "user", "content": [
                {"type": "text", "text": "a"}, image_part(b"one"), {"type": "text", "text": "b"},
            ]}),
            json!({"role": "assistant", "content": "c"}),
            json!({"role": "user", "content": [
                {"type": "image_url", "image_url": "DATA:image/png;base64,dHdv"},
            ]}),
        ];
        let files = take_images(&mut messages).unwrap();
        assert_eq!(
            files.iter().map(|file| &file[..]).collect::<Vec<_>>(),
            [b"one", b"two"]
        );
        assert_eq!(
            messages[0]["content"],
            json!([{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}])
        );
        assert_eq!(messages[2]["content"], json!([{"type": "image"}]));
    }

    #[test]
    fn other_urls_are_refused() {
        for url in [
            "http://127.0.0.1/a.png",
            "https://example.org/a.png",
            "file:///etc/passwd",
            "/etc/passwd",
            "",
            "data:",
            "data:image/png;base64",
            "data:image/png,abc",
            "data:image/png;base64,*",
            "dätä:",
        ] {
            assert!(image_of_url(url).is_err(), "{url}");
        }
    }
}
