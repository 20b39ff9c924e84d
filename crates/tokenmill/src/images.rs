//! [`take_images`]: the images of a conversation's messages, and the marks that a template sees in their place.
//!
//! Separate from the words because it knows no model. Invariant: nothing is fetched and no file is opened: an image's bytes are in
//! its message, as a `data:` URL.

use std::sync::Arc;

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use serde_json::{Value, json};

use crate::Error;

/// The bytes of an image's file.
pub(crate) type ImageFile = Arc<[u8]>;

/// An image of a prompt whose rows are not made yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptImage {
    /// Index of its first row among the prompt's tokens.
    pub(crate) start: usize,
    pub(crate) file: ImageFile,
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
/// What is wrong with the URL.
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

/// An image's file as a part of a message's content, for conversations that are JSON.
pub fn image_part(file: &[u8]) -> Value {
    let url = format!("data:;base64,{}", BASE64.encode(file));
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
